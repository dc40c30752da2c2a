"""The trainer: draws, publishes, waits, delivers."""
