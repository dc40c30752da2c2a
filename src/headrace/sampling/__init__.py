"""Orders of a loader's own: planned over shards, and divided among ranks."""
