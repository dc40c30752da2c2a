"""Cassandra and ScyllaDB: one row per sample, many single-row reads in flight."""

from headrace.store.cassandra.cassandra_store import CassandraStore

__all__ = ["CassandraStore"]
