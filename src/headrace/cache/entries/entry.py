"""Entries as they lie in memory, on a server or a disk: each names itself, and is under a checksum.

    magic 4 | version 1 | form 1 | unused 2 | layout bytes 4 | unused 4 | scope 16 | sample 8 | word 8 | maker 8 |
    body bytes 8 | front bytes 8 | checksum 8 | to 128 | layout, to a multiple of 64 | body

A body that ends in a large piece of memory, as that of a picture does, is written from where that lies; what stands
before it is the *front*.

Whoever reads one says what it must be: an entry of another sample, form, data or generation, a part of one, and bytes
that were changed are none.
"""

import hashlib
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.cache.backends.entry_word import form_of
from headrace.cache.entries.codec import Described

Bytes = NDArray[np.uint8]
Pieces = Sequence[memoryview | bytes]
"""An entry to be written, one piece after the other."""
_HEAD = struct.Struct("<4sBBHI4x16sQQQQQ")
_PAD = bytes(48)
MAGIC, VERSION, ALIGN, BEGIN = b"hrce", 6, 64, 128
SUMMED = 1 << 14
"""Bytes from which on sums are faster than a CRC."""
_ROW, _ROWS = 513, 32
"""Words of a row, which no page or block is a multiple of, and rows that are added up."""


class Key(NamedTuple):
    """The identity of an entry: what it is of."""

    scope: bytes
    """Fingerprint of the dataset and of the steps that made this form: 16 bytes."""
    sample: int
    word: int


def length(described: Described) -> int:
    """Bytes of an entry of what was described."""
    return BEGIN + _up(len(described.layout)) + described.size


def seal(key: Key, maker: int, described: Described, scratch: Bytes) -> Pieces:
    """The entry. ``maker``: the number of a job. ``scratch``: of at least ``length`` bytes, part of what is returned.

    So is memory of the value that was described: if that changes before it is written, what was written is no entry.
    """
    layout, begin, (place, last) = described.layout, BEGIN + _up(len(described.layout)), described.buffers[-1]
    # Written from where it lies; its sums are of whole words, so it has to begin with one.
    direct = len(last) >= SUMMED and place % 8 == 0
    front = begin + (place if direct else described.size)
    memory = memoryview(scratch)[:front]  # type: ignore[arg-type]  # numpy does not say that its arrays are buffers
    memory[BEGIN:begin] = layout.ljust(begin - BEGIN, b"\0")
    described.write(memory[begin:], but_last=direct)
    rest = last if direct else b""
    head = _head(key, maker, len(layout), described.size, front)
    memory[:BEGIN] = head + _checksum(head, memory[BEGIN:], rest) + _PAD
    return memory, rest


class Unsealed(NamedTuple):
    """The contents of an entry."""

    layout: bytes
    body: memoryview
    maker: int


def unseal(key: Key, found: Bytes) -> Unsealed | None:
    """The contents of an entry; None if this is not that entry, whole and as it was written."""
    if len(found) < BEGIN:
        return None
    memory = memoryview(found)  # type: ignore[arg-type]
    magic, _, _, _, layout, _, _, _, maker, size, front = _HEAD.unpack_from(memory)
    begin = BEGIN + _up(layout)
    end = begin + size
    if magic != MAGIC or end > len(found) or not begin <= front <= end:
        return None
    head = _head(key, maker, layout, size, front)
    if memory[:BEGIN] != head + _checksum(head, memory[BEGIN:front], memory[front:end]) + _PAD:
        return None
    return Unsealed(bytes(memory[BEGIN : BEGIN + layout]), memory[begin:end], maker)


def _head(key: Key, maker: int, layout: int, size: int, front: int) -> bytes:
    return _HEAD.pack(MAGIC, VERSION, form_of(key.word), 0, layout, *key, maker, size, front)


def _up(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def _checksum(head: bytes, front: memoryview, rest: memoryview | bytes) -> bytes:
    """The checksum of what an entry says of itself and of its content."""
    # Of the content a CRC is quick; with the head it is one of this entry alone.
    return hashlib.blake2b(head + _sums(rest, _sums(front, 0)).to_bytes(4, "little"), digest_size=8).digest()


def _sums(content: memoryview | bytes, crc: int) -> int:
    """A CRC of the sums of columns of 64-bit words, 32 rows at a time. Any change shows, and any exchange but of words
    whole rows apart; 25 GB/s. What is small takes a CRC alone.
    """
    if len(content) < SUMMED:
        return zlib.crc32(content, crc)
    words = np.frombuffer(content, np.uint64, len(content) // 8)
    rows = len(words) // _ROW
    whole = rows // _ROWS * _ROWS
    table = words[: rows * _ROW].reshape(rows, _ROW)
    blocks = np.add.reduce(table[:whole].reshape(-1, _ROWS, _ROW), axis=1)
    for each in (blocks, np.add.reduce(table[whole:], axis=0), words[rows * _ROW :], content[8 * len(words) :]):
        crc = zlib.crc32(each, crc)  # type: ignore[arg-type]
    return crc
