"""Whole files that were compressed, as other tools do it: unpacked to a size that is known beforehand."""

import bz2
import zlib

from headrace.core.errors import MissingDriver
from headrace.store.shards.shard import DamagedShard

INFLATION, ROOM = 200, 1 << 28
"""Bytes that a file may become, for each of its own, and beside those: more is no shard but a trap."""
DENSEST = 16
"""Samples for each byte of a compressed file: more are none, and each has a key before anything else is read of it."""
_ARROW = {"zstd": "zstd", "br": "brotli", "snappy": "snappy"}


def unpacked(packed: bytes | memoryview, algorithm: str, size: int) -> bytes | memoryview:
    """The content, of exactly ``size`` bytes. Raises ``DamagedShard``, or ``MissingDriver`` where pyarrow is needed."""
    if not 0 <= size <= ROOM + INFLATION * len(packed):
        raise DamagedShard(f"{len(packed)} bytes are to become {size}")
    if algorithm not in {"gz", "bz2", *_ARROW}:
        raise DamagedShard(f"the compression {algorithm!r} is not known here")
    try:
        found = (
            _by_arrow(packed, _ARROW[algorithm], size) if algorithm in _ARROW else _by_python(packed, algorithm, size)
        )
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise DamagedShard(f"it cannot be unpacked ({algorithm}): {error}") from None
    if len(found) != size:
        raise DamagedShard(f"it becomes {len(found)} bytes, and its index says {size}")
    return found


def zstd_size(packed: bytes | memoryview) -> int:
    """The size that a zstd frame unpacks to, as its head says. Raises ``DamagedShard`` where it does not."""
    head = bytes(packed[:18])
    if len(head) < 6 or head[:4] != b"\x28\xb5\x2f\xfd":
        raise DamagedShard(f"{head[:4]!r} begins no zstd frame")
    flags = head[4]
    alone = flags >> 5 & 1  # no window is given then, and the size always
    at = 5 + (1 - alone) + (0, 1, 2, 4)[flags & 3]
    width = (1 if alone else 0, 2, 4, 8)[flags >> 6]
    if not width or at + width > len(head):
        raise DamagedShard("it does not say how large it becomes")
    return int.from_bytes(head[at : at + width], "little") + (256 if width == 2 else 0)


def _by_python(packed: bytes | memoryview, algorithm: str, size: int) -> bytes:
    unpacking = bz2.BZ2Decompressor() if algorithm == "bz2" else zlib.decompressobj(wbits=31)
    found = unpacking.decompress(packed, size + 1)
    if len(found) <= size and not unpacking.eof:
        raise ValueError("it ends too early")
    return found


def _by_arrow(packed: bytes | memoryview, codec: str, size: int) -> memoryview:
    try:
        import pyarrow as pa  # noqa: PLC0415  (an extra)
    except ImportError:
        raise MissingDriver(f"files compressed with {codec} need pyarrow: pip install 'headrace[arrow]'") from None
    return memoryview(pa.decompress(packed, decompressed_size=size, codec=codec))
