"""Objects on any S3-compatible server: one per sample, and beside them what is known of each."""

from headrace.store.objects.object_store import ObjectStore

__all__ = ["ObjectStore"]
