"""WebDataset: tar files in which files of one name, apart from what follows its first dot, are one sample."""

import json
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from headrace.store.base import Kind, Label, LabelKind
from headrace.store.catalogues.columns import OWN
from headrace.store.shards.places.listing import found_files, looked_at
from headrace.store.shards.recent import Unpacked
from headrace.store.shards.shard import Content, DamagedShard, Each, Listed, Shard, Steps, Wanted
from headrace.store.shards.tar_shards.tar_index import TarIndex, TarPiece, members_of
from headrace.store.url import StoreUrl

BESIDE = ("cls", "json", "txt", "id", "index", "labels", "cap")
"""Extensions that tell about a sample and are not it."""
LARGEST_INDEX = 1 << 26
LARGEST_TOLD = 1 << 24
"""Bytes of a label or of metadata; what is longer is no such thing."""
AT_ONCE = 1024
"""Files of metadata that are asked for together."""


class TarFormat:
    """A folder's ``*.tar``, a pattern or a brace list of names, one tar, or the JSON index of ``wids``.

    Files that share a name up to its first dot are one sample, and that name is its key; where two shards use the same
    name, keys begin with the shard's. ``?data=jpg`` says which file is the payload (else the first that is not known
    to be something else), ``?label=cls`` which one the label: the text of a number in ``.cls``, bytes otherwise.
    Numbers, texts and truth values at the top of ``.json`` files are metadata.
    """

    def __init__(self, url: StoreUrl, names: str) -> None:
        """``names``: which tars, below the place; empty for all of its own."""
        self._data, self._label, self._names = url.options.get("data"), url.options.get("label"), names
        self.identity = f"wds:{names}:data={self._data}:label={self._label}"

    def opened(self, before: Any) -> Steps["TarShards"]:
        """Raises ``DamagedShard``."""
        shards = yield from self._found()
        if isinstance(before, TarShards) and before.files == shards:
            return before
        (found,) = yield [Each([members_of(shard) for shard in shards])]
        return TarShards(shards, TarIndex(shards, found), self._data, self._label)

    def _found(self) -> Steps[list[Listed]]:
        if self._names.endswith(".json"):
            return (yield from looked_at((yield from _indexed(self._names)), "tar files"))
        return (yield from found_files(self._names, "*.tar", "tar files"))


def _indexed(name: str) -> Steps[list[str]]:
    """The names of the tars that an index of ``wids`` lists; what stands before the last slash of a URL is not used."""
    (found,) = yield [Content(name, LARGEST_INDEX)]
    if found is None:
        raise DamagedShard(f"there is no {name}")
    try:
        shards = json.loads(found[1])["shardlist"]
        urls = [each["url"] for each in shards]
        if not all(isinstance(url, str) and url.endswith(".tar") for url in urls):
            raise ValueError("a shard's url is no name of a tar")
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise DamagedShard(f"{name} is no index of wids: {' '.join(str(error).split())[:200]}") from None
    return [url.rpartition("/")[2] if "://" in url or url.startswith("/") else url for url in urls]


@dataclass
class TarShards:
    """All shards of one dataset, in order."""

    files: list[Listed]
    index: TarIndex
    data: str | None
    label: str | None
    shards: Sequence[Shard] = field(init=False)

    def __post_init__(self) -> None:
        if self.label is None and "cls" in self.index.extensions:
            self._label: str | None = "cls"
        else:
            self._label = self.label
        self.labels = {None: LabelKind.NONE, "cls": LabelKind.INTEGER}.get(self._label, LabelKind.BLOB)
        self._told: tuple[dict[str, Kind], dict[str, list[object]]] | None = None
        self.shards = [Shard(*listed, self._spans(number)) for number, listed in enumerate(self.files)]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_told": None}

    def counts(self) -> list[int]:
        starts = self.index.starts
        return [end - first for first, end in pairwise(starts)]

    def keys(self) -> list[str]:
        return list(self.index.keys)

    def places(self) -> Sequence[int]:
        return self.index.order

    def find(self, key: str) -> tuple[int, int] | None:
        number = self.index.find(key)
        if number is None:
            return None
        shard = bisect_right(self.index.starts, number) - 1
        return shard, number - self.index.starts[shard]

    def kinds(self) -> Steps[dict[str, Kind]]:
        told, _ = yield from self._metadata()
        own = {"label": Kind.INTEGER} if self.labels is LabelKind.INTEGER else {}
        return {"key": Kind.TEXT, **own, "bytes": Kind.INTEGER, **told}

    def columns(self, names: Sequence[str]) -> Steps[dict[str, list[Any]]]:
        _, told = yield from self._metadata()
        found: dict[str, list[Any]] = {name: told[name] for name in names if name in told}
        if "bytes" in names:
            found["bytes"] = [
                None if piece is None else piece.size for piece in map(self._payload_of, self.index.order)
            ]
        if "label" in names:
            contents = yield from self._contents("cls")
            found["label"] = [self._number(number, contents.get(number)) for number in self.index.order]
        return found

    def table(self, shard: int) -> None:
        return None

    def piece(self, shard: int, position: int, table: Any) -> Wanted:
        listed = self.files[shard]
        begin, end = self._span(self.index.starts[shard] + position)
        if begin is None:
            self._pieces(shard, position)  # which says what is missing
        return Wanted(listed.object, begin or 0, end, listed.etag)

    def is_block(self, shard: int) -> bool:
        return False

    def is_whole(self, shard: int) -> bool:
        return False

    def room(self, shard: int) -> int:
        return self.shards[shard].size

    def block(self, shard: int, raw: bytes | memoryview, begin: int, table: Any) -> Unpacked:
        return Unpacked(raw, len(raw))

    def row(self, shard: int, position: int, piece: Any, table: Any) -> tuple[bytes | memoryview, Label]:
        payload, label = self._pieces(shard, position)
        first = min(each.offset for each in (payload, label) if each is not None)
        content = piece[payload.offset - first : payload.offset - first + payload.size]
        if label is None:
            return content, None
        raw = bytes(piece[label.offset - first : label.offset - first + label.size])
        return content, _integer(raw) if self.labels is LabelKind.INTEGER else raw

    def _pieces(self, shard: int, position: int) -> tuple[TarPiece, TarPiece | None]:
        """Payload and label. Raises ``DamagedShard`` where one is missing."""
        files = self.index.files(self.index.starts[shard] + position)
        extension = self._payload(files)
        if extension is None:
            raise DamagedShard("it has no payload" if self.data is None else f"it has no .{self.data} file")
        if self._label is not None and self._label not in files:
            raise DamagedShard(f"it has no .{self._label} file")
        return files[extension], None if self._label is None else files[self._label]

    def _payload(self, files: dict[str, TarPiece]) -> str | None:
        if self.data is not None:
            return self.data if self.data in files else None
        others = (name for name in files if name not in BESIDE and name != self.label)
        return next(others, next((name for name in files if name not in ("cls", self.label)), None))

    def _payload_of(self, number: int) -> TarPiece | None:
        files = self.index.files(number)
        extension = self._payload(files)
        return None if extension is None else files[extension]

    def _span(self, number: int) -> tuple[int | None, int]:
        """The span from the beginning of payload and label to the end of both; None where one is missing."""
        files = self.index.files(number)
        names = [self._payload(files), *([] if self._label is None else [self._label])]
        found = [files[name] for name in names if name in files]
        if len(found) < len(names):
            return None, 0
        return min(each.offset for each in found), max(each.offset + each.size for each in found)

    def _spans(self, shard: int) -> "array[int]":
        """The offsets of a shard's samples; of one that has no payload or no label, nothing."""
        found = array("Q")
        for number in range(self.index.starts[shard], self.index.starts[shard + 1]):
            begin, end = self._span(number)
            found.extend((begin or 0, end))
        return found

    def _metadata(self) -> Steps[tuple[dict[str, Kind], dict[str, list[object]]]]:
        """The kinds and values of the samples' JSON, in the order of the keys; read once."""
        if self._told is None:
            contents: dict[int, bytes] = {}
            if "json" in self.index.extensions and "json" not in (self.data, self.label):
                contents = yield from self._contents("json")
            told = [self._json(number, contents.get(number)) for number in self.index.order]
            kinds: dict[str, Kind] = {}
            values: dict[str, list[object]] = {}
            for name in dict.fromkeys(name for row in told for name in row if name not in OWN):
                values[name] = [row.get(name) for row in told]
                kinds[name] = _kind(values[name])
                if kinds[name] is Kind.TEXT:
                    values[name] = [None if value is None else str(value) for value in values[name]]
            self._told = kinds, values
        return self._told

    def _json(self, number: int, content: bytes | None) -> dict[str, object]:
        if content is None:
            return {}
        try:
            told = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise DamagedShard(f"the .json of sample {self._name(number)!r} is none: {error}") from None
        if not isinstance(told, dict):
            return {}
        return {name: value for name, value in told.items() if isinstance(value, (int, float, str, bool))}

    def _number(self, number: int, content: bytes | None) -> int:
        if content is None:
            raise DamagedShard(f"sample {self._name(number)!r} has no .cls file")
        try:
            return _integer(content)
        except DamagedShard as error:
            raise DamagedShard(f"sample {self._name(number)!r}: {error}") from None

    def _name(self, number: int) -> str:
        return self.index.keys[self.index.order.index(number)]

    def _contents(self, extension: str) -> Steps[dict[int, bytes]]:
        """The content of each sample's file with that extension, by the sample's number."""
        (parts,) = yield [Each([self._contents_of(shard, extension) for shard in range(len(self.files))])]
        return {number: content for part in parts for number, content in part.items()}

    def _contents_of(self, shard: int, extension: str) -> Steps[dict[int, bytes]]:
        found: dict[int, bytes] = {}
        wanted: list[tuple[int, TarPiece]] = []
        for number in range(self.index.starts[shard], self.index.starts[shard + 1]):
            piece = self.index.files(number).get(extension)
            known = None if piece is None else self.index.told(shard, piece.offset)
            if known is not None:
                found[number] = known
            elif piece is not None:
                if piece.size > LARGEST_TOLD:
                    raise DamagedShard(f"the .{extension} of sample {self._name(number)!r} has {piece.size} bytes")
                wanted.append((number, piece))
        listed = self.files[shard]
        for first in range(0, len(wanted), AT_ONCE):
            part = wanted[first : first + AT_ONCE]
            contents = yield [
                Wanted(listed.object, piece.offset, piece.offset + piece.size, listed.etag) for _, piece in part
            ]
            found |= {number: bytes(content) for (number, _), content in zip(part, contents, strict=True)}
        return found


def _integer(raw: bytes) -> int:
    try:
        label = int(raw)
    except ValueError:
        label = 1 << 63  # refused below, with those that are too large
    if not -(1 << 63) <= label < 1 << 63:
        raise DamagedShard(f"its label is no number of 64 bits: {raw[:40]!r}")
    return label


def _kind(values: Sequence[object]) -> Kind:
    types = {type(value) for value in values if value is not None}
    if types == {bool}:
        return Kind.TRUTH
    if any(type(value) is int and not -(1 << 63) <= value < 1 << 63 for value in values):
        return Kind.TEXT
    if types == {int}:
        return Kind.INTEGER
    return Kind.NUMBER if types <= {int, float} else Kind.TEXT
