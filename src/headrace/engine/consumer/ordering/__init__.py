"""Which indices an epoch draws, in which order, and how another process goes on from there."""
