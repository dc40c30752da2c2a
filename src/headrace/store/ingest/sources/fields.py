"""Samples described by fields, in the rows of a table or beside the members of tars: their labels, keys, metadata."""

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.core.errors import IngestError
from headrace.store.base import Kind, LabelKind, Scalar
from headrace.store.catalogues.columns import CLASS, plain
from headrace.store.ingest.source_options import ReadOptions
from headrace.store.ingest.sources.item_source import Item, SourceShape
from headrace.store.ingest.sources.kinds import Guess, converted
from headrace.store.wording import one_line

PATH, KEY = "path", "key"
"""Where a sample lies, which is metadata always, and what its key is called where nothing else is said."""
NO_TEXT = (bytes, list, dict)
"""What Parquet can hold in a column, and CSV cannot."""


class FieldShape:
    """The shape of the fields, from one look at those of all samples."""

    def __init__(
        self,
        name: str,
        reading: ReadOptions,
        samples: Iterable[Mapping[str, Any]],
        label: str,
        *,
        called: str,
        besides: Sequence[str | None] = (),
    ) -> None:
        """``label``: the field that has it, if there is one. ``called``: what fields are to people. ``besides``:
        more of them that have to be there, and are no metadata. Raises ``IngestError``.
        """
        guesses: dict[str, Guess] = {}
        names: set[str] = set()
        needed = {PATH, KEY, label, reading.key, *besides, *(reading.columns or ())}
        self.count = 0
        for fields in samples:
            self.count += 1
            for field, value in fields.items():
                guess = guesses.setdefault(field, Guess())
                if reading.columns is None or field in needed:  # others may hold what is no text
                    guess.see(text_of(value))
            names.add(text_of(fields.get(label)))
        if not self.count:
            raise IngestError(f"{name}: there is no sample in it")
        for asked in (*besides, reading.key, *(reading.columns or ()), *reading.types):
            if asked is not None and asked not in guesses:
                raise IngestError(f"{name} has no {called} {asked!r}; it has {one_line(', '.join(guesses)) or 'none'}")
        self.label = label if label in guesses and reading.label_files is None else None
        by_name = self.label is not None and (guesses[label].kind is not Kind.INTEGER or bool(reading.classes))
        self.classes = tuple(sorted(names - {""})) if by_name else None
        self.labels = LabelKind.BLOB if reading.label_files else LabelKind.INTEGER if self.label else LabelKind.NONE
        self._key = reading.key or (KEY if KEY in guesses else None)
        apart = {PATH, self.label, *besides, *([KEY] if self._key == KEY else [])}
        kept = guesses if reading.columns is None else reading.columns
        wanted = (each for each in guesses if each in kept and each not in apart)
        self._kinds = {PATH: Kind.TEXT, **{each: reading.types.get(each, guesses[each].kind) for each in wanted}}
        if by_name:
            self._kinds[CLASS] = Kind.TEXT

    def shape(self) -> SourceShape:
        return SourceShape(self.labels, self._kinds, self.classes, self.count)

    def item(self, ident: str, place: Any, fields: Mapping[str, Any]) -> Item:
        """The item of one sample. Raises ``ValueError`` where it has no label or key, or a value is not of its
        field's kind.
        """
        metadata: dict[str, Scalar] = {
            name: converted(text_of(fields.get(name)), kind)
            for name, kind in self._kinds.items()
            if name != CLASS or name in fields
        }
        label: int | str | None = None
        if self.label is not None:
            label = text_of(fields.get(self.label))
            if not label:
                raise ValueError("it has no label")
            label = label if self.classes is not None else int(label)
        key = None if self._key is None else text_of(fields.get(self._key))
        if key == "":
            raise ValueError(f"it has no {self._key}")
        return Item(ident, place, label, {**metadata, PATH: ident}, key)


def text_of(value: Any) -> str:
    """The text of a value as a CSV file would have it, so that all fields are judged alike."""
    if plain(value) is None:
        return ""
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, NO_TEXT):
        raise IngestError(f"a manifest holds texts and numbers, not {type(value).__name__}; choose columns")
    return str(value)
