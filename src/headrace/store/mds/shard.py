"""The format: an ``index.json`` that lists shards, each with a table of offsets and samples of columns.

A shard begins with the number of its samples and one offset more than that, all uint32. A sample is the sizes, as
uint32, of those columns whose size varies, followed by the columns themselves.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.store.base import Kind, Scalar
from headrace.store.pread import read_at

NUMBERS = {
    "int": "<i8",
    **{f"int{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
}
TEXTS = {"str": str, "str_int": int, "str_float": float}


class Damaged(ValueError):
    """A file that is not what the format says."""


@dataclass(frozen=True)
class Shard:
    """One file of samples."""

    path: Path
    samples: int
    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]

    def where(self, number: int) -> tuple[int, int]:
        """The first byte of a sample, and that after it."""
        begin, end = struct.unpack("<II", read_at(self.path, 4 + 4 * number, 8))
        if not begin <= end:
            raise Damaged(f"{self.path}: sample {number} ends before it begins")
        return begin, end

    def columns(self, number: int, wanted: Sequence[str]) -> dict[str, bytes]:
        """Some columns of a sample; the others are not read."""
        begin, end = self.where(number)
        varying = [name for name, size in zip(self.names, self.sizes, strict=True) if size is None]
        head = struct.unpack(f"<{len(varying)}I", read_at(self.path, begin, 4 * len(varying)))
        lengths = dict(zip(varying, head, strict=True))
        at = begin + 4 * len(varying)
        found = {}
        for name, fixed in zip(self.names, self.sizes, strict=True):
            length = lengths[name] if fixed is None else fixed
            if name in wanted:
                if at + length > end:
                    raise Damaged(f"{self.path}: column {name!r} of sample {number} reaches beyond it")
                found[name] = read_at(self.path, at, length)
            at += length
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
            return np.frombuffer(raw, NUMBERS[encoding], 1)[0].item()  # type: ignore[no-any-return]
        return TEXTS[encoding](raw.decode())  # type: ignore[no-any-return]
    except ValueError as error:
        raise Damaged(f"{raw[:20]!r} is no {encoding}: {error}") from None


def read_index(folder: Path) -> list[Shard]:
    """The shards, in order. Raises ``Damaged`` or ``OSError``."""
    try:
        index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        return [_shard(folder, entry) for entry in index["shards"]]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise Damaged(f"{folder / 'index.json'}: {error}") from error


def _shard(folder: Path, entry: Mapping[str, object]) -> Shard:
    described = dict(entry)
    if described["format"] != "mds":
        raise Damaged(f"shards of format {described['format']!r}; only 'mds' is read")
    raw, packed = described["raw_data"], described.get("zip_data")
    assert isinstance(raw, dict)
    path = folder / str(raw["basename"])
    if not path.resolve().is_relative_to(folder.resolve()):
        raise Damaged(f"{path} lies outside the folder")
    if not path.exists() and isinstance(packed, dict):
        raise Damaged(f"{path.name} is only there compressed, as {packed['basename']}; unpack the shards first")
    names, encodings, sizes = (described[f"column_{what}"] for what in ("names", "encodings", "sizes"))
    shard = Shard(path, int(str(described["samples"])), tuple(names), tuple(encodings), tuple(sizes))  # type: ignore[arg-type]
    if not len(shard.names) == len(shard.encodings) == len(shard.sizes):
        raise Damaged(f"{path.name} has columns without a name, an encoding or a size")
    return shard
