"""What an epoch is supplied with: rows of a store, entries of a cache."""
