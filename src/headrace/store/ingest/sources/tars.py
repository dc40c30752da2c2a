"""WebDataset: tar files in which the members of one name, apart from what follows its first dot, are one sample.

The store ``wds://`` reads such tars by key, from an index of all of them. Here they are read in a stream, and a sample
or a shard that is broken is a failure of its own.
"""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from glob import glob
from itertools import product
from pathlib import Path
from typing import Any

from headrace.core.errors import IngestError
from headrace.store.catalogues.columns import CLASS
from headrace.store.ingest.source_options import ReadOptions
from headrace.store.ingest.sources.fields import FieldShape
from headrace.store.ingest.sources.item_source import IngestSource, Item, Loaded, SourceShape, Where
from headrace.store.shards.tar_shards.tar import BadTar, members

CLS, JSON, TEXT = "cls", "json", "txt"
LONGEST = 1 << 20
"""Bytes of a label or of metadata; what is longer is no such thing."""
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


@dataclass
class _TarSample:
    """A sample: where each of its members begins, and how long it is, by extension."""

    shard: Path
    key: str
    members: dict[str, tuple[int, int]] = field(default_factory=dict)
    twice: str | None = None
    """An extension that two of its members have."""


class Tars(IngestSource):
    """``shard.tar``, a folder of them, ``shard-{000..041}.tar`` or ``shard-*.tar``.

    The sample is the member with the extension ``payload``, or the first that is none of ``cls``, ``json`` and ``txt``.
    ``cls`` (or ``label``) is the label, a number or the name of a class; ``label_files`` an extension whose members are
    the labels themselves. The plain values in ``json`` and the text in ``txt`` are metadata.
    """

    def __init__(self, text: str, reading: ReadOptions) -> None:
        reading.refuse(("root", "extensions", "path_column"), "tars")
        self.name = text
        self.where = Where(str(Path(text).absolute()), threads=True)
        self._reading = reading
        self._label = None if reading.label_files else reading.label or CLS
        self._shards = _shards(text)
        self._known: FieldShape | None = None

    def shape(self) -> SourceShape:
        return self._described().shape()

    def items(self) -> Iterator[Item]:
        known = self._described()
        for shard in self._shards:
            try:
                for group in _groups(shard):
                    yield self._item(group, known)
            except (BadTar, OSError) as error:
                yield Item(shard.name, None, problem=f"the tar cannot be read to its end: {error}")

    def load(self, item: Item) -> Loaded:
        shard, payload, label = item.place
        with open(shard, "rb") as file:  # noqa: PTH123  (a text, as it was sent)
            content, name = _read(file, payload[:2]), f"x.{payload[2]}"
            return Loaded(content, None if label is None else _read(file, label), name)

    def _item(self, group: _TarSample, known: FieldShape) -> Item:
        ident = f"{group.shard.name}/{group.key}"
        try:
            if group.twice is not None:
                raise ValueError(f"it has two members .{group.twice}")
            place, fields = (str(group.shard), *self._places(group)), _fields(group, self._label)
            if known.label is not None and known.label not in fields:
                raise ValueError(f"it has no label: no member .{known.label}")
            if known.classes is not None:  # the label is its class, whatever else is called so
                fields.pop(CLASS, None)
            return known.item(ident, place, fields)
        except (ValueError, OSError) as error:
            return Item(ident, None, problem=str(error))

    def _places(self, group: _TarSample) -> tuple[tuple[int, int, str], tuple[int, int] | None]:
        """The places of the sample and of a label that is a file. Raises ``ValueError`` where one is not there."""
        files = self._reading.label_files
        apart = {JSON, TEXT, CLS, self._label, files}
        wanted = self._reading.payload or next((each for each in group.members if each not in apart), None)
        if wanted is None or wanted not in group.members:
            raise ValueError(f"it has no member .{wanted or '*'}, only .{', .'.join(group.members)}")
        if files is not None and files not in group.members:
            raise ValueError(f"it has no member .{files}")
        return (*group.members[wanted], wanted), None if files is None else group.members[files]

    def _described(self) -> FieldShape:
        if self._known is None:
            samples = _readable(self._shards, self._label)
            self._known = FieldShape(self.name, self._reading, samples, self._label or CLS, called="metadata")
        return self._known


def _shards(text: str) -> list[Path]:
    path = Path(text)
    if path.is_dir():
        found = sorted(path.glob("*.tar"))
    else:
        ranges = [
            [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
            for first, last in _RANGE.findall(text)
        ]
        pieces = _RANGE.sub("\0", text).split("\0")
        named = ["".join(map("".join, zip(pieces, (*each, ""), strict=True))) for each in product(*ranges)]
        found = [Path(each) for name in named for each in (sorted(glob(name)) or [name])]  # noqa: PTH207  (absolute too)
    missing = [str(each) for each in found if not each.is_file()]
    if missing or not found:
        raise IngestError(f"{text}: there is no file {missing[0]}" if missing else f"{text}: there is no tar in it")
    return found


def _readable(shards: list[Path], label: str | None) -> Iterator[dict[str, Any]]:
    """The fields of every sample; none of one that cannot be read, which is told when it is its turn."""
    for shard in shards:
        with suppress(BadTar, OSError):
            for group in _groups(shard):
                try:
                    fields = _fields(group, label)
                except (ValueError, OSError):
                    fields = {}
                yield fields


def _groups(shard: Path) -> Iterator[_TarSample]:
    """Members of one sample stand together. Only headers are read. One of which a part is cut off is none."""
    group: _TarSample | None = None
    try:
        for key, extension, offset, size in members(shard):
            if group is None or group.key != key:
                if group is not None:
                    yield group
                group = _TarSample(shard, key)
            group.twice = extension if extension in group.members else group.twice
            group.members[extension] = offset, size
    except BadTar as error:
        if group is not None and error.within not in (None, group.key):
            yield group
        raise
    if group is not None:
        yield group


def _fields(group: _TarSample, label: str | None) -> dict[str, Any]:
    """The label, and the metadata: plain values of the JSON member, and the text. Raises ``ValueError``."""
    small = [each for each in (label, JSON, TEXT) if each is not None and each in group.members]
    if not small:
        return {}
    found: dict[str, Any] = {}
    with group.shard.open("rb") as file:
        for each in small:
            text = _read(file, group.members[each], LONGEST).decode()
            if each == JSON and each != label:
                try:
                    values = json.loads(text)
                except RecursionError:
                    raise ValueError("its metadata are nested too deeply") from None
                if isinstance(values, dict):
                    plain = {
                        name: value for name, value in values.items() if isinstance(value, (str, int, float, bool))
                    }
                    found.update(plain)
            else:
                found[each] = text.strip()
    return found


def _read(file: Any, place: tuple[int, int], most: int | None = None) -> bytes:
    offset, size = place
    if most is not None and size > most:
        raise ValueError(f"a label or metadata of {size} bytes is too long")
    file.seek(offset)
    content = bytes(file.read(size))
    if len(content) < size:
        raise ValueError("the tar ends within it")
    return content
