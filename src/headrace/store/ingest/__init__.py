"""From folders, manifests, shards and datasets into a store: once, however often it is interrupted."""

from headrace.store.ingest.options import Reading
from headrace.store.ingest.outcome import Failure, Outcome
from headrace.store.ingest.run import Working, ingest
from headrace.store.pictures import Encoding

__all__ = ["Encoding", "Failure", "Outcome", "Reading", "Working", "ingest"]
