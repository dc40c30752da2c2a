"""Rows of any store as people look at them: chosen by a condition, listed, and one of them in full."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.errors import MissingKey
from headrace.store.base import Columns, Row, Store
from headrace.store.bridges import blocking
from headrace.store.columns import chosen, plain
from headrace.store.contents import extension
from headrace.store.splits.filter import holds
from headrace.store.splits.frame import framed


@dataclass(frozen=True)
class RowListing:
    """A listing of rows of a store: what its metadata say of them, payloads unread."""

    rows: int
    """Of the whole store."""
    chosen: int
    """Rows for which the condition holds."""
    samples: list[dict[str, Any]]
    """The first ones by key, by column."""


def matching(store: Store, where: str) -> list[str]:
    """The sorted keys of rows for which a condition holds; none is an answer, too. No payload is read."""
    columns = store.columns()
    return sorted(columns["key"][holds(where, framed(columns))].tolist())


def listing(store: Store, where: str | None, limit: int | None, names: Sequence[str] | None = None) -> RowListing:
    """The first rows by key, or of those for which a condition holds; ``names`` are the columns to tell."""
    columns = store.columns(names if where is None else None)
    there = np.arange(len(columns["key"])) if where is None else np.flatnonzero(holds(where, framed(columns)))
    wanted = chosen(names, columns, store.name)
    first = there[: len(there) if limit is None else limit]
    return RowListing(len(columns["key"]), len(there), _told({name: columns[name] for name in wanted}, first))


def shown(store: Store, keys: Sequence[str]) -> list[tuple[dict[str, Any], Row]]:
    """The facts that a store has on each of these keys, and its row. Raises ``MissingKey`` for the first that is
    not there.
    """
    columns = store.columns()
    place = {key: row for row, key in enumerate(columns["key"].tolist())}
    missing = next((key for key in keys if key not in place), None)
    if missing is not None:
        raise MissingKey(f"{store.name} has no row with the key {missing!r}", server=store.name, key=missing)
    facts = _told(columns, np.array([place[key] for key in keys], np.int64))
    reader = blocking(store)
    try:
        return [(fact, reader.get(key)) for fact, key in zip(facts, keys, strict=True)]
    finally:
        reader.close()


def form(payload: bytes | memoryview) -> str:
    """The form of a payload, by its first bytes: ``jpg``, ``png``, ``npy`` ..., ``text``, or ``bytes``."""
    found = extension(payload)
    if found != "bin":
        return found
    head = bytes(payload[:4096])
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        text = head[: error.start].decode() if error.start > len(head) - 4 and len(payload) > len(head) else "\0"
    return "text" if text and all(letter.isprintable() or letter in "\t\r\n" for letter in text) else "bytes"


def _told(columns: Columns, rows: npt.NDArray[Any]) -> list[dict[str, Any]]:
    values = {name: [plain(value) for value in column[rows].tolist()] for name, column in columns.items()}
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
