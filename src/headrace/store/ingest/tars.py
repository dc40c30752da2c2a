"""WebDataset: tar files in which the members of one name, apart from what follows its first dot, are one sample.

The store ``wds://`` reads such tars by key, from an index of all of them. Here they are read in a stream, and a sample
or a shard that is broken is a failure of its own.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from glob import glob
from itertools import product
from pathlib import Path
from typing import Any

from headrace.core.errors import IngestError
from headrace.store.base import Kind, LabelKind, Scalar
from headrace.store.columns import CLASS
from headrace.store.ingest.kinds import Guess, converted
from headrace.store.ingest.options import ReadOptions
from headrace.store.ingest.source import IngestSource, Item, Loaded, SourceShape, Where
from headrace.store.tar import BadTar, members

CLS, JSON, TEXT = "cls", "json", "txt"
KEY = "key"
"""What is called so among the metadata is the key, as in manifests."""
LONGEST = 1 << 20
"""Bytes of a label or of metadata; what is longer is no such thing."""
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


@dataclass
class _TarSample:
    """One sample: where each of its members begins, and how long it is, by extension."""

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
        reading.refuse(("root", "extensions"), "tars")
        self.name = text
        self.where = Where(str(Path(text).absolute()), threads=True)
        self._reading = reading
        self._shards = _shards(text)
        self._known: _TarColumns | None = None

    def shape(self) -> SourceShape:
        known = self._columns()
        return SourceShape(known.labels, known.kinds, known.classes, known.count)

    def items(self) -> Iterator[Item]:
        known = self._columns()
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

    def _item(self, group: _TarSample, known: "_TarColumns") -> Item:
        ident = f"{group.shard.name}/{group.key}"
        try:
            if group.twice is not None:
                raise ValueError(f"it has two members .{group.twice}")
            place, label_place = known.places(group)
            fields = _fields(group, known.label)
            metadata: dict[str, Scalar] = {
                name: converted(_text(fields.get(name)), kind) for name, kind in known.kinds.items() if name != CLASS
            }
            metadata["path"] = ident
            label = known.label_of(fields)
            key = None if known.key is None else _text(fields.get(known.key))
            if key == "":
                raise ValueError(f"it has no {known.key}")
        except (ValueError, OSError) as error:
            return Item(ident, None, problem=str(error))
        return Item(ident, (str(group.shard), place, label_place), label, metadata, key)

    def _columns(self) -> "_TarColumns":
        if self._known is None:
            self._known = _TarColumns(self.name, self._reading, self._shards)
        return self._known


class _TarColumns:
    """What the samples of all shards have, from one look at their headers, labels and metadata."""

    def __init__(self, name: str, reading: ReadOptions, shards: list[Path]) -> None:
        self._reading = reading
        self.label = None if reading.label_files else reading.label or CLS
        guesses: dict[str, Guess] = {}
        labels, names = Guess(), set[str]()
        self.count = 0
        for group in _readable(shards):
            self.count += 1
            try:
                fields = _fields(group, self.label)
            except (ValueError, OSError):
                continue  # told when it is its turn
            label = _text(fields.pop(self.label, None)) if self.label else ""
            labels.see([label])
            names.update([label] if label else [])
            for column, value in fields.items():
                guesses.setdefault(column, Guess()).see([_text(value)])
        if not self.count:
            raise IngestError(f"{name}: there is no sample in it")
        self.key = reading.key or (KEY if KEY in guesses else None)
        metadata = [column for column in guesses if column != KEY or self.key != KEY]
        wanted = [column for column in metadata if reading.columns is None or column in reading.columns]
        for column in [*(reading.columns or ()), *reading.types, *filter(None, [reading.key])]:
            if column not in guesses:
                raise IngestError(f"{name} has no metadata {column!r}; it has {', '.join(guesses) or 'none'}")
        self.kinds = {"path": Kind.TEXT, **{each: reading.types.get(each, guesses[each].kind) for each in wanted}}
        by_name = bool(names) and (labels.kind is not Kind.INTEGER or bool(reading.classes))
        self.classes = tuple(sorted(names)) if by_name else None
        if by_name:
            self.kinds[CLASS] = Kind.TEXT
        self.labels = LabelKind.BLOB if reading.label_files else LabelKind.INTEGER if names else LabelKind.NONE

    def places(self, group: _TarSample) -> tuple[tuple[int, int, str], tuple[int, int] | None]:
        """Where the sample and a label that is a file are. Raises ``ValueError`` where one is not there."""
        apart = {JSON, TEXT, CLS, self.label, self._reading.label_files}
        wanted = self._reading.payload or next((each for each in group.members if each not in apart), None)
        if wanted is None or wanted not in group.members:
            raise ValueError(f"it has no member .{wanted or '*'}, only .{', .'.join(group.members)}")
        files = self._reading.label_files
        if files is not None and files not in group.members:
            raise ValueError(f"it has no member .{files}")
        return (*group.members[wanted], wanted), None if files is None else group.members[files]

    def label_of(self, fields: Mapping[str, Any]) -> int | str | None:
        """A number, or the name of a class."""
        if self.label is None or self.labels is not LabelKind.INTEGER:
            return None
        text = _text(fields.get(self.label))
        if not text:
            raise ValueError(f"it has no label: no member .{self.label}")
        return text if self.classes is not None else int(text)


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


def _readable(shards: list[Path]) -> Iterator[_TarSample]:
    for shard in shards:
        try:
            yield from _groups(shard)
        except (BadTar, OSError):
            continue


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


def _text(value: Any) -> str:
    return "" if value is None else str(value)
