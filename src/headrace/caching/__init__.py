"""The cache in a loader: what it serves, what it keeps, and how its room is divided."""
