"""Supply of an epoch: rows of a store, entries of a cache."""
