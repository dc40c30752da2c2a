"""Search for rows that have lost what they were made of. Pure, but for looking at files."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.core.errors import IngestError
from headrace.store.catalogues.origin import Origin
from headrace.store.files import NoFile, is_there, read_file
from headrace.store.ingest.derived_keys import digest

GONE, UNNAMED, REPLACED = "gone", "unnamed", "replaced"
WORDS = {
    GONE: "whose files are gone",
    UNNAMED: "that the source no longer names",
    REPLACED: "whose files were replaced, and are stored anew",
}


@dataclass
class Pruning:
    """Rows to be removed, and why."""

    keys: dict[str, str] = field(default_factory=dict)
    """The reason, by key."""
    places: dict[str, str] = field(default_factory=dict)
    """Where the row came from, by key."""
    unknown: int = 0
    """Rows that are left because nothing is known about their files."""

    def counts(self) -> dict[str, int]:
        """Rows by reason."""
        found = Counter(self.keys.values())
        return {reason: found[reason] for reason in WORDS if found[reason]}


def sources(origins: Iterable[tuple[str, Origin]]) -> dict[str, int]:
    """Rows by the source they came from."""
    return Counter(origin.source for _, origin in origins)


def superseded(source: str, origins: Iterable[tuple[str, Origin]]) -> int:
    """Rows of a source's files that were stored again since, with another content. No file is looked at."""
    contents: dict[tuple[str, str], set[bytes]] = {}
    for _, origin in origins:
        if origin.source == source and origin.root is not None:
            contents.setdefault((origin.place, origin.made), set()).add(origin.content)
    return sum(len(different) - 1 for different in contents.values())


def pruning(rows: int, origins: Iterable[tuple[str, Origin]], named: Mapping[str, set[str]] | None = None) -> Pruning:
    """The rows that have lost their source.

    Only files of which two rows came are read: rows of an older content go, if one of the content that is there now is
    stored. Rows whose files cannot be looked at, or read, stay.

    ``named``: the places that a source has today, by the source; other sources are then left alone. Without it the
    files of all rows are looked for. ``IngestError`` where not one file of a source is there, which looks like a disk
    that is not mounted.
    """
    found = Pruning()
    same: dict[tuple[str, str], list[tuple[str, Origin]]] = {}
    files: dict[str, list[int]] = {}
    known = 0
    for key, origin in origins:
        if named is not None and origin.source not in named:
            continue
        known += 1
        reason, there = _reason(origin, None if named is None else named[origin.source])
        seen = files.setdefault(origin.source, [0, 0])
        seen[0] += there is not None
        seen[1] += there is True
        found.unknown += named is None and there is None
        if there:
            same.setdefault((origin.source, origin.place), []).append((key, origin))
        found.places[key] = origin.shown
        if reason is not None:
            found.keys[key] = reason
    for rows_of_place in (several for several in same.values() if len(several) > 1):
        try:
            now = digest([read_file(_path(rows_of_place[0][1]))])
        except (OSError, NoFile):
            found.unknown += len(rows_of_place)
            continue
        older = [key for key, origin in rows_of_place if origin.content != now]
        if len(older) < len(rows_of_place):  # else what is there now is stored nowhere, and these are all there is
            found.keys.update(dict.fromkeys(older, REPLACED))
    for source, (looked, there_are) in files.items():
        if looked and not there_are:
            message = f"none of the {looked} files that came from {source} is there: is a disk not mounted?"
            raise IngestError(f"{message} To remove their rows nevertheless, use headrace store rm")
    found.unknown += rows - known if named is None else 0
    found.places = {key: place for key, place in found.places.items() if key in found.keys}
    return found


def _reason(origin: Origin, named: set[str] | None) -> tuple[str | None, bool | None]:
    """The reason why the row is to go, if it is; and whether its file is there, where that could be seen."""
    if named is not None and origin.place not in named:
        return UNNAMED, None
    if origin.root is None:
        return None, None
    try:
        there = is_there(_path(origin))
    except OSError:  # a folder that may not be entered, say: what is in it is not gone
        return None, None
    return (None if there else GONE), there


def _path(origin: Origin) -> Path:
    return Path(origin.root or "") / origin.shown
