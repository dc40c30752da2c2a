"""A table of files: CSV, TSV or Parquet with a column of paths, perhaps ``label``, and metadata in all others."""

import csv
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.core.errors import IngestError
from headrace.store import parquet
from headrace.store.files import read_file
from headrace.store.ingest.source_options import ReadOptions
from headrace.store.ingest.sources.fields import NO_TEXT, PATH, FieldShape, text_of
from headrace.store.ingest.sources.item_source import IngestSource, Item, Loaded, SourceShape, Where
from headrace.store.wording import one_line

LABEL = "label"
PATHS = (PATH, "filename", "file", "image", "file_name", "filepath", "file_path", "image_path", "image_file")
"""Columns that are taken for the paths, where nothing is said and only one of them is there; ``path`` before all."""


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
        self._known: FieldShape | None = None
        self._column = reading.path_column or PATH

    def shape(self) -> SourceShape:
        return self._fields().shape()

    def items(self) -> Iterator[Item]:
        known = self._fields()
        firsts: dict[int, int] = {}
        for number, row in enumerate(self._rows(), 1):
            item = self._item(row, known, number)
            if item.problem is None:
                # A path that comes again with other values is another sample; with the same ones it is the same.
                values = hash((item.label, item.key, *item.metadata.items()))
                if firsts.setdefault(hash(item.ident), values) != values:
                    fields = sorted((name, value) for name, value in row.items() if not isinstance(value, NO_TEXT))
                    told = "\0".join(f"{name}={text_of(value)}" for name, value in fields)
                    item = item._replace(ident=f"{item.ident}\0{told}")
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

    def _item(self, row: Mapping[str, Any], known: FieldShape, number: int) -> Item:
        ident = text_of(row.get(self._column))
        if not ident:
            return Item(f"row {number}", None, problem=f"it has no {self._column}")
        column = self._reading.label_files
        try:
            file = None if column is None else text_of(row.get(column))
            if file == "":
                raise ValueError(f"it has no {column}")
            return known.item(ident, (ident, file), row)
        except ValueError as error:
            return Item(ident, None, problem=str(error))

    def _rows(self) -> Iterator[Mapping[str, Any]]:
        try:
            if self._path.suffix.lower() == ".parquet":
                self._check_names(parquet.names(self._path))
                yield from parquet.rows(self._path)
                return
            with self._path.open(newline="", encoding="utf-8-sig") as file:
                read = csv.DictReader(file, delimiter="\t" if self._path.suffix.lower() == ".tsv" else ",")
                self._check_names(read.fieldnames or ())
                for number, row in enumerate(read, 1):
                    if None in row:
                        raise IngestError(f"{self.name}: row {number} has more fields than the first line has names")
                    yield row
        except (OSError, UnicodeDecodeError, csv.Error, parquet.NotParquet) as error:
            raise IngestError(f"{self.name}: cannot be read ({one_line(str(error))})") from error

    def _check_names(self, names: Sequence[str]) -> None:
        """Refuse column names that occur twice or have blanks around them. Of two columns with one name only one
        would be read; one with a blank in front is not the one meant.
        """
        for number, name in enumerate(names):
            if name in names[:number]:
                raise IngestError(f"{self.name}: two columns are called {name!r}: rename one")
            if name != name.strip():
                raise IngestError(f"{self.name}: a column is called {name!r}, with blanks around it: take them away")
        self._column = self._paths(names)

    def _paths(self, names: Sequence[str]) -> str:
        """The column that has the paths."""
        said, there = self._reading.path_column, ", ".join(names) or "none"
        if said is not None:
            if said not in names:
                raise IngestError(f"{self.name} has no column {said!r}; it has {one_line(there)}")
            if said != PATH and PATH in names:
                raise IngestError(f"{self.name}: where a sample lies is stored as {PATH!r}: rename that column")
            return said
        found = [name for name in PATHS if name in names]
        if not found or (found[0] != PATH and len(found) > 1):
            which = f"{' or '.join(found)}" if found else f"it has {one_line(there)}"
            raise IngestError(f"{self.name}: which column has the paths of the files ({which})? --path-column says it")
        return found[0]

    def _fields(self) -> FieldShape:
        if self._known is None:
            reading, rows = self._reading, self._rows()
            first = next(rows, None)  # which says what the columns are called
            label, besides = reading.label or LABEL, (self._column, reading.label, reading.label_files)
            every = () if first is None else itertools.chain([first], rows)
            self._known = FieldShape(self.name, reading, every, label, called="column", besides=besides)
        return self._known
