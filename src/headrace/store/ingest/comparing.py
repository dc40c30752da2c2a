"""Comparison of what an ingest brings with what the store has already."""

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.store.base import Scalar, Writer
from headrace.store.catalogues.columns import CLASS, plain
from headrace.store.catalogues.origin import ComparingWriter, Origin, RememberingWriter, Stored
from headrace.store.ingest.outcome import IngestFailure, IngestTally


class Comparison:
    """A comparison for the items of one chunk, as far as the store can say what it has; else only keys are
    compared.
    """

    def __init__(self, writer: Writer, run: str, tally: IngestTally, *, again: bool) -> None:
        """``again``: what this run has stored already may have been stored for these very items."""
        self._run, self._again = run, again
        # Asked once: to ask whether something follows a protocol is dearer than to look into the store.
        self._writer = writer
        self._comparing = writer if isinstance(writer, ComparingWriter) else None
        self._remembering = writer if isinstance(writer, RememberingWriter) else None
        self.tally = tally
        self._there: dict[str, Stored | None] = {}

    def look(self, keys: Sequence[str]) -> None:
        """Sees what is stored under these keys."""
        if self._comparing is not None:
            self._there.update(self._comparing.stored(keys))
        else:
            self._there.update(dict.fromkeys(self._writer.present(keys)))

    def met(self, key: str, label: Any, size: int | None, metadata: Mapping[str, Scalar], origin: Origin) -> bool:
        """True if the store has that key, as far as was looked; what that means is in the tally."""
        if key not in self._there:
            return False
        stored = self._there[key]
        if stored is None:
            self.tally.present += 1
            self.tally.unseen += 1
            return True
        differences = _differences(stored, label, size, metadata, origin)
        before = stored.origin
        mine = before is not None and before.run == self._run
        place = origin.shown
        if differences and mine and before is not None:
            told = twice(key, before.shown, place, " and ".join(differences))
            self.tally.failures.append(IngestFailure(place, told))
        elif differences:
            self.tally.differ += 1
            for what in differences:
                self.tally.differing.note(what, place)
        elif mine and self._again and before is not None and before.place == origin.place:
            self.tally.written += 1
            self.tally.payload_bytes += stored.size or 0
        elif mine:
            self.tally.repeated += 1
        else:
            self.tally.present += 1
        return True

    def doubled(self, key: str, origin: Origin) -> None:
        """Notes it where the store has a row that was just written under another key, too."""
        if self._remembering is None:
            return
        place = origin.shown
        for other, before in self._remembering.alike(origin).items():
            if other == key:
                continue
            if before.place == origin.place and before.content == origin.content:
                if before.made != origin.made:
                    self.tally.doubled.note("encoding", place)
                    return
            elif before.place == origin.place:
                if before.source == origin.source and before.made == origin.made:
                    self.tally.doubled.note("content", place)
                    return
            elif before.content == origin.content:
                self.tally.doubled.note("place", f"{place}, which was {before.shown}")
                return


def twice(key: str, first: str, second: str, differences: str) -> str:
    """Two samples that claim one key, as a failure tells it."""
    where = f"{first} and {second}" if first != second else f"{first}, twice in the source,"
    return f"{where} have the key {key!r} and differ in {differences}: --rewrite lets the last one count"


def _differences(
    stored: Stored, label: Any, size: int | None, metadata: Mapping[str, Scalar], origin: Origin
) -> list[str]:
    found = []
    if isinstance(label, int) and label != stored.label:
        found.append("label")
    for name, value in metadata.items():
        if plain(value) != plain(stored.metadata.get(name)) and (name != CLASS or not found):
            found.append(name)
    if stored.origin is None:
        if None not in (size, stored.size) and size != stored.size:
            found.append("content")
    elif stored.origin.content != origin.content:
        found.append("content")
    elif stored.origin.made != origin.made:
        found.append("encoding")
    return found
