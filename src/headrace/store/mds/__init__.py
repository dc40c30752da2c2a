"""MosaicML's MDS shards as a store to read from."""

from headrace.store.mds.store import MdsStore

__all__ = ["MdsStore"]
