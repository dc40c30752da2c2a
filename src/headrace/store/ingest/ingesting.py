"""An ingest from beginning to end: look at the source, prepare the store, let the work be done, count."""

import itertools
import time
import uuid
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from headrace.core.errors import IngestError, StoreError
from headrace.store.base import Schema, SettlingStore, WritableStore
from headrace.store.catalogues.columns import CLASS
from headrace.store.catalogues.origin import NamingStore, TracingStore
from headrace.store.catalogues.pruning import superseded
from headrace.store.ingest.ingest_processes import by_processes
from headrace.store.ingest.once import Once
from headrace.store.ingest.outcome import IngestTally, Outcome, Progress
from headrace.store.ingest.source_options import ReadOptions
from headrace.store.ingest.sources.item_source import IngestSource, Item, SourceShape, open_source
from headrace.store.ingest.sources.labels import numbered
from headrace.store.ingest.spark import by_spark
from headrace.store.ingest.work import Ingester, IngestJob
from headrace.store.locate import open_writable
from headrace.store.pictures import Encoding
from headrace.store.url import StoreUrl

CHUNK = 64
"""Items that are stored together, and done again together after a kill."""
COPIED = 512
"""The same, of files that this process only copies: what is stored together waits for the disk once."""


@dataclass(frozen=True)
class Working:
    """The choice of who does the work: this process, ``workers`` processes, or the Spark cluster at ``spark``.

    Where files are only copied, ``workers`` are threads of this process that read: to start processes would take longer
    than they save, and a database file has one writer at a time.
    """

    workers: int = 0
    spark: str | None = None
    spark_settings: Mapping[str, str] = field(default_factory=dict)
    rewrite: bool = False
    """Whether what is already stored is written again: for labels or metadata that changed."""

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise IngestError(f"workers: {self.workers} is no number of processes")
        if self.spark is not None and self.workers:
            raise IngestError("workers are this machine's processes; with Spark its cluster does the work")


def ingest(
    source: str,
    url: str,
    reading: ReadOptions | None = None,
    encoding: Encoding | None = None,
    working: Working | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Store every sample of a source. Begun again after an interruption, it goes on; done twice, it is done once.

    Items that cannot be read or stored are in the outcome and stop nothing. What is wrong with the source or the store
    as a whole is raised: ``IngestError``, ``StoreError``. However it ends, what was written is in the store's file.
    """
    began = time.monotonic()
    working = working or Working()
    reading = reading or ReadOptions()
    store = open_writable(url)
    opened = open_source(source, reading)
    tally = IngestTally()
    with ExitStack() as stack:
        stack.callback(_settled, store)  # the last to run: a log is put away when nobody has the file open
        stack.callback(store.close)
        stack.callback(opened.close)
        shape = opened.shape()
        classes = _prepared(store, shape, reading)
        run = uuid.uuid4().hex
        job = IngestJob(source, url, reading, encoding or Encoding(), shape.labels, classes, working.rewrite, run)
        once = Once(opened, distinct=shape.distinct)
        for items in (once.first, lambda: once.others(rewrite=working.rewrite)):
            with closing(_done(job, items(), working, opened)) as parts:
                for part in parts:
                    tally.add(part)
                    if progress is not None:
                        progress(tally, shape.count)
        tally.add(once.tally)
        left_out = tuple(opened.left_out())
        older = superseded(opened.where.name, store.origins()) if isinstance(store, TracingStore) else 0
        opened.close()
        store.close()
        settled = _settled(store)
    return Outcome(opened.name, StoreUrl.parse(url).redacted, tally, left_out, older, settled, time.monotonic() - began)


def _settled(store: WritableStore) -> bool:
    """True if the store's file has all of it; also at the end of an ingest that was interrupted, or failed."""
    try:
        return not isinstance(store, SettlingStore) or store.settle()
    except StoreError:
        return False


def _prepared(store: WritableStore, shape: SourceShape, reading: ReadOptions) -> dict[str, int]:
    """Tables and columns made where they are missing; the numbers of the classes, those in the store unchanged."""
    store.create(Schema(shape.labels, shape.columns))
    if shape.classes is None:
        if reading.classes:
            raise IngestError("classes: the labels of this source are not given by name")
        return {}
    there = store.columns([CLASS, "label"])
    pairs = dict(zip(there[CLASS].tolist(), there["label"].tolist(), strict=True))
    used = {str(name): int(number) for name, number in pairs.items() if name is not None}
    if not isinstance(store, NamingStore):
        return numbered(shape.classes, used, reading.classes, shape.numbers)
    known, numbers = None, dict[str, int]()
    while (now := store.class_numbers()) != known:  # another ingest may name classes meanwhile, and take our numbers
        known = now
        numbers = numbered(shape.classes, {**known, **used}, reading.classes, shape.numbers)
        if numbers != known:
            store.name_classes(numbers)
    return numbers


def _done(
    job: IngestJob, items: Iterable[Item], working: Working, source: IngestSource
) -> Generator[IngestTally, None, None]:
    copied = job.copies and source.where.threads and working.spark is None
    chunks = _chunks(iter(items), COPIED if copied else CHUNK)
    first = next(chunks, None)
    if first is None:  # nothing to do is no reason to start processes, or a cluster's session
        return
    chunks = itertools.chain([first], chunks)
    if working.spark is not None:
        yield from by_spark(job, chunks, working.spark, working.spark_settings)
    elif working.workers and not copied:
        yield from by_processes(job, chunks, working.workers)
    else:
        with Ingester(job, source, working.workers) as ingester:
            for chunk in chunks:
                yield ingester.take(chunk)


def _chunks(items: Iterator[Item], size: int) -> Iterator[list[Item]]:
    while chunk := list(itertools.islice(items, size)):
        yield chunk
