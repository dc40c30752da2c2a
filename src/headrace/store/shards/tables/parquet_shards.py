"""Parquet files as shards: a row is a sample. What is read at once is a page of the payload's column, where there is an
index of pages, and a row group's part of it otherwise.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, overload

import numpy as np

from headrace.store.base import RESERVED, Kind, Label, LabelKind
from headrace.store.shards.numbered import numbered, place_of
from headrace.store.shards.places.listing import found_files
from headrace.store.shards.recent import Unpacked
from headrace.store.shards.shard import DamagedShard, Each, Listed, Shard, Steps, Wanted
from headrace.store.shards.tables.columnar import MAGIC, Footer, listed, page_of, payload_at, size_of
from headrace.store.shards.tables.pages import PagedColumn, PagePlaces
from headrace.store.url import StoreUrl

TAIL = 1 << 16
"""Bytes at a file's end that are read for its footer, which is seldom longer."""
LARGEST_FOOTER = 1 << 27


class ParquetFormat:
    """A folder's ``*.parquet``, a pattern, a brace list of names, or one file.

    ``?data=image`` names the column that is the payload, else it is the first of bytes (or Hugging Face's struct of
    bytes and path), else the first list of numbers, which becomes a NPY file. ``?label=class`` names that of the label,
    else it is ``label``, if it is there. Columns of numbers, texts and truth values are metadata.
    """

    def __init__(self, url: StoreUrl, names: str) -> None:
        """``names``: which files, below the place; empty for all of its own."""
        self._asked, self._names = (url.options.get("data"), url.options.get("label")), names
        self.identity = f"parquet:{names}:{self._asked}"

    def opened(self, before: Any) -> Steps["RowGroups"]:
        """Raises ``DamagedShard``."""
        files = yield from found_files(self._names, "*.parquet", "Parquet files")
        if isinstance(before, RowGroups) and before.files == files:
            return before
        (footers,) = yield [Each([_footer(each) for each in files])]
        return RowGroups(files, footers, self._asked)


def _footer(of: Listed) -> Steps[bytes]:
    """A file's end, from the beginning of its metadata."""
    try:
        if of.size < 12:
            raise DamagedShard(f"it has {of.size} bytes")
        first = max(4, of.size - TAIL)
        (tail,) = yield [Wanted(of.object, first, of.size, of.etag)]
        length = int.from_bytes(tail[-8:-4], "little")
        if bytes(tail[-4:]) != MAGIC:
            raise DamagedShard("it is encrypted" if bytes(tail[-4:]) == b"PARE" else "it does not end like one")
        begin = of.size - 8 - length
        if begin < 4 or length > LARGEST_FOOTER:
            raise DamagedShard(f"its metadata are to have {length} bytes")
        if begin < first:
            (tail,) = yield [Wanted(of.object, begin, of.size, of.etag)]
            first = begin
        return bytes(tail[begin - first :])
    except DamagedShard as error:
        raise DamagedShard(f"{of.object!r} is no Parquet file: {error}") from None


class RowGroup(NamedTuple):
    """Rows of one file that are read together."""

    file: int
    group: int
    rows: int


class GroupTable(NamedTuple):
    """The facts that have to be known of a row group before its rows can be read."""

    labels: Any
    places: PagePlaces | None
    dictionary: bytes

    @property
    def nbytes(self) -> int:
        """Bytes of memory, about."""
        pages = 0 if self.places is None else 96 * len(self.places.offsets)
        return pages + len(self.dictionary) + int(getattr(self.labels, "nbytes", 0))


class SamePlace(Sequence[int]):
    """The offsets of samples that all lie in one piece."""

    def __init__(self, begin: int, end: int, count: int) -> None:
        self._place, self._count = (begin, end), count

    def __len__(self) -> int:
        return 2 * self._count

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [self._place[at % 2] for at in range(*index.indices(len(self)))]
        return self._place[range(len(self))[index] % 2]


@dataclass
class RowGroups:
    """All row groups of all files, in order. Footers are parsed by each process that needs them."""

    files: list[Listed]
    footers: Sequence[bytes]
    asked: tuple[str | None, str | None]
    shards: Sequence[Shard] = field(init=False)

    def __post_init__(self) -> None:
        self._parsed: dict[int, Footer] = {}
        self._groups = [
            RowGroup(file, group, rows)
            for file in range(len(self.files))
            for group, rows in enumerate(self._said(file, Footer.groups))
        ]
        self._starts = list(accumulate((each.rows for each in self._groups), initial=0))
        self._holds: dict[str, Kind | None] = self._said(0, Footer.kinds)
        self._data, self._label = self._roles()
        self.labels = LabelKind.NONE
        if self._label is not None:
            self.labels = LabelKind.INTEGER if self._holds[self._label] is Kind.INTEGER else LabelKind.BLOB
        self.shards = [self._shard(number, each) for number, each in enumerate(self._groups)]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parsed": {}}

    def counts(self) -> list[int]:
        return [each.rows for each in self._groups]

    def keys(self) -> list[str]:
        return numbered(self._starts[-1])

    def find(self, key: str) -> tuple[int, int] | None:
        return place_of(key, self._starts)

    def kinds(self) -> Steps[dict[str, Kind]]:
        yield from ()
        own = {"label": Kind.INTEGER} if self.labels is LabelKind.INTEGER else {}
        apart = (self._data, self._label, *RESERVED)
        others = {name: kind for name, kind in self._holds.items() if kind is not None and name not in apart}
        return {"key": Kind.TEXT, **own, **others}

    def columns(self, names: Sequence[str]) -> Steps[dict[str, list[Any]]]:
        sources = self._sources(names)
        (parts,) = yield [Each([self._read(number, sources) for number in range(len(self._groups))])]
        return {
            name: [value for part in parts for value in listed(part[source])]
            for name, source in zip(names, sources, strict=True)
        }

    def section(self, shard: int, names: Sequence[str]) -> Steps[dict[str, list[Any]]]:
        others = [name for name in names if name != "key"]
        sources = self._sources(others)
        read = (yield from self._read(shard, sources)) if sources else {}
        found = {name: listed(read[source]) for name, source in zip(others, sources, strict=True)}
        return {"key": numbered(self._groups[shard].rows, self._starts[shard]), **found}

    def _sources(self, names: Sequence[str]) -> list[str]:
        """The column of the files that each of ours is."""
        return [self._label if name == "label" and self._label is not None else name for name in names]

    def table(self, shard: int) -> Steps[Any] | None:
        return None if self._label is None and self._pages_of(shard) is None else self._table(shard)

    def piece(self, shard: int, position: int, table: Any) -> Wanted:
        of = self.shards[shard]
        if table is not None and table.places is not None:
            begin, end = table.places.range(position)
            return Wanted(of.object, begin, end, of.etag)
        assert not callable(of.offsets)
        return Wanted(of.object, of.offsets[0], of.offsets[1], of.etag)

    def is_block(self, shard: int) -> bool:
        return True

    def is_whole(self, shard: int) -> bool:
        return self._pages_of(shard) is None

    def room(self, shard: int) -> int:
        about = self._groups[shard]
        return sum(end - begin for begin, end in self._footer(about.file).range(about.group, [self._data]))

    def block(self, shard: int, raw: bytes | memoryview, begin: int, table: Any) -> Unpacked:
        about, pages = self._groups[shard], self._pages_of(shard)
        if pages is None:
            arrays = self._footer(about.file).read(about.group, [self._data], {begin: raw})
            return Unpacked((arrays[self._data], 0), size_of(arrays))
        page = table.places.at(begin)
        rows = table.places.rows_of(page)
        values = page_of(pages.file(about.group, rows, table.dictionary, raw), self._data, rows)
        return Unpacked((values, table.places.first_rows[page]), values.nbytes)

    def row(self, shard: int, position: int, piece: Any, table: Any) -> tuple[bytes | memoryview, Label]:
        values, first = piece
        if not first <= position < first + len(values):
            raise DamagedShard("it does not lie in that page")
        payload = payload_at(values, position - first)
        if self._label is None:
            return payload, None
        if self.labels is LabelKind.BLOB:
            return payload, bytes(payload_at(table.labels, position))
        label = table.labels[position]
        if label is None:
            raise DamagedShard("its label is missing")
        return payload, int(label)

    def _table(self, shard: int) -> Steps[GroupTable]:
        labels = None if self._label is None else (yield from self._labels_of(shard))
        places, dictionary = None, b""
        if self._pages_of(shard) is not None:
            of, places = self.files[self._groups[shard].file], (yield from self._places(shard))
            if places.dictionary[0] < places.dictionary[1]:
                (raw,) = yield [Wanted(of.object, *places.dictionary, of.etag)]
                dictionary = bytes(raw)
        return GroupTable(labels, places, dictionary)

    def _places(self, shard: int) -> Steps[PagePlaces]:
        about, pages = self._groups[shard], self._pages_of(shard)
        assert pages is not None
        of = self.files[about.file]
        begin, end = pages.index(about.group)
        if not 4 <= begin < end <= of.size:
            raise DamagedShard(f"the index of its pages is to lie from {begin} to {end} of {of.size} bytes")
        (raw,) = yield [Wanted(of.object, begin, end, of.etag)]
        return pages.places(about.group, raw, about.rows, of.size)

    def _offsets(self, shard: int) -> Steps[Sequence[int]]:
        places = yield from self._places(shard)
        found = array("Q")
        for page, (begin, size) in enumerate(zip(places.offsets, places.sizes, strict=True)):
            found.extend((begin, begin + size) * places.rows_of(page))
        return found

    def _pages_of(self, shard: int) -> PagedColumn | None:
        about = self._groups[shard]
        return self._footer(about.file).paged(about.group, self._data) if about.rows else None

    def _labels_of(self, shard: int) -> Steps[Any]:
        assert self._label is not None
        arrays = yield from self._read(shard, [self._label])
        if self.labels is LabelKind.BLOB:
            return arrays[self._label]
        values = listed(arrays[self._label])
        return np.array(values, object if None in values else np.int64)

    def _read(self, shard: int, names: Sequence[str]) -> Steps[dict[str, Any]]:
        """Columns of a row group."""
        about = self._groups[shard]
        of, footer = self.files[about.file], self._footer(about.file)
        for name in names:
            if footer.kinds().get(name, 0) is not self._holds[name]:
                raise DamagedShard(
                    f"column {name!r} of {of.object!r} is missing, or of another type than in the first file"
                )
        try:
            ranges = footer.range(about.group, names)
            pieces = yield [Wanted(of.object, begin, end, of.etag) for begin, end in ranges]
            found = {begin: piece for (begin, _), piece in zip(ranges, pieces, strict=True)}
            return footer.read(about.group, names, found)
        except DamagedShard as error:
            raise DamagedShard(f"row group {about.group} of {of.object!r} cannot be read: {error}") from error

    def _shard(self, number: int, about: RowGroup) -> Shard:
        """A row group, whose rows all lie in the same piece, unless there is an index of its pages."""
        of, footer = self.files[about.file], self._footer(about.file)
        try:
            ranges = footer.range(about.group, [self._data])
        except (DamagedShard, LookupError) as error:
            raise DamagedShard(f"{of.object!r}: {error}") from None
        if not ranges:
            raise DamagedShard(f"{of.object!r} has no column {self._data!r}")
        if self._pages_of(number) is not None:
            return Shard(*of, partial(self._offsets, number))
        return Shard(*of, SamePlace(min(begin for begin, _ in ranges), max(end for _, end in ranges), about.rows))

    def _roles(self) -> tuple[str, str | None]:
        """The columns of payload and label."""
        for name in self.asked:
            if name is not None and name not in self._holds:
                raise DamagedShard(f"there is no column {name!r}; there are {', '.join(self._holds)}")
        label = self.asked[1] or ("label" if "label" in self._holds else None)
        blobs: list[str] = [name for name in self._said(0, Footer.blobs) if name != label]
        data = self.asked[0] or next(iter(blobs), None)
        if data is None:
            raise DamagedShard("no column looks like a payload; name it with ?data=")
        return data, label

    def _footer(self, file: int) -> Footer:
        if file not in self._parsed:
            self._parsed[file] = Footer(self.footers[file], self.files[file].size)
        return self._parsed[file]

    def _said(self, file: int, ask: Any) -> Any:
        try:
            return ask(self._footer(file))
        except DamagedShard as error:
            raise DamagedShard(f"{self.files[file].object!r}: {error}") from None
