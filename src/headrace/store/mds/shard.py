"""The format: an ``index.json`` that lists shards, each with a table of offsets and samples of columns.

A shard begins with the number of its samples and one offset more than that, all uint32. A sample is the sizes, as
uint32, of those columns whose size varies, followed by the columns themselves.
"""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.store.base import Kind, Scalar
from headrace.store.files import read_at

NUMBERS = {
    "int": "<i8",
    **{f"int{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
}
TEXTS = {"str": str, "str_int": int, "str_float": float}


class DamagedShard(ValueError):
    """A file that is not what the format says."""


@dataclass(frozen=True)
class Shard:
    """One file of samples."""

    path: Path
    samples: int
    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]

    def kinds(self) -> Iterator[tuple[str, Kind | None]]:
        """What each column holds; None where that is no metadata."""
        return zip(self.names, map(kind_of, self.encodings), strict=True)

    def where(self, number: int) -> tuple[int, int]:
        """The first byte of a sample, and that after it."""
        begin, end = struct.unpack("<II", read_at(self.path, 4 + 4 * number, 8))
        if not begin <= end:
            raise DamagedShard(f"sample {number} of {self.path.name!r} ends before it begins")
        return begin, end

    def columns(self, number: int, wanted: Sequence[str]) -> dict[str, bytes]:
        """Some columns of a sample; the others are not read."""
        begin, end = self.where(number)
        varying = [name for name, size in zip(self.names, self.sizes, strict=True) if size is None]
        at = begin + 4 * len(varying)
        if at > end:
            raise DamagedShard(f"sample {number} of {self.path.name!r} ends within its sizes")
        head = struct.unpack(f"<{len(varying)}I", read_at(self.path, begin, 4 * len(varying)))
        lengths = dict(zip(varying, head, strict=True))
        found = {}
        for name, fixed in zip(self.names, self.sizes, strict=True):
            length = lengths[name] if fixed is None else fixed
            if at + length > end:
                raise DamagedShard(f"column {name!r} of sample {number} of {self.path.name!r} reaches beyond it")
            if name in wanted:
                found[name] = read_at(self.path, at, length)
            at += length
        if at != end:
            raise DamagedShard(f"sample {number} of {self.path.name!r} is longer than its columns")
        return found


def kind_of(encoding: str) -> Kind | None:
    """What a column holds, if that is metadata."""
    if encoding in NUMBERS:
        return Kind.NUMBER if encoding.startswith("float") else Kind.INTEGER
    return {"str": Kind.TEXT, "str_int": Kind.INTEGER, "str_float": Kind.NUMBER}.get(encoding)


def decoded(raw: bytes, encoding: str) -> Scalar:
    """A value of a column for which ``kind_of`` has an answer."""
    try:
        if encoding in NUMBERS:
            if len(raw) != np.dtype(NUMBERS[encoding]).itemsize:
                raise ValueError(f"it has {len(raw)} bytes")
            value: Scalar = np.frombuffer(raw, NUMBERS[encoding])[0].item()
        else:
            value = TEXTS[encoding](raw.decode())
    except ValueError as error:
        raise DamagedShard(f"{raw[:20]!r} is no {encoding}: {error}") from None
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise DamagedShard(f"{raw[:20]!r} is a number of more than 64 bits")
    return value


def read_index(folder: Path) -> list[Shard]:
    """The shards, in order. Raises ``DamagedShard`` or ``OSError``. A shard must hold its table of offsets."""
    path = folder / "index.json"
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["shards"]
        if not isinstance(entries, list):
            raise DamagedShard("there is no list of shards")
        return [_shard(folder, entry) for entry in entries]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedShard(f"{path}: {' '.join(str(error).split()) or type(error).__name__}") from error


def _shard(folder: Path, described: Mapping[str, Any]) -> Shard:
    if described["format"] != "mds":
        raise DamagedShard(f"shards of format {described['format']!r}; only 'mds' is read")
    name, packed = described["raw_data"]["basename"], described.get("zip_data")
    if not isinstance(name, str):
        raise DamagedShard(f"{name!r} is no name of a file")
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise DamagedShard(f"{name!r} lies outside the folder")
    if not path.exists() and isinstance(packed, dict):
        raise DamagedShard(f"{name!r} is only there compressed, as {packed['basename']!r}; unpack the shards first")
    if not path.is_file():
        raise DamagedShard(f"there is no file {name!r}")
    names, encodings, sizes = (described[f"column_{what}"] for what in ("names", "encodings", "sizes"))
    if not (isinstance(names, list) and isinstance(encodings, list) and isinstance(sizes, list)):
        raise DamagedShard(f"{name!r} has no columns")
    if not len(set(names)) == len(names) == len(encodings) == len(sizes):
        raise DamagedShard(f"{name!r} has columns without a name of their own, an encoding or a size")
    if not all(isinstance(each, str) for each in (*names, *encodings)):
        raise DamagedShard(f"{name!r} has columns whose name or encoding is no text")
    if not all(each is None or (type(each) is int and each >= 0) for each in sizes):
        raise DamagedShard(f"{name!r} has columns whose size is no number")
    samples = described["samples"]
    if type(samples) is not int or not 0 <= samples <= path.stat().st_size // 4 - 2:
        raise DamagedShard(f"{name!r} is too short for {samples!r:.40} samples")
    return Shard(path, samples, tuple(names), tuple(encodings), tuple(sizes))
