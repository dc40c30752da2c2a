"""The places of the files of all samples, in a few arrays: kept by every process that reads, so it is small."""

import json
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from headrace.store.catalogues.keys import Keys
from headrace.store.shards.shard import DamagedShard, Listed, Recall, Remember, Steps, Wanted
from headrace.store.shards.tar_shards.tar import BadTar, TarMember, walk

PART = 1 << 22
"""Bytes of a shard that are read at once where all of it is read for its headers."""
NEAR, AHEAD = 1 << 14, 1 << 21
"""Bytes that are read of it for a header, where the next one is at least ``AHEAD`` bytes away on average."""
TOLD = frozenset({"cls", "json"})
LONGEST_TOLD = 1 << 16
"""Extensions and size of files whose content is kept with the index, since it is at hand when that is made."""


class TarPiece(NamedTuple):
    """The place of a file of a sample, in its shard."""

    offset: int
    size: int


class ShardMembers(NamedTuple):
    """The files of samples in one shard, in their order, and the content of some by their offset."""

    members: list[TarMember]
    told: dict[int, bytes]


def members_of(listed: Listed) -> Steps[ShardMembers]:
    """Reads the headers of a shard: one by one where they are far apart, else all of it. Raises ``BadTar``.

    Where somebody keeps what was made, it is made once, and with the content of labels and metadata.
    """
    (kept,) = yield [Recall(listed)]
    found = None if not kept else _read(kept, listed.size)
    if found is None:
        try:
            found = yield from _walked(listed, remembered=kept is not None)
        except DamagedShard as error:
            raise BadTar(f"{listed.object} cannot be read as a plain tar file: {error}") from error
        if kept is not None:
            yield [Remember(listed, _written(found))]
    return found


def _walked(listed: Listed, *, remembered: bool) -> Steps[ShardMembers]:
    walking = walk(listed.size)
    found = ShardMembers([], {})
    first, buffer = 0, memoryview(b"")
    item = next(walking, None)
    while item is not None:
        wanted = item
        if isinstance(wanted, TarMember):
            found.members.append(wanted)
            if not (remembered and wanted.extension in TOLD and wanted.size <= LONGEST_TOLD):
                item = next(walking, None)
                continue
        end = wanted.offset + wanted.size
        if not first <= wanted.offset <= end <= first + len(buffer):
            first = wanted.offset
            upto = min(listed.size, max(end, first + (_ahead(found, first) if remembered else NEAR)))
            (raw,) = yield [Wanted(listed.object, first, upto, listed.etag)]
            buffer = memoryview(raw)
        content = bytes(buffer[wanted.offset - first : end - first])
        if isinstance(wanted, TarMember):
            found.told[wanted.offset] = content
            item = next(walking, None)
        else:
            try:
                item = walking.send(content)
            except StopIteration:
                item = None
    return found


def _ahead(found: ShardMembers, at: int) -> int:
    """Bytes to read behind ``at``: headers that are far apart are read singly, once that is known."""
    return NEAR if found.members and at // len(found.members) >= AHEAD else PART


def _written(found: ShardMembers) -> bytes:
    told = {str(offset): content.decode(errors="surrogateescape") for offset, content in found.told.items()}
    return zlib.compress(json.dumps({"members": found.members, "told": told}).encode(), 1)


def _read(kept: bytes, size: int) -> ShardMembers | None:
    """The members that were kept; None where that makes no sense."""
    try:
        values: Any = json.loads(zlib.decompressobj().decompress(kept, 1 << 30))
        members = [TarMember(str(key), str(kind), int(at), int(size)) for key, kind, at, size in values["members"]]
        told = {int(offset): text.encode(errors="surrogateescape") for offset, text in values["told"].items()}
        for each in members:
            if not 0 <= each.offset <= each.offset + each.size <= size:
                return None
    except (zlib.error, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return ShardMembers(members, told)


class TarIndex:
    """The samples of some tar files by key: about 40 bytes for each file, and the bytes of the keys.

    Keys are the names up to the first dot; where two shards use the same name, they begin with the shard's.
    """

    def __init__(self, shards: Sequence[Listed], found: Sequence[ShardMembers]) -> None:
        """Raises ``BadTar`` with the name of the shard."""
        extensions: dict[str, int] = {}
        self._kinds, self._offsets, self._sizes = array("I"), array("Q"), array("Q")
        self._upto = array("Q")  # of the files, behind the last one of each sample
        self._told = [each.told for each in found]
        names: list[tuple[int, str]] = []
        counts: list[int] = []
        for number, (listed, shard) in enumerate(zip(shards, found, strict=True)):
            samples: dict[str, dict[int, tuple[int, int]]] = {}
            for key, extension, offset, size in shard.members:
                files = samples.setdefault(key, {})
                if files.setdefault(extensions.setdefault(extension, len(extensions)), (offset, size)) != (
                    offset,
                    size,
                ):
                    told = f"two of its files are .{extension} of sample {key!r}"
                    raise BadTar(f"{listed.object} cannot be read as a plain tar file: {told}")
            counts.append(len(samples))
            for key, files in samples.items():
                names.append((number, key))
                self._kinds.extend(files)
                self._offsets.extend(offset for offset, _ in files.values())
                self._sizes.extend(size for _, size in files.values())
                self._upto.append(len(self._kinds))
        self.starts = array("Q", accumulate(counts, initial=0))
        """The number of the first sample of each shard, and of all samples."""
        self.extensions = tuple(extensions)
        """Of any file."""
        unique = len({key for _, key in names}) == len(names)
        stems = [PurePosixPath(listed.object).stem for listed in shards]
        shown = [key if unique else f"{stems[number]}/{key}" for number, key in names]
        order = sorted(range(len(shown)), key=shown.__getitem__)
        self.keys = Keys(shown[number] for number in order)
        """All of them, sorted."""
        self.order = array("Q", order)
        """The number of the sample with each key: samples are numbered as they lie in the shards."""

    def __getstate__(self) -> dict[str, Any]:
        """The state without contents: who reads rows in another process has no use for them."""
        return {**self.__dict__, "_told": [{} for _ in self._told]}

    def find(self, key: str) -> int | None:
        """The number of a sample."""
        rank = bisect_left(self.keys, key)
        return self.order[rank] if rank < len(self.keys) and self.keys[rank] == key else None

    def files(self, number: int) -> dict[str, TarPiece]:
        """The files of a sample by extension, in their order in the shard."""
        places = range(self._upto[number - 1] if number else 0, self._upto[number])
        return {self.extensions[self._kinds[at]]: TarPiece(self._offsets[at], self._sizes[at]) for at in places}

    def told(self, shard: int, offset: int) -> bytes | None:
        """The content of a file, where it is known without reading it again."""
        return self._told[shard].get(offset)
