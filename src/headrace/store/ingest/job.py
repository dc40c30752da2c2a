"""The work itself: items in, rows of a store out. Done alike in one process, in several, or by Spark."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from headrace.core.errors import MissingDriver, StoreError, StoreRefused, StoreUnavailable
from headrace.store.base import LabelKind, Record, Scalar, Writer
from headrace.store.columns import CLASS
from headrace.store.ingest.identity import key
from headrace.store.ingest.options import Reading
from headrace.store.ingest.outcome import Failure, Tally
from headrace.store.ingest.source import Item, Loaded, Source, open_source
from headrace.store.locate import open_writable
from headrace.store.pictures import Encoding, stored, stored_label

AT_ONCE = 16 * 2**20
"""Bytes of contents that are held before they are written, or one content where that is larger."""


@dataclass(frozen=True)
class Job:
    """All that a process needs to know. Pickled to processes of this run; the URL may have a password."""

    source: str
    url: str = field(repr=False)
    reading: Reading
    encoding: Encoding
    labels: LabelKind
    classes: Mapping[str, int]
    rewrite: bool
    """Whether what is already stored is written again."""


class _Ready(NamedTuple):
    key: str
    item: Item
    loaded: Loaded


class Ingester:
    """Takes items for as long as it is open, in one thread of one process."""

    def __init__(self, job: Job, source: Source | None = None) -> None:
        self._job = job
        self._source = source or open_source(job.source, job.reading)
        self._stack = ExitStack()
        self._writer: Writer | None = None

    def __enter__(self) -> Self:
        store = open_writable(self._job.url)
        with ExitStack() as stack:
            stack.callback(self._source.close)
            stack.callback(store.close)
            self._writer = stack.enter_context(store.writer())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._writer = None
        self._stack.close()

    def take(self, items: Sequence[Item]) -> Tally:
        """Stores them. What fails with one item is in the tally; what fails with the store is raised."""
        tally = Tally()
        for part in self._loaded(items, tally):
            self._store(part, tally)
        return tally

    def _loaded(self, items: Sequence[Item], tally: Tally) -> Iterator[list[_Ready]]:
        part: list[_Ready] = []
        held = 0
        for item in items:
            try:
                if item.problem is not None:
                    raise ValueError(item.problem)
                loaded = self._source.load(item)
                own = item.key or key(item.ident, loaded.content, self._job.encoding.tag())
            except MissingDriver:
                raise
            except Exception as error:  # noqa: BLE001  (a file or a dataset may raise anything, for this item alone)
                tally.failures.append(Failure(item.ident, _told(error)))
                continue
            part.append(_Ready(own, item, loaded))
            held += _size(loaded.content)
            if held >= AT_ONCE:
                yield part
                part, held = [], 0
        if part:
            yield part

    def _store(self, part: list[_Ready], tally: Tally) -> None:
        assert self._writer is not None
        there = set() if self._job.rewrite else self._writer.present([ready.key for ready in part])
        records: dict[str, tuple[str, Record]] = {}
        for ready in part:
            if ready.key in there or ready.key in records:
                tally.present += 1
                continue
            try:
                records[ready.key] = ready.item.ident, self._record(ready)
            except MissingDriver:
                raise
            except Exception as error:  # noqa: BLE001  (a picture may be broken in any way)
                tally.failures.append(Failure(ready.item.ident, _told(error)))
        self._put(list(records.values()), tally)

    def _put(self, records: list[tuple[str, Record]], tally: Tally) -> None:
        """All at once; where that is refused, one by one, to find the one that is at fault."""
        if not records:
            return
        assert self._writer is not None
        try:
            self._writer.put([record for _, record in records])
        except (StoreUnavailable, StoreRefused):
            raise
        except StoreError as error:
            if len(records) > 1:
                for each in records:
                    self._put([each], tally)
            else:
                tally.failures.append(Failure(records[0][0], _told(error)))
        else:
            tally.written += len(records)
            tally.payload_bytes += sum(len(record.payload) for _, record in records)

    def _record(self, ready: _Ready) -> Record:
        metadata: dict[str, Scalar] = dict(ready.item.metadata)
        label = ready.item.label if ready.loaded.label is None else ready.loaded.label
        if isinstance(label, str):
            metadata[CLASS] = label
            if label not in self._job.classes:
                raise ValueError(f"its class {label!r} is not among those of the source")
            label = self._job.classes[label]
        elif self._job.labels is LabelKind.BLOB and label is not None:
            label = stored_label(label, self._job.encoding)
        return Record(ready.key, stored(ready.loaded.content, self._job.encoding), label, metadata)


def _size(content: Any) -> int:
    if isinstance(content, (bytes, bytearray, memoryview)):
        return len(content)
    if hasattr(content, "mode"):  # a picture
        return int(content.size[0] * content.size[1] * len(content.getbands()))
    return int(getattr(content, "nbytes", 0))


def _told(error: Exception) -> str:
    """One line for people; Python's own errors of files say the path themselves."""
    text = str(error).strip().partition("\n")[0]
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return text if isinstance(error, (ValueError, StoreError)) and text else f"{type(error).__name__}: {text}"
