"""Tar files, by their headers: where each member lies. Plain, GNU and POSIX ones, not compressed.

What a header says is believed only as far as the file is long, so a damaged one is an error and costs no memory.
"""

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

from headrace.store.shards.shard import DamagedShard

BLOCK = 512
LONGEST_NAME = 1 << 20
"""Bytes of a header that continues another; none that tells a name is longer."""
LONGEST_END = 1 << 20
"""Bytes behind a tar's end in which another one is looked for; programs fill up far fewer."""
_REGULAR, _SPARSE, _LONG_NAME, _LONG_LINK, _POSIX, _FOR_ALL = b"07\0", b"S", b"L", b"K", b"xX", b"g"
_CONTINUES = _LONG_NAME + _LONG_LINK + _POSIX + _FOR_ALL
_NOTHING_FOLLOWS = b"123456"
"""Links, devices, folders: whatever the header says."""


class BadTar(DamagedShard):
    """A file that is no tar file, or is damaged. ``within``: the key of the sample whose file is cut off, if one is."""

    def __init__(self, message: str, within: str | None = None) -> None:
        super().__init__(message)
        self.within = within


class TarMember(NamedTuple):
    """A file of a sample."""

    key: str
    """Its name up to the first dot, folders included: samples are told apart by it."""
    extension: str
    """What follows the dot, in lower case."""
    offset: int
    size: int


class TarBytes(NamedTuple):
    """Bytes that ``walk`` asks for."""

    offset: int
    size: int


Walk: TypeAlias = Generator[TarMember | TarBytes, bytes | None, None]
"""Yields members, and what it needs to go on, which it is sent."""


def members(path: Path) -> Iterator[TarMember]:
    """The members that are files of samples, in their order. Raises ``BadTar`` or ``OSError``, perhaps after some."""
    with path.open("rb") as file:
        walking = walk(os.fstat(file.fileno()).st_size)
        found = next(walking, None)
        while found is not None:
            if isinstance(found, TarMember):
                yield found
                found = next(walking, None)
            else:
                file.seek(found.offset)
                try:
                    found = walking.send(file.read(found.size))
                except StopIteration:
                    return


def _split(name: str) -> tuple[str | None, str]:
    folder, slash, last = name.removeprefix("./").rpartition("/")
    stem, dot, extension = last.partition(".")
    return (f"{folder}{slash}{stem}" if stem and dot else None), extension.lower()


def walk(length: int) -> Walk:
    """The members of a tar of so many bytes that are files of samples. Raises ``BadTar``, perhaps after some."""
    at = 0
    if not length:
        raise BadTar("it is empty")
    told = _TarHeader()
    while at < length:
        header = _header((yield TarBytes(at, BLOCK)) or b"", at)
        if not any(header):
            at = _behind_end((yield TarBytes(at, min(LONGEST_END, length - at))) or b"", at, length)
            continue
        kind, begin = header[156:157], at + BLOCK
        if kind in _SPARSE and header[482]:  # more of its map follows, in blocks of its own
            begin = yield from _behind_map(begin)
        size = 0 if kind in _NOTHING_FOLLOWS else _size(header[124:136], at)
        if kind in _REGULAR + _SPARSE:  # a header that continues another has its own size, whatever was told
            size = told.size(size, at)
        if begin + size > length:
            raise BadTar(f"it ends within what is at {at}", _split(told.name() or _name(header))[0])
        if kind in _CONTINUES:
            if size > LONGEST_NAME:
                raise BadTar(f"the header at {at} goes on for {size} bytes")
            told.more(kind, (yield TarBytes(begin, size)) or b"", at)
        else:
            key, extension = _split(told.name() or _name(header))
            if key is not None and kind in _REGULAR and not told.is_sparse():
                yield TarMember(key, extension, begin, size)
            told.following.clear()
        at = begin + -(-size // BLOCK) * BLOCK


class _TarHeader:
    """Facts from headers that continue another: for the next one, or for all that follow."""

    def __init__(self) -> None:
        self.following: dict[str, str] = {}
        self._all: dict[str, str] = {}

    def more(self, kind: bytes, text: bytes, at: int) -> None:
        if kind in _LONG_NAME:
            self.following["path"] = _text(text.split(b"\0")[0])
        elif kind in _POSIX:
            self.following |= _records(text, at)
        elif kind in _FOR_ALL:
            self._all |= _records(text, at)

    def name(self) -> str | None:
        return self.following.get("path", self._all.get("path"))

    def size(self, otherwise: int, at: int) -> int:
        told = self.following.get("size", self._all.get("size", str(otherwise)))
        if not (told.isascii() and told.isdecimal() and len(told) < 20):
            raise BadTar(f"the header at {at} gives no size")
        return int(told)

    def is_sparse(self) -> bool:
        return any(name.startswith("GNU.sparse") for name in (*self.following, *self._all))


def _behind_end(rest: bytes, at: int, length: int) -> int:
    """The offset of another tar, behind the zeros at ``at`` that end one: files that were joined are read to their
    end. The file's length where none begins. ``rest``: what begins at ``at``.
    """
    zeros = (len(rest) - len(rest.lstrip(b"\0"))) // BLOCK * BLOCK
    return at + zeros if rest[zeros + 257 :].startswith(b"ustar") else length


def _header(block: bytes, at: int) -> bytes:
    """The block at ``at``: a header, or zeros."""
    if len(block) < BLOCK:
        raise BadTar(f"it ends within the header at {at}")
    if not any(block):
        return block
    told = _octal(block[148:156])
    counted = sum(block) - sum(block[148:156]) + 8 * 32
    high = sum(1 for byte in block if byte > 127) if told != counted else 0  # old programs took bytes for signed
    if told not in (counted, counted - 256 * high):
        raise BadTar(f"what is at {at} is no header of a plain tar file")
    return block


def _behind_map(begin: int) -> Generator[TarBytes, bytes | None, int]:
    while True:
        block = (yield TarBytes(begin, BLOCK)) or b""
        if len(block) < BLOCK:
            raise BadTar(f"it ends within the map at {begin}")
        begin += BLOCK
        if not block[504]:
            return begin


def _octal(field: bytes) -> int | None:
    text = field.split(b"\0")[0].strip()
    try:
        return int(text, 8) if text.isdigit() else (None if text else 0)
    except ValueError:
        return None


def _size(field: bytes, at: int) -> int:
    """The size in a header: in octal digits; where they are too few, in binary behind a mark."""
    size = int.from_bytes(field[1:], "big") if field[0] == 0x80 else _octal(field)
    if size is None:
        raise BadTar(f"the header at {at} gives no size")
    return size


def _records(more: bytes, at: int) -> dict[str, str]:
    """The records of a POSIX header: each is its own length, a space, a name, an equals sign, a value and the end
    of the line.
    """
    found = {}
    while more.strip(b"\0"):
        length, space, _ = more[:20].partition(b" ")
        size = int(length) if length.isdigit() and space else 0
        record = more[len(length) + 1 : size]
        name, equals, value = record[:-1].partition(b"=")
        if not size or size > len(more) or not record.endswith(b"\n") or not equals:
            raise BadTar(f"the header at {at} goes on with something else than records")
        found[_text(name)] = _text(value)
        more = more[size:]
    return found


def _name(header: bytes) -> str:
    name, prefix = (_text(field.split(b"\0")[0]) for field in (header[:100], header[345:500]))
    return f"{prefix}/{name}" if prefix and header[257:263] == b"ustar\0" else name


def _text(raw: bytes) -> str:
    return raw.decode(errors="surrogateescape")
