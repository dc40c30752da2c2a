"""Rows of a store that a condition holds for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.store.base import Store


def chosen(store: Store, where: str) -> list[str]:
    """Their keys; none is an answer, too. No payload is read."""
    from headrace.store.splits.filter import holds
    from headrace.store.splits.frame import framed

    columns = store.columns()
    return sorted(columns["key"][holds(where, framed(columns))].tolist())
