"""A table of files: CSV, TSV or Parquet with a column ``path``, perhaps ``label``, and metadata in all others."""

import csv
import datetime as dt
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.core.errors import IngestError
from headrace.store import parquet
from headrace.store.base import Kind, LabelKind, Scalar
from headrace.store.columns import CLASS, plain
from headrace.store.files import read_file
from headrace.store.ingest.kinds import Guess, converted
from headrace.store.ingest.options import ReadOptions
from headrace.store.ingest.source import IngestSource, Item, Loaded, SourceShape, Where
from headrace.store.wording import one_line

PATH, LABEL, KEY = "path", "label", "key"


class Manifest(IngestSource):
    """Paths are relative to the manifest's folder, or to ``root``."""

    def __init__(self, path: str, reading: ReadOptions) -> None:
        reading.refuse(("payload", "extensions"), f"manifests: {path} says itself which files are samples")
        self.name = path
        self._path = Path(path)
        self._root = Path(reading.root) if reading.root else self._path.parent
        self._within = os.path.realpath(self._root)
        self.where = Where(str(self._path.absolute()), str(self._root.absolute()), threads=True)
        self._reading = reading
        self._known: _Columns | None = None

    def shape(self) -> SourceShape:
        known = self._columns()
        return SourceShape(known.labels, known.kinds, known.classes, known.count)

    def items(self) -> Iterator[Item]:
        known = self._columns()
        firsts: dict[int, int] = {}
        for number, row in enumerate(self._rows(), 1):
            item = self._item(row, known, number)
            if item.problem is None:
                # A path that comes again with other values is another sample; with the same ones it is the same.
                values = hash((item.label, item.key, *item.metadata.items()))
                if firsts.setdefault(hash(item.ident), values) != values:
                    item = item._replace(ident=f"{item.ident}\0{_row_text(row)}")
            yield item

    def load(self, item: Item) -> Loaded:
        path, label_path = item.place
        if label_path is None:
            return Loaded(self._content(path), None, path)
        return Loaded(self._content(path), self._content(label_path), path, label_path)

    def _content(self, path: str) -> bytes:
        where = os.path.realpath(self._root / path)
        if not self._reading.allow_outside and os.path.commonpath([where, self._within]) != self._within:
            raise ValueError(f"{path} lies outside {self._within}: --allow-outside reads it nevertheless")
        return read_file(where)

    def _item(self, row: Mapping[str, Any], known: "_Columns", number: int) -> Item:
        path = row.get(PATH)
        if not path:
            return Item(f"row {number}", None, problem="it has no path")
        ident = str(path)
        try:
            metadata = {name: _value(row.get(name), kind) for name, kind in known.kinds.items() if name in row}
            label = self._label(row, known)
        except ValueError as error:
            return Item(ident, None, problem=str(error))
        key = row.get(known.key) if known.key else None
        if known.key and not key:
            return Item(ident, None, problem=f"it has no {known.key}")
        files = None
        if self._reading.label_files is not None:
            files = str(row.get(self._reading.label_files) or "")
            if not files:
                return Item(ident, None, problem=f"it has no {self._reading.label_files}")
        return Item(ident, (ident, files), label, metadata, None if key is None else str(key))

    def _label(self, row: Mapping[str, Any], known: "_Columns") -> int | str | None:
        if known.label is None or known.labels is not LabelKind.INTEGER:
            return None
        value = row.get(known.label)
        if value in {None, ""}:
            raise ValueError("it has no label")
        return str(value) if known.classes is not None else int(value)

    def _rows(self) -> Iterator[Mapping[str, Any]]:
        try:
            if self._path.suffix.lower() == ".parquet":
                self._check_names(parquet.names(self._path))
                yield from parquet.rows(self._path)
                return
            with self._path.open(newline="", encoding="utf-8-sig") as file:
                read = csv.DictReader(file, delimiter="\t" if self._path.suffix.lower() == ".tsv" else ",")
                self._check_names(read.fieldnames or ())
                yield from read
        except (OSError, UnicodeDecodeError, csv.Error, parquet.NotParquet) as error:
            raise IngestError(f"{self.name}: cannot be read ({one_line(str(error))})") from error

    def _check_names(self, names: Sequence[str]) -> None:
        """Of two columns with one name only one would be read; one with a blank in front is not the one meant."""
        for number, name in enumerate(names):
            if name in names[:number]:
                raise IngestError(f"{self.name}: two columns are called {name!r}: rename one")
            if name != name.strip():
                raise IngestError(f"{self.name}: a column is called {name!r}, with blanks around it: take them away")

    def _columns(self) -> "_Columns":
        if self._known is None:
            self._known = _Columns(self.name, self._reading, self._rows())
        return self._known


class _Columns:
    """What the columns of a manifest hold, from one look at all its rows."""

    def __init__(self, name: str, reading: ReadOptions, rows: Iterator[Mapping[str, Any]]) -> None:
        guesses: dict[str, Guess] = {}
        values: set[str] = set()
        self.count = 0
        label = reading.label or LABEL
        for row in rows:
            self.count += 1
            for column, value in row.items():
                if column is None:
                    raise IngestError(f"{name}: row {self.count} has more fields than the first line has names")
                guesses.setdefault(column, Guess()).see([_text(value)])
            if reading.label_files is None and row.get(label) not in {None, ""}:
                values.add(_text(row[label]))
        if not self.count:
            raise IngestError(f"{name}: it has no rows")
        self._refuse(name, reading, guesses)
        self.label = label if label in guesses and reading.label_files is None else None
        named = self.label is not None and guesses[label].kind is not Kind.INTEGER
        self.classes = tuple(sorted(values)) if named or (reading.classes and self.label) else None
        self.labels = LabelKind.BLOB if reading.label_files else LabelKind.INTEGER if self.label else LabelKind.NONE
        self.key = reading.key or (KEY if KEY in guesses else None)
        apart = {PATH, self.label, self.key, reading.label_files} - ({reading.key} - {KEY})
        wanted = [column for column in guesses if column not in apart]
        if reading.columns is not None:
            wanted = [column for column in wanted if column in reading.columns]
        self.kinds = {PATH: Kind.TEXT, **{each: reading.types.get(each, guesses[each].kind) for each in wanted}}
        if self.classes is not None:
            self.kinds[CLASS] = Kind.TEXT

    def _refuse(self, name: str, reading: ReadOptions, there: Mapping[str, Any]) -> None:
        if PATH not in there:
            raise IngestError(f"{name} has no column 'path'; it has {one_line(', '.join(there))}")
        wanted = [reading.label, reading.label_files, reading.key, *(reading.columns or ()), *reading.types]
        for column in wanted:
            if column is not None and column not in there:
                raise IngestError(f"{name} has no column {column!r}; it has {one_line(', '.join(there))}")


def _text(value: Any) -> str:
    """As a CSV file would have it, so that both kinds of manifest are judged alike."""
    if plain(value) is None:
        return ""
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, (bytes, list, dict)):
        raise IngestError(f"a manifest holds texts and numbers, not {type(value).__name__}; choose columns")
    return str(value)


def _value(value: Any, kind: Kind) -> Scalar:
    return converted(_text(value), kind)


def _row_text(row: Mapping[str, Any]) -> str:
    return "\0".join(f"{name}={_text(value)}" for name, value in sorted(row.items()))
