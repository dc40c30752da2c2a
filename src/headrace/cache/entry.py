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
_HEAD = struct.Struct("<4sBBHI4x16sQQQQQ56x")
_CHECKSUM = 64
MAGIC, VERSION, ALIGN, BEGIN = b"hrce", 3, 64, 128
SUMMED = 1 << 15
"""Bytes from which on sums are faster than a CRC."""
_ROW = 128
_ODD = np.uint64(0x9E3779B97F4A7C15)


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
    head = _head(key, maker, len(layout), described.size, 0)
    memory[:BEGIN] = _head(key, maker, len(layout), described.size, _checksum(head, target[BEGIN:]))


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
    magic, _, _, _, layout, _, _, _, maker, size, checksum = _HEAD.unpack_from(memory)
    begin = BEGIN + _up(layout)
    if magic != MAGIC or begin + _up(size) > len(found):
        return None
    head = _head(key, maker, layout, size, 0)
    if memory[:_CHECKSUM] != head[:_CHECKSUM] or any(memory[_CHECKSUM + 8 : BEGIN]):
        return None
    if checksum != _checksum(head, found[BEGIN : begin + _up(size)]):
        return None
    return Unsealed(bytes(memory[BEGIN : BEGIN + layout]), memory[begin : begin + size], maker)


def _head(key: Key, maker: int, layout: int, size: int, checksum: int) -> bytes:
    return _HEAD.pack(MAGIC, VERSION, form_of(key.word), 0, layout, *key, maker, size, checksum)


def _up(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def _checksum(head: bytes, content: Bytes) -> int:
    """Of what an entry says of itself and of its content: sums of its rows and columns of 64-bit words, so that any
    change within a row shows, and any exchange of words; 25 GB/s. What is small takes a CRC instead.
    """
    if len(content) < SUMMED:
        summed = zlib.crc32(content).to_bytes(8, "little")  # type: ignore[arg-type]
    else:
        words = content.view(np.uint64)
        whole = len(words) // _ROW * _ROW
        table = words[:whole].reshape(-1, _ROW)
        rows, columns = table.sum(axis=1), table.sum(axis=0)
        weights = _weights(max(_ROW, len(rows)))
        summed = b"".join(
            (
                (rows @ weights[: len(rows)]).tobytes(),
                (columns @ weights[:_ROW]).tobytes(),
                words[whole:].tobytes(),
            )
        )
    return int.from_bytes(hashlib.blake2b(head + summed, digest_size=8).digest(), "little")


_known = np.empty(0, np.uint64)


def _weights(count: int) -> NDArray[np.uint64]:
    """Different odd numbers."""
    global _known  # noqa: PLW0603  (computed once)
    if len(_known) < count:
        _known = (np.arange(2 * count, dtype=np.uint64) * np.uint64(2) + np.uint64(1)) * _ODD
    return _known
