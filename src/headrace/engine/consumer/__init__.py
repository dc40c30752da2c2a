"""The training process: draws, publishes, waits, delivers."""
