"""From folders, manifests, shards and datasets into a store: once, however often it is interrupted."""

from headrace.store.ingest.options import Encoding, Reading
from headrace.store.ingest.outcome import Failure, Outcome
from headrace.store.ingest.run import Working, ingest

__all__ = ["Encoding", "Failure", "Outcome", "Reading", "Working", "ingest"]
