"""LitData: an ``index.json`` that lists chunks, each with a table of offsets and samples of leaves.

A chunk begins with the number of its items and one offset more than that, all uint32. An item is the sizes of its
leaves, as uint32, followed by them. Chunks of tokens are one array each, cut into samples when they are read.
"""

import json
import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from headrace.store.base import RESERVED, Kind, Label, LabelKind
from headrace.store.shards.codecs import DENSEST, unpacked, zstd_size
from headrace.store.shards.lightning import leaves
from headrace.store.shards.numbered import numbered, place_of
from headrace.store.shards.recent import Unpacked
from headrace.store.shards.shard import Below, Content, DamagedShard, Each, Listed, Look, Shard, Steps, Wanted, borders
from headrace.store.url import StoreUrl

INDEX = "index.json"
LARGEST_INDEX = 1 << 28
SMALL = 1 << 14
"""Bytes of a sample that is read whole for its metadata."""
AT_ONCE = 1 << 22


class LitDataFormat:
    """The LitData format, with the options of a URL. ``?data=image`` and ``?label=class`` name parts of a sample,
    with dots between them where they are nested; else the payload is the first that is neither number nor text,
    and the label ``label``. Numbers and texts are metadata. ``?block=2049`` is the number of tokens of a sample,
    for datasets of tokens.
    """

    def __init__(self, url: StoreUrl) -> None:
        self._asked = url.options.get("data"), url.options.get("label")
        self._block = url.number("block", 0, least=0)
        self.identity = f"litdata:{self._asked}:{self._block}"

    def opened(self, before: Any) -> Steps["Chunks"]:
        """Raises ``DamagedShard``."""
        index, listed = yield [Content(INDEX, LARGEST_INDEX), Below()]
        if index is None:
            raise DamagedShard(f"no LitData chunks can be read: there is no {INDEX}")
        about = read_index(index[1], self._block)
        if listed is None:
            listed = yield [Look(each.name) for each in about.chunks]
        there = {each.object: each for each in listed if each is not None}
        missing = [each.name for each in about.chunks if each.name not in there]
        if missing:
            raise DamagedShard(f"there is no file {missing[0]!r:.80}")
        files = [index[0], *(there[each.name] for each in about.chunks)]
        if isinstance(before, Chunks) and before.files == files:
            return before
        return Chunks(files, about, self._asked)


class LitChunk(NamedTuple):
    """A chunk, as the index describes it."""

    name: str
    items: int
    samples: int


@dataclass
class LitIndex:
    """The contents of an index."""

    chunks: list[LitChunk]
    formats: list[str]
    names: list[str]
    packed: bool
    tokens: int
    """Of a sample; 0 where samples are items."""


@dataclass
class Chunks:
    """All chunks of one dataset, in order."""

    files: Sequence[Listed]
    about: LitIndex
    asked: tuple[str | None, str | None]
    shards: Sequence[Shard] = field(init=False)

    def __post_init__(self) -> None:
        for each, listed in zip(self.about.chunks, self.files[1:], strict=True):
            self._check_room(each, listed.size)
        self._starts = list(accumulate((each.samples for each in self.about.chunks), initial=0))
        self._holds = dict(zip(self.about.names, self.about.formats, strict=True))
        self._data, self._label = self._roles()
        self.shards = [
            Shard(*listed, self._cut(number) if self.about.tokens else partial(self._offsets, number))
            for number, listed in enumerate(self.files[1:])
        ]

    @property
    def labels(self) -> LabelKind:
        if self._label is None:
            return LabelKind.NONE
        return LabelKind.INTEGER if self._holds[self._label] == "int" else LabelKind.BLOB

    def counts(self) -> list[int]:
        return [each.samples for each in self.about.chunks]

    def keys(self) -> list[str]:
        return numbered(self._starts[-1])

    def find(self, key: str) -> tuple[int, int] | None:
        return place_of(key, self._starts)

    def kinds(self) -> Steps[dict[str, Kind]]:
        yield from ()
        own = {"label": Kind.INTEGER} if self.labels is LabelKind.INTEGER else {}
        told = {name: leaves.kind_of(each) for name, each in self._holds.items()}
        apart = (self._data, self._label, *RESERVED)
        return {
            "key": Kind.TEXT,
            **own,
            **{name: kind for name, kind in told.items() if kind is not None and name not in apart},
        }

    def columns(self, names: Sequence[str]) -> Steps[dict[str, list[Any]]]:
        sources = self._sources(names)
        (parts,) = yield [Each([self._columns(number, sources) for number in range(len(self.shards))])]
        return {name: [value for part in parts for value in part[name]] for name in names}

    def section(self, shard: int, names: Sequence[str]) -> Steps[dict[str, list[Any]]]:
        sources = self._sources(name for name in names if name != "key")
        found = (yield from self._columns(shard, sources)) if sources else {}
        return {"key": numbered(self.about.chunks[shard].samples, self._starts[shard]), **found}

    def _sources(self, names: Iterable[str]) -> dict[str, str]:
        """The part of an item that each of our columns is."""
        return {name: self._label if name == "label" and self._label is not None else name for name in names}

    def table(self, shard: int) -> Steps[Any] | None:
        return None if self.is_block(shard) or self.about.tokens else self._offsets(shard)

    def piece(self, shard: int, position: int, table: Any) -> Wanted:
        of = self.shards[shard]
        if self.is_block(shard):
            return Wanted(of.object, 0, of.size, of.etag)
        if self.about.tokens:
            table = of.offsets
        return Wanted(of.object, *self._borders(shard, position, table, of.size), of.etag)

    def is_block(self, shard: int) -> bool:
        return self.about.packed

    def is_whole(self, shard: int) -> bool:
        return self.is_block(shard)

    def room(self, shard: int) -> int:
        return self.shards[shard].size

    def block(self, shard: int, raw: bytes | memoryview, begin: int, table: Any) -> Unpacked:
        found = memoryview(unpacked(raw, "zstd", zstd_size(raw)))
        return Unpacked((_table(found, self.about.chunks[shard]), found), len(found))

    def row(self, shard: int, position: int, piece: Any, table: Any) -> tuple[bytes | memoryview, Label]:
        if self.about.tokens and not self.is_block(shard):
            return leaves.payload(piece, self.about.formats[0]), None
        if self.is_block(shard):
            table, content = piece
            begin, end = self._borders(shard, position, table, len(content))
            piece = content[begin:end]
        places = self._places(piece, len(piece))
        payload = leaves.payload(piece[slice(*places[self._data])], self._holds[self._data])
        if self._label is None:
            return payload, None
        raw = piece[slice(*places[self._label])]
        if self.labels is LabelKind.BLOB:
            return payload, bytes(leaves.payload(raw, self._holds[self._label]))
        value = leaves.decoded(raw, "int")
        assert isinstance(value, int)
        return payload, value

    def _places(self, head: bytes | memoryview, length: int) -> dict[str, tuple[int, int]]:
        """The place of each leaf of an item, counted from the item's beginning."""
        count = len(self._holds)
        if min(len(head), length) < 4 * count:
            raise DamagedShard("it ends within its sizes")
        at, found = 4 * count, {}
        for name, size in zip(self._holds, struct.unpack_from(f"<{count}I", head), strict=True):
            if at + size > length:
                raise DamagedShard(f"its part {name!r} reaches beyond it")
            found[name] = at, at + size
            at += size
        if at != length:
            raise DamagedShard("it is longer than its parts")
        return found

    def _borders(self, shard: int, position: int, table: Any, size: int) -> tuple[int, int]:
        begin, end = borders(table, self.about.chunks[shard].samples, position)
        if not begin <= end <= size:
            raise DamagedShard(f"it is to lie from {begin} to {end} of {size} bytes")
        return begin, end

    def _check_room(self, chunk: LitChunk, size: int) -> None:
        """Refuses more samples than the file has room for, before there is a key for each of them."""
        width = leaves.dtype_of(self.about.formats[0]).itemsize * self.about.tokens if self.about.tokens else 4
        room = (
            DENSEST * size if self.about.packed else (size - 4 * (chunk.items + 2 if self.about.tokens else 2)) // width
        )
        if chunk.samples > max(0, room):
            raise DamagedShard(f"{chunk.name!r:.80} is too short for {chunk.samples} samples")

    def _cut(self, shard: int) -> "array[int]":
        """The offsets of samples of tokens, behind the chunk's table."""
        about = self.about.chunks[shard]
        first, step = 4 * (about.items + 2), self.about.tokens * leaves.dtype_of(self.about.formats[0]).itemsize
        return array("Q", range(first, first + step * about.samples + 1, step))

    def _offsets(self, shard: int) -> Steps[Any]:
        about, of = self.about.chunks[shard], self.files[1 + shard]
        if 4 * (about.items + 2) > of.size:
            raise DamagedShard(f"{of.object!r} is too short for {about.items} samples")
        (raw,) = yield [Wanted(of.object, 0, 4 * (about.items + 2), of.etag)]
        return _table(raw, about)

    def _columns(self, shard: int, sources: Mapping[str, str]) -> Steps[dict[str, list[Any]]]:
        of, count = self.files[1 + shard], self.about.chunks[shard].samples
        found: dict[str, list[Any]] = {name: [] for name in sources}
        position = 0
        try:
            if self.is_block(shard):
                (raw,) = yield [Wanted(of.object, 0, of.size, of.etag)]
                table, content = self.block(shard, raw, 0, None).value
                for position in range(count):
                    piece = content[slice(*self._borders(shard, position, table, len(content)))]
                    self._note(found, sources, piece, self._places(piece, len(piece)))
                return found
            table = yield from self._offsets(shard)
            while position < count:
                ranges = self._batch(shard, position, table)
                heads = yield [
                    Wanted(of.object, first, end if end - first <= SMALL else first + 4 * len(self._holds), of.etag)
                    for first, end in ranges
                ]
                for (first, end), head in zip(ranges, heads, strict=True):
                    places = self._places(head, end - first)
                    if end - first <= SMALL:
                        self._note(found, sources, head, places)
                    else:
                        wanted = {name: places[name] for name in sources.values()}
                        parts = yield [Wanted(of.object, first + at, first + to, of.etag) for at, to in wanted.values()]
                        for name, source in sources.items():
                            value = leaves.decoded(parts[list(wanted).index(source)], self._holds[source])
                            found[name].append(value)
                    position += 1
        except (DamagedShard, LookupError) as error:
            raise DamagedShard(f"sample {position} of {of.object!r} cannot be read: {error}") from error
        return found

    def _batch(self, shard: int, first: int, table: Any) -> list[tuple[int, int]]:
        ranges: list[tuple[int, int]] = []
        size = 0
        while first < self.about.chunks[shard].samples and size < AT_ONCE:
            begin, end = self._borders(shard, first, table, self.files[1 + shard].size)
            size += min(end - begin, SMALL)
            ranges.append((begin, end))
            first += 1
        return ranges

    def _note(self, found: dict[str, list[Any]], sources: Mapping[str, str], piece: Any, places: Any) -> None:
        for name, source in sources.items():
            found[name].append(leaves.decoded(piece[slice(*places[source])], self._holds[source]))

    def _roles(self) -> tuple[str, str | None]:
        """The parts that are payload and label."""
        for name in self.asked:
            if name is not None and name not in self._holds:
                raise DamagedShard(f"there is no part {name!r}; there are {', '.join(self._holds)}")
        label = self.asked[1] or ("label" if "label" in self._holds else None)
        pickled = [name for name, each in self._holds.items() if each.partition(":")[0] in leaves.PICKLES]
        blobs = (n for n, each in self._holds.items() if leaves.kind_of(each) is None and n not in (label, *pickled))
        data = self.asked[0] or next(blobs, None)
        if data is None:
            beside = f" ({', '.join(map(repr, pickled))} would be a pickle, which is not read)" if pickled else ""
            raise DamagedShard(f"no part looks like a payload{beside}; name it with ?data=")
        for name in (data, label):
            if name is not None:
                leaves.check(name, self._holds[name])
        return data, label


def _table(raw: bytes | memoryview, about: LitChunk) -> Any:
    numbers = np.frombuffer(raw[: 4 * (about.items + 2)], "<u4")
    if len(numbers) != about.items + 2 or numbers[0] != about.items:
        held = numbers[0] if len(numbers) else "no"
        raise DamagedShard(f"the chunk holds {held} samples, and the index says {about.items}")
    return numbers[1:].copy()


def read_index(text: bytes, block: int) -> LitIndex:
    """The contents of the index. Raises ``DamagedShard``."""
    try:
        found = json.loads(text)
        return _read(found["chunks"], found["config"], block)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedShard(f"{INDEX}: {' '.join(str(error).split())[:300] or type(error).__name__}") from None


def _read(entries: Any, config: Any, block: int) -> LitIndex:
    formats, loader, compression = config["data_format"], config.get("item_loader"), config.get("compression")
    if not isinstance(formats, list) or not formats or not all(isinstance(each, str) for each in formats):
        raise DamagedShard("it does not say what a sample consists of (data_format)")
    if config.get("encryption") is not None:
        raise DamagedShard("its chunks are encrypted, which is not read")
    if loader not in {None, "PyTreeLoader", "TokensLoader"}:
        raise DamagedShard(f"its chunks are for {loader!r:.60}; those of PyTreeLoader and TokensLoader are read")
    if compression is not None and config.get("compression_level") not in {None, "chunk"}:
        raise DamagedShard(
            "its chunks are compressed by batch or by sample; those compressed as a whole (compression_level='chunk') "
            "or not at all are read"
        )
    if compression is not None and str(compression).partition(":")[0] != "zstd":
        raise DamagedShard(f"the compression {compression!r:.40} is not known here")
    tokens = loader == "TokensLoader"
    if tokens and not block:
        raise DamagedShard("these are tokens: ?block= says how many of them are a sample")
    if tokens and (compression is not None or len(formats) != 1 or not formats[0].startswith("no_header_")):
        raise DamagedShard("tokens are read where they are one array and not compressed")
    names = leaves.names_of(config.get("data_spec"), len(formats))
    chunks = [_chunk(entry, block if tokens else 0) for entry in entries]
    return LitIndex(chunks, formats, names, compression is not None, block if tokens else 0)


def _chunk(entry: Mapping[str, Any], block: int) -> LitChunk:
    name, items, length = entry["filename"], entry["chunk_size"], entry.get("dim")
    if not isinstance(name, str) or name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise DamagedShard(f"{name!r:.40} is no name of a file in the folder")
    if type(items) is not int or not 0 <= items < 1 << 32:
        raise DamagedShard(f"{name!r:.40} is to have {items!r:.40} samples")
    if block and (type(length) is not int or not 0 <= length < 1 << 40):
        raise DamagedShard(f"{name!r:.40} is to have {length!r:.40} tokens")
    return LitChunk(name, items, length // block if block and length is not None else items)
