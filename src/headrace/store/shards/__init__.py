"""Samples where they lie: shards of several formats, in folders and in buckets, read by ranges."""
