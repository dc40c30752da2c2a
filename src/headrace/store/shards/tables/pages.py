"""Single pages of Parquet columns, where a file has an index of them: each is made a small file of its own.

That file has the page, its column's dictionary, and as much of the footer as belongs to them; who reads Parquet files
reads it, with all encodings and compressions there are.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

from headrace.store.shards.codecs import INFLATION, ROOM
from headrace.store.shards.shard import DamagedShard
from headrace.store.shards.tables import thrift
from headrace.store.shards.tables.thrift import BINARY, I32, I64, LIST, STRUCT, Fields, ThriftReader

MAGIC = b"PAR1"


UNUSED = (8, 12, 13, 14, 15, 16)
"""Fields of a column's metadata that reading needs not: statistics, Bloom filters, texts."""


def without_statistics(footer: bytes) -> bytes:
    """A footer without what reading needs not: pyarrow ends the process at statistics that contradict each other."""
    fields = ThriftReader(footer).struct()
    for group in _list(fields, 4):
        for chunk in _list(group, 1):
            if 8 in chunk or 3 not in chunk:
                raise DamagedShard("its columns are encrypted, or described nowhere")
            about = _struct(chunk, 3)
            for number in UNUSED:
                about.pop(number, None)
    return thrift.written(fields)


class PagePlaces(NamedTuple):
    """The places of the pages of a column in one row group."""

    offsets: list[int]
    sizes: list[int]
    first_rows: list[int]
    rows: int
    dictionary: tuple[int, int]
    """From where to where a dictionary lies; the same twice where there is none."""

    def page(self, row: int) -> int:
        """The number of the page that has a row."""
        return bisect_right(self.first_rows, row) - 1

    def range(self, row: int) -> tuple[int, int]:
        """The range in which the page that has a row lies."""
        page = self.page(row)
        return self.offsets[page], self.offsets[page] + self.sizes[page]

    def rows_of(self, page: int) -> int:
        ends = [*self.first_rows[1:], self.rows]
        return ends[page] - self.first_rows[page]

    def at(self, offset: int) -> int:
        """The number of the page that begins there."""
        return self.offsets.index(offset)


class PagedColumn:
    """A column of a file, by its footer."""

    def __init__(self, footer: bytes, path: str) -> None:
        """``footer``: the metadata, without what follows. Raises ``DamagedShard``."""
        self._fields = ThriftReader(footer).struct()
        self._path = path.split(".")

    def index(self, group: int) -> tuple[int, int]:
        """The range of the index of its pages in a row group."""
        chunk = self._chunk(group)
        begin, length = _number(chunk, 4), _number(chunk, 5)
        return begin, begin + length

    def places(self, group: int, index: bytes | memoryview, rows: int, size: int) -> PagePlaces:
        """The places that the index gives, checked against the size of the file."""
        listed = _list(ThriftReader(index).struct(), 1)
        offsets, sizes, firsts = ([_number(each, number) for each in listed] for number in (1, 2, 3))
        about = self._about(group)
        begin = _number(about, 11) if 11 in about else 0
        first = min(offsets, default=0)
        for offset, length in zip(offsets, sizes, strict=True):
            if not 4 <= offset < offset + length <= size:
                raise DamagedShard(f"a page is to lie from {offset} to {offset + length} of {size} bytes")
        rising = all(one < other for one, other in zip([*firsts, rows], [*firsts, rows][1:], strict=False))
        if not offsets or firsts[0] != 0 or not rising:
            raise DamagedShard("the index of its pages makes no sense")
        dictionary = (begin, first) if 4 <= begin < first else (first, first)
        return PagePlaces(offsets, sizes, firsts, rows, dictionary)

    def file(self, group: int, rows: int, dictionary: bytes | memoryview, page: bytes | memoryview) -> bytes:
        """A Parquet file with these rows alone. Raises ``DamagedShard``."""
        values, plain = _page(page)
        plain += _page(dictionary)[1] if len(dictionary) else 0
        packed = len(dictionary) + len(page)
        if not 0 <= plain <= ROOM + INFLATION * packed:
            raise DamagedShard(f"a page of {packed} bytes would take {plain >> 20} MiB of memory")
        about: Fields = {number: self._about(group)[number] for number in (1, 2, 3, 4)}
        about |= {5: (I64, values), 6: (I64, plain), 7: (I64, packed), 9: (I64, 4 + len(dictionary))}
        if len(dictionary):
            about[11] = I64, 4
        chunk: Fields = {2: (I64, 0), 3: (STRUCT, about)}
        of: Fields = {1: (LIST, (STRUCT, [chunk])), 2: (I64, plain), 3: (I64, rows)}
        made: Fields = {
            1: self._fields.get(1, (I32, 1)),
            2: (LIST, (STRUCT, self._schema())),
            3: (I64, rows),
            4: (LIST, (STRUCT, [of])),
        }
        if 6 in self._fields:
            made[6] = self._fields[6]  # who wrote it: readers know what some got wrong
        footer = thrift.written(made)
        return b"".join([MAGIC, dictionary, page, footer, len(footer).to_bytes(4, "little"), MAGIC])

    def _schema(self) -> list[Fields]:
        """The way from the root to this column."""
        elements = _list(self._fields, 2)
        kept: list[Fields] = [{**elements[0], 5: (I32, 1)}]
        at = 1
        for depth, name in enumerate(self._path):
            for _ in range(_number(elements[at - 1], 5)):
                if at >= len(elements):
                    raise DamagedShard("its schema ends too early")
                if _text(elements[at], 4) == name:
                    break
                at = _behind(elements, at)
            else:
                raise DamagedShard(f"its schema has no column {'.'.join(self._path)!r}")
            inner = depth + 1 < len(self._path)
            kept.append({**elements[at], 5: (I32, 1)} if inner else elements[at])
            at += 1
        return kept

    def _chunk(self, group: int) -> Fields:
        groups = _list(self._fields, 4)
        for chunk in _list(groups[group], 1) if group < len(groups) else ():
            kind, path = _struct(chunk, 3).get(3, (0, None))
            if kind == LIST and path[0] == BINARY and path[1] == [name.encode() for name in self._path]:
                found: Fields = chunk
                return found
        raise DamagedShard(f"row group {group} has no column {'.'.join(self._path)!r}")

    def _about(self, group: int) -> Fields:
        found: Fields = _struct(self._chunk(group), 3)
        if not {1, 2, 3, 4} <= found.keys():
            raise DamagedShard("its metadata say too little of a column")
        return found


def _page(page: bytes | memoryview) -> tuple[int, int]:
    """The number of values of a page, and of its bytes, header included and not compressed."""
    reader = ThriftReader(page)
    head = reader.struct()
    about = next((_struct(head, number) for number in (5, 8, 7) if number in head), {})
    return _number(about, 1), _number(head, 2) + reader.at


def _behind(elements: Sequence[Fields], at: int) -> int:
    """The place behind a part of the schema and all that is in it."""
    open_ones = 1
    while open_ones and at < len(elements):
        open_ones += (_number(elements[at], 5) if 5 in elements[at] else 0) - 1
        at += 1
    return at


def _number(fields: Fields, number: int) -> int:
    kind, value = fields.get(number, (0, None))
    if kind not in (thrift.I16, I32, I64):
        raise DamagedShard(f"its metadata have no number in field {number}")
    return int(value)


def _text(fields: Fields, number: int) -> str:
    kind, value = fields.get(number, (0, None))
    return value.decode(errors="replace") if kind == BINARY else ""


def _struct(fields: Fields, number: int) -> Fields:
    kind, value = fields.get(number, (0, None))
    if kind != STRUCT:
        raise DamagedShard(f"its metadata have nothing in field {number}")
    found: Fields = value
    return found


def _list(fields: Fields, number: int) -> list[Any]:
    kind, value = fields.get(number, (0, None))
    if kind != LIST or value[0] != STRUCT:
        raise DamagedShard(f"its metadata have no list in field {number}")
    found: list[Any] = value[1]
    return found
