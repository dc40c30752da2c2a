"""Ingest from folders, manifests, shards and datasets into a store: once, however often it is interrupted."""

from headrace.store.ingest.ingesting import Working, ingest
from headrace.store.ingest.outcome import IngestFailure, Outcome
from headrace.store.ingest.source_options import ReadOptions
from headrace.store.pictures import Encoding

__all__ = ["Encoding", "IngestFailure", "Outcome", "ReadOptions", "Working", "ingest"]
