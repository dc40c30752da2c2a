"""An ingest from beginning to end: look at the source, prepare the store, let the work be done, count."""

import itertools
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from headrace.core.errors import IngestError
from headrace.store.base import Schema, WritableStore
from headrace.store.columns import CLASS
from headrace.store.ingest.job import Ingester, Job
from headrace.store.ingest.labels import numbered
from headrace.store.ingest.options import Reading
from headrace.store.ingest.outcome import Outcome, Progress, Tally
from headrace.store.ingest.processes import by_processes
from headrace.store.ingest.source import Item, Shape, Source, open_source
from headrace.store.ingest.spark import by_spark
from headrace.store.locate import open_writable
from headrace.store.pictures import Encoding
from headrace.store.url import StoreUrl

CHUNK = 64
"""Items that are stored together, and done again together after a kill."""


@dataclass(frozen=True)
class Working:
    """Who does it: this process, ``workers`` processes, or the Spark cluster at ``spark``."""

    workers: int = 0
    spark: str | None = None
    spark_settings: Mapping[str, str] = field(default_factory=dict)
    rewrite: bool = False
    """Whether what is already stored is written again: for labels or metadata that changed."""

    def __post_init__(self) -> None:
        """Refuse what cannot be honoured, by name."""
        if self.workers < 0:
            raise IngestError(f"workers: {self.workers} is no number of processes")
        if self.spark is not None and self.workers:
            raise IngestError("workers are this machine's processes; with Spark its cluster does the work")


def ingest(
    source: str,
    url: str,
    reading: Reading | None = None,
    encoding: Encoding | None = None,
    working: Working | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Store every sample of a source. Begun again after an interruption, it goes on; done twice, it is done once.

    Items that cannot be read or stored are in the outcome and stop nothing. What is wrong with the source or the store
    as a whole is raised: ``IngestError``, ``StoreError``.
    """
    began = time.monotonic()
    working = working or Working()
    reading = reading or Reading()
    store = open_writable(url)
    opened = open_source(source, reading)
    try:
        shape = opened.shape()
        classes = _prepared(store, shape, reading)
        job = Job(source, url, reading, encoding or Encoding(), shape.labels, classes, working.rewrite)
        tally = Tally()
        with closing(_done(job, _chunks(opened.items()), working, opened)) as parts:
            for part in parts:
                tally.add(part)
                if progress is not None:
                    progress(tally, shape.count)
    finally:
        opened.close()
        store.close()
    return Outcome(
        source=opened.name,
        store=StoreUrl.parse(url).redacted,
        written=tally.written,
        present=tally.present,
        payload_bytes=tally.payload_bytes,
        failures=tuple(tally.failures),
        seconds=time.monotonic() - began,
    )


def _prepared(store: WritableStore, shape: Shape, reading: Reading) -> dict[str, int]:
    """Tables and columns made where they are missing; the numbers of the classes, those in the store unchanged."""
    store.create(Schema(shape.labels, shape.columns))
    if shape.classes is None:
        if reading.classes:
            raise IngestError("classes: the labels of this source are not given by name")
        return {}
    there = store.columns([CLASS, "label"])
    pairs = dict(zip(there[CLASS].tolist(), there["label"].tolist(), strict=True))
    used = {str(name): int(number) for name, number in pairs.items() if name is not None}
    return numbered(shape.classes, used, reading.classes)


def _done(job: Job, chunks: Iterator[Sequence[Item]], working: Working, source: Source) -> Generator[Tally, None, None]:
    if working.spark is not None:
        yield from by_spark(job, chunks, working.spark, working.spark_settings)
    elif working.workers:
        yield from by_processes(job, chunks, working.workers)
    else:
        with Ingester(job, source) as ingester:
            for items in chunks:
                yield ingester.take(items)


def _chunks(items: Iterator[Item]) -> Iterator[list[Item]]:
    while chunk := list(itertools.islice(items, CHUNK)):
        yield chunk
