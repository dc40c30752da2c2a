"""Whole files that were compressed, as other tools do it: unpacked to a size that is known beforehand."""

import bz2
import zlib

from headrace.core.errors import MissingDriver
from headrace.store.shards.shard import DamagedShard

INFLATION, ROOM = 200, 1 << 28
"""Bytes that a file may become, for each of its own, and beside those: more is no shard but a trap."""
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
