"""Identity and state of a store: so that what was made of its rows is not taken for what is in it now."""

import hashlib
import secrets
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class Provenance:
    """The origin of a store's rows: two stores with the same provenance hold the same rows.

    ``identity`` is given to a store when it is made, and stays; a copy has it too. ``revision`` is another one after
    every change of rows, and never comes again: copies that are changed apart from each other differ in it.
    """

    identity: str
    revision: str


@runtime_checkable
class Identified(Protocol):
    """A store that knows its provenance. Blocking; reads next to nothing, and no payload."""

    def provenance(self) -> Provenance: ...


@runtime_checkable
class LookedAt(Protocol):
    """A store that reads nothing but what it has looked at once."""

    def standing(self) -> Provenance:
        """The provenance as of when it looked. Costs nothing the second time."""
        ...


@runtime_checkable
class WatchedSession(Protocol):
    """A session of a store behind a network that says in one round trip in which state the store is."""

    async def revision(self) -> str | None:
        """The revision as ``provenance()`` has it; None where finding it takes more than one round trip. A row that
        was read before this was asked, and after the same was said, is of that revision.
        """
        ...


@runtime_checkable
class Stamped(Protocol):
    """A store whose rows are changed one by one by whoever likes: each row says in which state it is."""

    def stamp(self, key: str) -> tuple[int, ...]:
        """The numbers that stand for a row's state: others once the row was changed. Reads no payload; raises
        ``OSError`` where the row is not there.
        """
        ...


def new_identity() -> str:
    """A new identity, for a store that is being made."""
    return uuid.uuid4().hex


def next_revision(previous: str) -> str:
    """A revision that no other change of this store, or of a copy of it, leads to."""
    # Chance is in it, since two copies of a store, changed apart from each other, begin with the same revision.
    return hashlib.blake2b(previous.encode() + secrets.token_bytes(8), digest_size=16).hexdigest()


def digest_of(text: str) -> str:
    """A short text for a long one."""
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def of_files(identity: str, paths: Iterable[Path]) -> Provenance:
    """The provenance of several files that are one store: what the system knows of each."""
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        status = path.stat()
        digest.update(f"{path.name}\0{status.st_size} {status.st_mtime_ns}\0".encode("utf-8", "surrogateescape"))
    return Provenance(identity, digest.hexdigest())


def of_file(path: Path, *beside: Path) -> Provenance:
    """The provenance of a file that has none written in it: its place, and what the system knows of its state.

    ``beside``: files that may hold a part of it. Raises ``OSError`` where the file is not there.
    """
    facts = []
    for each in (path, *beside):
        if each is path or each.exists():
            status = each.stat()
            facts.append(f"{status.st_size}-{status.st_mtime_ns}-{status.st_ino}")
    return Provenance(f"file:{path}", "/".join(facts))
