"""Entries as they lie in memory, on a server or a disk: each names itself, and is under a checksum.

    magic 4 | version 1 | form 1 | unused 2 | layout bytes 4 | unused 4 | scope 16 | sample 8 | word 8 | maker 8 |
    body bytes 8 | checksum 8 | to 128 | layout, to a multiple of 64 | body, to a multiple of 64

Whoever reads one says what it must be: an entry of another sample, form, data or generation, a part of one, and bytes
that were changed are none.
"""

import hashlib
import struct
import zlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.cache.codec import Described
from headrace.cache.words import form_of

Bytes = NDArray[np.uint8]
_HEAD = struct.Struct("<4sBBHI4x16sQQQQ")
_PAD = bytes(56)
MAGIC, VERSION, ALIGN, BEGIN = b"hrce", 4, 64, 128
SUMMED = 1 << 14
"""Bytes from which on sums are faster than a CRC."""
_ROW, _ROWS = 513, 32
"""Words of a row, which no page or block is a multiple of, and rows that are added up."""


class Key(NamedTuple):
    """What an entry is of."""

    scope: bytes
    """Fingerprint of the dataset and of the steps that made this form: 16 bytes."""
    sample: int
    word: int


def length(described: Described) -> int:
    """Bytes of an entry of what was described."""
    return BEGIN + _up(len(described.layout)) + _up(described.size)


def seal(key: Key, maker: int, described: Described, target: Bytes) -> None:
    """Write the entry into ``target``, which has ``length`` bytes. ``maker``: the number of a job."""
    layout, begin = described.layout, BEGIN + _up(len(described.layout))
    memory = memoryview(target)  # type: ignore[arg-type]  # numpy does not say that its arrays are buffers
    memory[BEGIN : BEGIN + len(layout)] = layout
    target[BEGIN + len(layout) : begin] = 0
    described.write(memory[begin : begin + described.size])
    target[begin + described.size :] = 0
    head = _head(key, maker, len(layout), described.size)
    memory[:BEGIN] = head + _checksum(head, target[BEGIN:]) + _PAD


class Unsealed(NamedTuple):
    """What is in an entry."""

    layout: bytes
    body: memoryview
    maker: int


def unseal(key: Key, found: Bytes) -> Unsealed | None:
    """What is in it; None if this is not that entry, whole and as it was written."""
    if len(found) < BEGIN:
        return None
    memory = memoryview(found)  # type: ignore[arg-type]
    magic, _, _, _, layout, _, _, _, maker, size = _HEAD.unpack_from(memory)
    begin = BEGIN + _up(layout)
    if magic != MAGIC or begin + _up(size) > len(found):
        return None
    head = _head(key, maker, layout, size)
    if memory[:BEGIN] != head + _checksum(head, found[BEGIN : begin + _up(size)]) + _PAD:
        return None
    return Unsealed(bytes(memory[BEGIN : BEGIN + layout]), memory[begin : begin + size], maker)


def _head(key: Key, maker: int, layout: int, size: int) -> bytes:
    return _HEAD.pack(MAGIC, VERSION, form_of(key.word), 0, layout, *key, maker, size)


def _up(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def _checksum(head: bytes, content: Bytes) -> bytes:
    """Of what an entry says of itself and of its content: a CRC of the sums of columns of 64-bit words, 32 rows at a
    time. Any change shows, and any exchange but of words whole rows apart; 25 GB/s. What is small takes a CRC alone.
    """
    crc = 0
    if len(content) < SUMMED:
        crc = zlib.crc32(content)  # type: ignore[arg-type]
    else:
        words = content.view(np.uint64)
        rows = len(words) // _ROW
        whole = rows // _ROWS * _ROWS
        table = words[: rows * _ROW].reshape(rows, _ROW)
        blocks = np.add.reduce(table[:whole].reshape(-1, _ROWS, _ROW), axis=1)
        for each in (blocks, np.add.reduce(table[whole:], axis=0), words[rows * _ROW :]):
            crc = zlib.crc32(each, crc)  # type: ignore[arg-type]
    return hashlib.blake2b(head + crc.to_bytes(4, "little"), digest_size=8).digest()
