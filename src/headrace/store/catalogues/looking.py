"""Rows of any store as people look at them: chosen by a condition, listed, and one of them in full."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.errors import MissingKey
from headrace.store.base import Columns, PartialCatalogue, Row, Store
from headrace.store.catalogues.columns import chosen, plain
from headrace.store.contents import extension
from headrace.store.reading.bridges import blocking
from headrace.store.splits.filter import holds
from headrace.store.splits.frame import framed


@dataclass(frozen=True)
class RowListing:
    """A listing of rows of a store: what its metadata say of them, payloads unread."""

    rows: int | None
    """Of the whole store; None where nobody counted them, since a few were enough."""
    chosen: int | None
    """Rows for which the condition holds."""
    samples: list[dict[str, Any]]
    """The first ones, by column."""


def matching(store: Store, where: str) -> list[str]:
    """The sorted keys of rows for which a condition holds; none is an answer, too. No payload is read."""
    columns, rows = _answered(store, where)
    return sorted(columns["key"][rows].tolist())


def listing(store: Store, where: str | None, limit: int | None, names: Sequence[str] | None = None) -> RowListing:
    """The first rows, or those for which a condition holds; ``names`` are the columns to tell.

    Of a store that can be read in part no more is read than that takes: for a condition the columns it names.
    """
    if where is None and limit is not None and isinstance(store, PartialCatalogue):
        begun = store.beginning(limit)
        found = {name: begun.columns[name] for name in chosen(names, begun.columns, store.name)}
        there = len(found["key"])
        rows = begun.rows if begun.rows is not None or there == limit else there
        return RowListing(rows, rows, _told(found, np.arange(there)))
    if where is None:
        columns = store.columns(names)
        there = len(columns["key"])
        return RowListing(there, there, _told(columns, np.arange(there)[:limit]))
    columns, holding = _answered(store, where)
    first = columns["key"][holding[:limit]].tolist()
    facts = store.columns() if limit is None else _facts(store, first)
    wanted = chosen(names, facts, store.name)
    samples = _told({name: facts[name] for name in wanted}, _rows(facts, first))
    return RowListing(len(columns["key"]), len(holding), samples)


def shown(store: Store, keys: Sequence[str]) -> list[tuple[dict[str, Any], Row]]:
    """The facts that a store has on each of these keys, and its row. Raises ``MissingKey`` for the first that is
    not there.
    """
    columns = _facts(store, keys)
    there = set(columns["key"].tolist())
    missing = next((key for key in keys if key not in there), None)
    if missing is not None:
        raise MissingKey(f"{store.name} has no row with the key {missing!r}", server=store.name, key=missing)
    facts = _told(columns, _rows(columns, keys))
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


def _answered(store: Store, where: str) -> tuple[Columns, npt.NDArray[np.int64]]:
    """Columns that a condition may name, and the rows for which it holds."""
    names = None
    if isinstance(store, PartialCatalogue):
        none = store.beginning(0).columns
        holds(where, framed(none))  # which says what is wrong with it, whatever the rows
        said = where.lower()
        names = [name for name in none if name.replace('"', '""').lower() in said]
    columns = store.columns(names)
    return columns, np.flatnonzero(holds(where, framed(columns)))


def _facts(store: Store, keys: Sequence[str]) -> Columns:
    """The metadata of these keys, perhaps among others'."""
    return store.facts(keys) if isinstance(store, PartialCatalogue) else store.columns()


def _rows(columns: Columns, keys: Sequence[str]) -> npt.NDArray[np.int64]:
    """The place of each key; one that somebody has removed meanwhile is left out."""
    place = {key: row for row, key in enumerate(columns["key"].tolist())}
    return np.array([place[key] for key in keys if key in place], np.int64)


def _told(columns: Columns, rows: npt.NDArray[Any]) -> list[dict[str, Any]]:
    values = {name: [plain(value) for value in column[rows].tolist()] for name, column in columns.items()}
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
