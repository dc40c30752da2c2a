"""The work itself: items in, rows of a store out. Done alike in one process, in several, or by Spark."""

import itertools
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from headrace.core.errors import MissingDriver, StoreError, StoreRefused, StoreUnavailable
from headrace.store.base import Label, LabelKind, Record, Scalar, Writer
from headrace.store.catalogues.columns import CLASS
from headrace.store.catalogues.origin import Origin, RememberingWriter
from headrace.store.contents import form_of
from headrace.store.ingest.comparing import Comparison
from headrace.store.ingest.derived_keys import digest, key
from headrace.store.ingest.outcome import IngestFailure, IngestTally
from headrace.store.ingest.source_options import ReadOptions
from headrace.store.ingest.sources.item_source import IngestSource, Item, Loaded, open_source
from headrace.store.locate import open_writable
from headrace.store.pictures import Check, Encoding, checked, stored, stored_label

AT_ONCE = 16 * 2**20
"""Bytes of contents that are held before they are written, or one content where that is larger."""
COMMIT_S = 1.0
"""Seconds of work that an interrupt may cost."""

clock = time.monotonic


@dataclass(frozen=True)
class IngestJob:
    """All that a process needs to know. Pickled to processes of this run; the URL may have a password."""

    source: str
    url: str = field(repr=False)
    reading: ReadOptions
    encoding: Encoding
    labels: LabelKind
    classes: Mapping[str, int]
    rewrite: bool
    """Whether what is already stored is written again."""
    run: str
    """Names this ingest among all."""

    @property
    def copies(self) -> bool:
        """True if contents are stored as they are, and nothing is decoded on the way."""
        return not self.encoding.changes and self.reading.check is not Check.FULL


class _Ready(NamedTuple):
    key: str
    item: Item
    loaded: Loaded
    origin: Origin


class Ingester:
    """Takes items for as long as it is open, in one thread of one process."""

    def __init__(self, job: IngestJob, source: IngestSource | None = None, readers: int = 0) -> None:
        """``readers``: threads that read ahead, from a source that allows it."""
        self._job, self._readers = job, readers
        self._pool: ThreadPoolExecutor | None = None
        self._source = source or open_source(job.source, job.reading)
        self._stack = ExitStack()
        self._writer: Writer | None = None

    def __enter__(self) -> Self:
        store = open_writable(self._job.url)
        with ExitStack() as stack:
            stack.callback(self._source.close)
            stack.callback(store.close)
            if self._readers:
                self._pool = ThreadPoolExecutor(self._readers, "headrace-ingest")
                stack.callback(self._pool.shutdown, cancel_futures=True)
            self._writer = stack.enter_context(store.writer())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._writer = None
        self._stack.close()

    def take(self, items: Sequence[Item], *, again: bool = False) -> IngestTally:
        """Stores them. What fails with one item is in the tally; what fails with the store is raised.

        ``again``: a process that is gone may have stored some of them.
        """
        tally = IngestTally()
        assert self._writer is not None
        comparison = Comparison(self._writer, self._job.run, tally, again=again)
        for part in self._loaded(items, tally):
            self._store(part, comparison)
        return tally

    def _loaded(self, items: Sequence[Item], tally: IngestTally) -> Iterator[list[_Ready]]:
        part: list[_Ready] = []
        held, began = 0, clock()
        for ready in self._each(items):
            if not isinstance(ready, _Ready):
                tally.failures.append(ready)
                continue
            part.append(ready)
            tally.derived += ready.item.key is None
            held += _size(ready.loaded.content)
            if held >= AT_ONCE or clock() - began >= COMMIT_S:
                yield part
                part, held, began = [], 0, clock()
        if part:
            yield part

    def _each(self, items: Sequence[Item]) -> Iterator[_Ready | IngestFailure]:
        """Yield the items that were read, in their order; several more than was asked for are read, where threads
        read ahead.
        """
        if self._pool is None:
            yield from map(self._read, items)
            return
        rest = iter(items)
        # Twice as many as read: one is always waiting when a reader is done, and memory holds no more.
        ahead = deque(self._pool.submit(self._read, item) for item in itertools.islice(rest, 2 * self._readers))
        while ahead:
            ready = ahead.popleft().result()
            ahead.extend(self._pool.submit(self._read, item) for item in itertools.islice(rest, 1))
            yield ready

    def _read(self, item: Item) -> _Ready | IngestFailure:
        try:
            if item.problem is not None:
                raise ValueError(item.problem)
            return self._ready(item, self._source.load(item))
        except MissingDriver:
            raise
        except Exception as error:  # noqa: BLE001  (a file or a dataset may raise anything, for this item alone)
            return IngestFailure(item.ident, _told(error))

    def _ready(self, item: Item, loaded: Loaded) -> _Ready:
        check, encoding = self._job.reading.check, self._job.encoding
        checked(loaded.content, loaded.name, check)
        label = loaded.label
        if self._job.labels is LabelKind.BLOB and label is not None:
            checked(label, loaded.label_name, check)
        own = item.key or key(item.ident, loaded.content, encoding.tag())
        files = [loaded.content] if label is None or isinstance(label, (str, int)) else [loaded.content, label]
        place = self._source.where
        origin = Origin(place.name, place.root, item.ident, digest(files), encoding.tag(), self._job.run)
        return _Ready(own, item, loaded, origin)

    def _store(self, part: list[_Ready], comparison: Comparison) -> None:
        tally = comparison.tally
        if not self._job.rewrite:
            comparison.look([ready.key for ready in part])
        records: dict[str, Record] = {}
        began = clock()
        for ready in part:
            try:
                if ready.key in records and not self._job.rewrite:
                    # Its twin is written first, so that it is compared with what is stored, like any other.
                    self._put(records, comparison)
                    comparison.look([ready.key])
                label, metadata = self._described(ready)
                size = None if self._job.encoding.changes else _length(ready.loaded.content)
                if comparison.met(ready.key, label, size, metadata, ready.origin):
                    continue
                if self._job.labels is LabelKind.BLOB and label is not None:
                    label = stored_label(label, self._job.encoding)
                payload = stored(ready.loaded.content, self._job.encoding)
            except (MissingDriver, StoreUnavailable, StoreRefused):
                raise
            except Exception as error:  # noqa: BLE001  (a picture may be broken in any way)
                tally.failures.append(IngestFailure(ready.item.ident, _told(error)))
                continue
            tally.repeated += ready.key in records
            records[ready.key] = Record(ready.key, payload, label, metadata, ready.origin)
            if clock() - began >= COMMIT_S:
                self._put(records, comparison)
                began = clock()
        self._put(records, comparison)

    def _put(self, records: dict[str, Record], comparison: Comparison) -> None:
        """Put all records at once; where that is refused, one by one, to find the one that is at fault. Empties
        ``records``.
        """
        several = list(records.values())
        records.clear()
        self._write(several, comparison)

    def _write(self, records: list[Record], comparison: Comparison) -> None:
        writer, tally = self._writer, comparison.tally
        if not records or writer is None:
            return
        others: set[str] = set()
        try:
            if not self._job.rewrite and isinstance(writer, RememberingWriter):
                others = writer.add(records)
            else:
                writer.put(records)
        except (StoreUnavailable, StoreRefused):
            raise
        except StoreError as error:
            if len(records) > 1:
                for each in records:
                    self._write([each], comparison)
            else:
                place = records[0].key if records[0].origin is None else records[0].origin.place
                tally.failures.append(IngestFailure(place, _told(error)))
            return
        comparison.look(sorted(others))
        for record in records:
            assert record.origin is not None
            if record.key in others:  # somebody stored it a moment ago
                label = None if isinstance(record.label, bytes) else record.label
                comparison.met(record.key, label, len(record.payload), record.metadata, record.origin)
                continue
            tally.written += 1
            tally.payload_bytes += len(record.payload)
            tally.forms.note(form_of(record.payload).value, record.origin.shown)
            comparison.doubled(record.key, record.origin)

    def _described(self, ready: _Ready) -> tuple[Any, dict[str, Scalar]]:
        """The label and the metadata; a label that is a file as it came."""
        metadata: dict[str, Scalar] = dict(ready.item.metadata)
        label: Label | Any = ready.item.label if ready.loaded.label is None else ready.loaded.label
        if isinstance(label, str):
            own = metadata.get(CLASS)
            if own is not None and own != label:
                raise ValueError(f"its label is {label!r}, and its column {CLASS!r} says {own!r}: rename that column")
            metadata[CLASS] = label
            if label not in self._job.classes:
                raise ValueError(f"its class {label!r} is not among those of the source")
            label = self._job.classes[label]
        return label, metadata


def _length(content: Any) -> int | None:
    return len(content) if isinstance(content, (bytes, bytearray, memoryview)) else None


def _size(content: Any) -> int:
    if isinstance(content, (bytes, bytearray, memoryview)):
        return len(content)
    if hasattr(content, "mode"):  # a picture
        return int(content.size[0] * content.size[1] * len(content.getbands()))
    return int(getattr(content, "nbytes", 0))


def _told(error: Exception) -> str:
    """An error in one line for people; Python's own errors of files say the path themselves."""
    text = str(error).strip().partition("\n")[0]
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return text if isinstance(error, (ValueError, StoreError)) and text else f"{type(error).__name__}: {text}"
