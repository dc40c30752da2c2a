"""Places where shards lie: folders and buckets."""
