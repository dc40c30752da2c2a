"""MosaicML's MDS: an ``index.json`` that lists shards, each with a table of offsets and samples of columns.

A shard begins with the number of its samples and one offset more than that, all uint32. A sample is the sizes, as
uint32, of those columns whose size varies, followed by the columns themselves.
"""

import json
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from headrace.store.base import RESERVED, Kind, Label, LabelKind
from headrace.store.shards.codecs import DENSEST, unpacked
from headrace.store.shards.mosaic import encodings
from headrace.store.shards.numbered import numbered, position_of
from headrace.store.shards.recent import Unpacked
from headrace.store.shards.shard import Below, Content, DamagedShard, Each, Listed, Look, Shard, Steps, Wanted, borders
from headrace.store.url import StoreUrl

INDEX = "index.json"
LARGEST_INDEX = 1 << 28
SMALL = 1 << 14
"""Bytes of a sample that is read whole for its metadata, since to ask for parts of it would cost more."""
AT_ONCE = 1 << 22
"""Bytes of samples that are looked into together."""


class MdsFormat:
    """``?data=image`` names the column that is the payload (else the first that is neither a number nor a text),
    ``?label=class`` that of the label (else ``label``, if it is there). Columns of numbers and texts are metadata.
    ``?split=train`` reads that folder, ``?streams=a,b`` several: their names then stand before the keys.
    """

    def __init__(self, url: StoreUrl) -> None:
        self._data, self._label = url.options.get("data"), url.options.get("label")
        split = url.options.get("split", "").strip("/")
        self._root = f"{split}/" if split else ""
        listed = [each.strip("/") for each in url.options.get("streams", "").split(",")]
        self._streams = sorted(f"{each}/" for each in listed if each) or [""]
        self.identity = f"mds:{split}:{','.join(self._streams)}:{self._data}:{self._label}"

    def opened(self, before: Any) -> Steps["MdsShards"]:
        """Raises ``DamagedShard``."""
        roots = [f"{self._root}{stream}" for stream in self._streams]
        answers = yield [*(Content(f"{root}{INDEX}", LARGEST_INDEX) for root in roots), *map(Below, roots)]
        indices, below = answers[: len(roots)], answers[len(roots) :]
        missing = [root for root, index in zip(roots, indices, strict=True) if index is None]
        if missing:
            raise DamagedShard((yield from _elsewhere(missing[0])))
        described: list[MdsShard] = []
        files: list[Listed] = [listed for listed, _ in indices]
        counts: list[int] = []
        for root, (_, text), names in zip(roots, indices, below, strict=True):
            found = read_index(text, f"{root}{INDEX}")
            there = yield from _states(root, found, names)
            chosen = [_chosen(each, root, there) for each in found]
            described += [each for each, _ in chosen]
            files += [listed for _, listed in chosen]
            counts.append(len(chosen))
        if isinstance(before, MdsShards) and before.files == files:
            return before
        return MdsShards(files, described, self._streams, counts, (self._data, self._label))


class MdsShard(NamedTuple):
    """A shard, as the index describes it."""

    raw: str
    size: int
    packed: str | None
    algorithm: str | None
    """How it is compressed; None where it is not."""
    samples: int
    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]

    def kinds(self) -> Iterator[tuple[str, Kind | None]]:
        """The kind of each column; None where that is no metadata."""
        return zip(self.names, map(encodings.kind_of, self.encodings), strict=True)

    @property
    def head(self) -> int:
        """Bytes of a sample's sizes."""
        return 4 * self.sizes.count(None)

    def places(self, head: bytes | memoryview, length: int) -> dict[str, tuple[int, int]]:
        """The place of each column of a sample, counted from the sample's beginning."""
        at, found = self.head, {}
        if len(head) < at or length < at:
            raise DamagedShard("it ends within its sizes")
        varying = iter(struct.unpack_from(f"<{at // 4}I", head))
        for name, fixed in zip(self.names, self.sizes, strict=True):
            size = next(varying) if fixed is None else fixed
            if at + size > length:
                raise DamagedShard(f"its column {name!r} reaches beyond it")
            found[name] = at, at + size
            at += size
        if at != length:
            raise DamagedShard("it is longer than its columns")
        return found


@dataclass
class MdsShards:
    """All shards of one dataset, in order."""

    files: Sequence[Listed]
    described: Sequence[MdsShard]
    streams: Sequence[str]
    shards_of: Sequence[int]
    """The number of shards of each stream."""
    asked: tuple[str | None, str | None]
    shards: Sequence[Shard] = field(init=False)

    def __post_init__(self) -> None:
        self.shards = [
            Shard(*listed, offsets=partial(self._offsets, number))
            for number, listed in enumerate(self.files[len(self.streams) :])
        ]
        self._starts = list(accumulate((each.samples for each in self.described), initial=0))
        ends = list(accumulate(self.shards_of, initial=0))
        self._firsts = [self._starts[end] for end in ends]  # the first sample of each stream, and the number of all
        self._holds = dict(self.described[0].kinds()) if self.described else {}
        self._data, self._label = self._roles() if self.described else ("", None)
        self.labels = self._label_kind()
        self._coded: dict[int, tuple[str, ...]] = {}  # the encodings of payload and label, by shard

    def kinds(self) -> Steps[dict[str, Kind]]:
        yield from ()
        own = {"label": Kind.INTEGER} if self.labels is LabelKind.INTEGER else {}
        apart = (self._data, self._label, *RESERVED)
        others = {name: kind for name, kind in self._holds.items() if kind is not None and name not in apart}
        return {"key": Kind.TEXT, **own, **others}

    def counts(self) -> list[int]:
        return [each.samples for each in self.described]

    def keys(self) -> list[str]:
        found: list[str] = []
        for stream, first, end in zip(self.streams, self._firsts, self._firsts[1:], strict=False):
            found += [f"{stream}{key}" for key in numbered(end - first)]
        return found

    def places(self) -> Sequence[int]:
        return range(self._starts[-1])

    def find(self, key: str) -> tuple[int, int] | None:
        stream, slash, name = key.rpartition("/")
        if f"{stream}{slash}" not in self.streams:
            return None
        place = self.streams.index(f"{stream}{slash}")
        number = position_of(name, self._firsts[place + 1] - self._firsts[place])
        if number is None:
            return None
        shard = bisect_right(self._starts, self._firsts[place] + number) - 1
        return shard, self._firsts[place] + number - self._starts[shard]

    def columns(self, names: Sequence[str]) -> Steps[dict[str, list[Any]]]:
        sources = self._sources(names)
        (parts,) = yield [Each([self._columns(number, sources) for number in range(len(self.shards))])]
        return {name: [value for part in parts for value in part[name]] for name in names}

    def section(self, shard: int, names: Sequence[str]) -> Steps[dict[str, list[Any]]]:
        sources = self._sources(name for name in names if name != "key")
        found = (yield from self._columns(shard, sources)) if sources else {}
        start = self._starts[shard]
        stream = bisect_right(self._firsts, start, hi=len(self.streams)) - 1
        first = start - self._firsts[stream]
        keys = numbered(self.described[shard].samples, first)
        return {"key": [f"{self.streams[stream]}{key}" for key in keys], **found}

    def _sources(self, names: Iterable[str]) -> dict[str, str]:
        """The column of the shards that each of ours is."""
        return {name: self._label if name == "label" and self._label is not None else name for name in names}

    def table(self, shard: int) -> Steps[Any] | None:
        return None if self.is_block(shard) else self._offsets(shard)

    def piece(self, shard: int, position: int, table: Any) -> Wanted:
        of = self.shards[shard]
        if self.is_block(shard):
            return Wanted(of.object, 0, of.size, of.etag)
        return Wanted(of.object, *self._borders(shard, position, table, of.size), of.etag)

    def is_block(self, shard: int) -> bool:
        return self.described[shard].algorithm is not None

    def is_whole(self, shard: int) -> bool:
        return self.is_block(shard)

    def room(self, shard: int) -> int:
        return self.shards[shard].size

    def block(self, shard: int, raw: bytes | memoryview, begin: int, table: Any) -> Unpacked:
        about = self.described[shard]
        assert about.algorithm is not None
        found = memoryview(unpacked(raw, about.algorithm, about.size))
        return Unpacked((_table(found, about), found), len(found))

    def row(self, shard: int, position: int, piece: Any, table: Any) -> tuple[bytes | memoryview, Label]:
        about = self.described[shard]
        if self.is_block(shard):
            table, content = piece
            begin, end = self._borders(shard, position, table, len(content))
            piece = content[begin:end]
        coded = self._coded.get(shard)
        if coded is None:  # once for a shard
            names = (self._data, self._label)
            coded = self._coded[shard] = tuple("" if name is None else self._check_kind(about, name) for name in names)
        places = about.places(piece, len(piece))
        begin, end = places[self._data]
        payload = encodings.payload(piece[begin:end], coded[0])
        if self._label is None:
            return payload, None
        begin, end = places[self._label]
        return payload, self._label_of(piece[begin:end], coded[1])

    def _label_of(self, raw: bytes | memoryview, encoding: str) -> Label:
        if self.labels is LabelKind.BLOB:
            return bytes(encodings.payload(raw, encoding))
        value = encodings.decoded(raw, encoding)
        assert isinstance(value, int)
        return value

    def _borders(self, shard: int, position: int, table: Any, size: int) -> tuple[int, int]:
        begin, end = borders(table, self.described[shard].samples, position)
        if not begin <= end <= size:
            raise DamagedShard(f"it is to lie from {begin} to {end} of {size} bytes")
        return begin, end

    def _offsets(self, shard: int) -> Steps[Any]:
        about, of = self.described[shard], self.shards[shard]
        (raw,) = yield [Wanted(of.object, 0, 4 * (about.samples + 2), of.etag)]
        return _table(raw, about)

    def _columns(self, shard: int, sources: Mapping[str, str]) -> Steps[dict[str, list[Any]]]:
        """Read the columns, several samples at once; of large ones first the sizes, then what is wanted."""
        about, of = self.described[shard], self.shards[shard]
        found: dict[str, list[Any]] = {name: [] for name in sources}
        position = 0
        try:
            if self.is_block(shard):
                (raw,) = yield [Wanted(of.object, 0, of.size, of.etag)]
                table, content = self.block(shard, raw, 0, None).value
                for position in range(about.samples):
                    piece = content[slice(*self._borders(shard, position, table, len(content)))]
                    self._note(found, about, sources, _values(about, piece, sources.values()))
                return found
            table = (yield from self._offsets(shard)) if about.samples else []
            while position < about.samples:
                ranges = self._batch(shard, position, table)
                heads = yield [
                    Wanted(of.object, begin, end if end - begin <= SMALL else min(end, begin + about.head), of.etag)
                    for begin, end in ranges
                ]
                for (begin, end), head in zip(ranges, heads, strict=True):
                    if end - begin <= SMALL:
                        values = _values(about, head, sources.values())
                    else:
                        places = about.places(head, end - begin)
                        wanted = [places[name] for name in sources.values()]
                        parts = yield [Wanted(of.object, begin + at, begin + to, of.etag) for at, to in wanted]
                        values = dict(zip(sources.values(), parts, strict=True))
                    self._note(found, about, sources, values)
                    position += 1
        except (DamagedShard, LookupError) as error:
            raise DamagedShard(f"sample {position} of {of.object!r} cannot be read: {error}") from error
        return found

    def _batch(self, shard: int, first: int, table: Any) -> list[tuple[int, int]]:
        ranges: list[tuple[int, int]] = []
        size = 0
        while first < self.described[shard].samples and size < AT_ONCE:
            begin, end = self._borders(shard, first, table, self.shards[shard].size)
            size += min(end - begin, SMALL)
            ranges.append((begin, end))
            first += 1
        return ranges

    def _note(self, found: dict[str, list[Any]], about: MdsShard, sources: Mapping[str, str], values: Any) -> None:
        for name, source in sources.items():
            found[name].append(encodings.decoded(values[source], self._check_kind(about, source)))

    def _check_kind(self, about: MdsShard, name: str) -> str:
        """The encoding of a column, in the shard that has the sample: it holds what the column holds in all of them."""
        if name not in about.names:
            raise DamagedShard(f"the shard has no column {name!r}")
        encoding = about.encodings[about.names.index(name)]
        if encodings.kind_of(encoding) is not self._holds[name]:
            raise DamagedShard(f"column {name!r} is {encoding!r} there, and another kind in the first shard")
        encodings.check_payload(name, encoding)
        return encoding

    def _roles(self) -> tuple[str, str | None]:
        """The columns of the payload and of the label."""
        for name in self.asked:
            if name is not None and name not in self._holds:
                raise DamagedShard(f"there is no column {name!r}; there are {', '.join(self._holds)}")
        label = self.asked[1] or ("label" if "label" in self._holds else None)
        of_first = dict(zip(self.described[0].names, self.described[0].encodings, strict=True))
        blobs = (name for name, encoding in of_first.items() if encodings.is_blob(encoding) and name != label)
        data = self.asked[0] or next(blobs, None)
        if data is None:
            pickled = [name for name, encoding in of_first.items() if encoding == "pkl"]
            beside = f" ({', '.join(map(repr, pickled))} would be a pickle, which is not read)" if pickled else ""
            raise DamagedShard(f"no column looks like a payload{beside}; name it with ?data=")
        for name in (data, label):
            if name is not None:
                encodings.check_payload(name, of_first[name])
        return data, label

    def _label_kind(self) -> LabelKind:
        if self._label is None:
            return LabelKind.NONE
        return LabelKind.INTEGER if self._holds[self._label] is Kind.INTEGER else LabelKind.BLOB


def _values(about: MdsShard, piece: bytes | memoryview, names: Any) -> dict[str, bytes | memoryview]:
    places = about.places(piece, len(piece))
    return {name: piece[slice(*places[name])] for name in names}


def _table(raw: bytes | memoryview, about: MdsShard) -> Any:
    numbers = np.frombuffer(raw[: 4 * (about.samples + 2)], "<u4")
    if len(numbers) != about.samples + 2 or numbers[0] != about.samples:
        held = numbers[0] if len(numbers) else "no"
        raise DamagedShard(f"the shard holds {held} samples, and the index says {about.samples}")
    return numbers[1:].copy()


def read_index(text: bytes, name: str) -> list[MdsShard]:
    """The shards that an index lists, in order. Raises ``DamagedShard``."""
    try:
        entries = json.loads(text)["shards"]
        if not isinstance(entries, list):
            raise DamagedShard("there is no list of shards")
        return [_described(entry) for entry in entries]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedShard(f"{name}: {' '.join(str(error).split())[:300] or type(error).__name__}") from None


def _described(entry: Mapping[str, Any]) -> MdsShard:
    if entry["format"] != "mds":
        raise DamagedShard(f"shards of format {entry['format']!r:.40}; only 'mds' is read")
    raw, packed, compression = entry["raw_data"], entry.get("zip_data"), entry.get("compression")
    name, size = raw["basename"], raw.get("bytes", 0)
    packed_name = packed["basename"] if isinstance(packed, dict) else None
    for each in (name, packed_name):
        if each is not None and not isinstance(each, str):
            raise DamagedShard(f"{each!r:.40} is no name of a file")
        if each is not None and (each.startswith("/") or ".." in each.split("/") or "\0" in each):
            raise DamagedShard(f"{each!r:.40} lies outside the folder")
    if type(size) is not int or size < 0:
        raise DamagedShard(f"{name!r:.40} has no size")
    names, coded, sizes = (entry[f"column_{what}"] for what in ("names", "encodings", "sizes"))
    if not (isinstance(names, list) and isinstance(coded, list) and isinstance(sizes, list)):
        raise DamagedShard(f"{name!r:.40} has no columns")
    if not all(isinstance(each, str) for each in (*names, *coded)):
        raise DamagedShard(f"{name!r:.40} has columns whose name or encoding is no text")
    if not len(set(names)) == len(names) == len(coded) == len(sizes):
        raise DamagedShard(f"{name!r:.40} has columns without a name of their own, an encoding or a size")
    if not all(each is None or (type(each) is int and each >= 0) for each in sizes):
        raise DamagedShard(f"{name!r:.40} has columns whose size is no number")
    samples = entry["samples"]
    if type(samples) is not int or samples < 0:
        raise DamagedShard(f"{name!r:.40} is to have {samples!r:.40} samples")
    algorithm = compression.partition(":")[0] if packed_name is not None and isinstance(compression, str) else None
    return MdsShard(name, size, packed_name, algorithm, samples, tuple(names), tuple(coded), tuple(sizes))


def _states(root: str, described: Sequence[MdsShard], names: Sequence[Listed] | None) -> Steps[dict[str, Listed]]:
    """The files that there are, of those that may be needed. ``names``: all below; None where nobody could say."""
    if names is None:
        wanted = [f"{root}{name}" for each in described for name in (each.raw, each.packed) if name is not None]
        names = [each for each in (yield [Look(name) for name in wanted]) if each is not None]
    return {each.object: each for each in names}


def _chosen(each: MdsShard, root: str, there: Mapping[str, Listed]) -> tuple[MdsShard, Listed]:
    """A shard as it is there: not compressed, where both are."""
    listed = there.get(f"{root}{each.raw}")
    if listed is not None:
        if each.samples > listed.size // 4 - 2:
            raise DamagedShard(f"{each.raw!r:.80} is too short for {each.samples!r:.40} samples")
        return each._replace(algorithm=None), listed
    listed = there.get(f"{root}{each.packed}")
    if listed is None or each.algorithm is None:
        raise DamagedShard(f"there is no file {each.raw!r:.80}")
    if each.samples > min(each.size // 4 - 2, DENSEST * listed.size):
        raise DamagedShard(f"{each.raw!r:.80} is too short for {each.samples!r:.40} samples")
    return each, listed


def _elsewhere(root: str) -> Steps[str]:
    """The text of the error where there is no index: which folders have one."""
    (names,) = yield [Below(root)]
    folders = [
        name.object.removeprefix(root).removesuffix(f"/{INDEX}")
        for name in names or ()
        if name.object.endswith(f"/{INDEX}")
    ]
    if not folders:
        return f"no MDS shards can be read: there is no {root}{INDEX}"
    shown = ",".join(folders[:8])
    return f"there is no {root}{INDEX}, but one in {shown}: ?split={folders[0]} reads one of them, ?streams={shown} all"
