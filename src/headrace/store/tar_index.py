"""Where the files of all samples lie, in a few arrays: kept by every process that reads, so it is small."""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from headrace.store.keys import Keys
from headrace.store.tar import BadTar, members


class Piece(NamedTuple):
    """Where a file of a sample lies."""

    shard: int
    offset: int
    size: int


class TarIndex:
    """The samples of some tar files by key: about 40 bytes for each file, and the bytes of the keys.

    Keys are the names up to the first dot; where two shards use the same name, they begin with the shard's.
    """

    def __init__(self, shards: Sequence[Path]) -> None:
        """Reads all headers. Raises ``BadTar`` with the name of the shard."""
        self.shards = tuple(shards)
        self._stamps = _stamps(shards)
        found: dict[tuple[int, str], dict[int, tuple[int, int]]] = {}
        extensions: dict[str, int] = {}
        for number, path in enumerate(shards):
            try:
                for key, extension, offset, size in members(path):
                    kind = extensions.setdefault(extension, len(extensions))
                    files = found.setdefault((number, key), {})
                    if kind in files:
                        raise BadTar(f"two of its files are .{extension} of sample {key!r}")
                    files[kind] = offset, size
            except (BadTar, OSError) as error:
                raise BadTar(f"{path} cannot be read as a plain tar file: {error}") from error
        unique = len({key for _, key in found}) == len(found)
        named = sorted((key if unique else f"{shards[number].stem}/{key}", (number, key)) for number, key in found)
        self.extensions = tuple(extensions)
        """Of any file."""
        self.keys = Keys(key for key, _ in named)
        """All of them, sorted."""
        self._shard = array("I", (number for _, (number, _) in named))
        self._upto = array("Q", accumulate(len(found[place]) for _, place in named))
        self._kinds, self._offsets, self._sizes = array("I"), array("Q"), array("Q")
        for _, place in named:
            for kind, (offset, size) in found[place].items():
                self._kinds.append(kind)
                self._offsets.append(offset)
                self._sizes.append(size)

    def is_shard_current(self, number: int) -> bool:
        """Whether one of them is; what lies at its offsets would be anything else."""
        return self._stamps[number] == stamp_of(self.shards[number])

    def is_current(self) -> bool:
        """Whether the shards are those that were read."""
        return self._stamps == _stamps(self.shards)

    def find(self, key: str) -> dict[str, Piece] | None:
        """The files of a sample by extension, in their order in the shard."""
        number = bisect_left(self.keys, key)
        return self.files(number) if number < len(self.keys) and self.keys[number] == key else None

    def files(self, number: int) -> dict[str, Piece]:
        """As ``find``, by place."""
        shard = self._shard[number]
        places = range(self._upto[number - 1] if number else 0, self._upto[number])
        return {self.extensions[self._kinds[at]]: Piece(shard, self._offsets[at], self._sizes[at]) for at in places}


def _stamps(shards: Sequence[Path]) -> tuple[tuple[int, int], ...]:
    return tuple(map(stamp_of, shards))


def stamp_of(path: Path) -> tuple[int, int]:
    """A file's size and time."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns
