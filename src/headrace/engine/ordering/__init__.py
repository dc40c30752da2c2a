"""Order of an epoch: which indices it draws, in which order, and how another process goes on from there."""
