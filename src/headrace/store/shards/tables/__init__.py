"""Parquet files as shards."""
