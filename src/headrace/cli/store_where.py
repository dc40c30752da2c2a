"""Rows of a store that a condition holds for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.cli import UsageError

if TYPE_CHECKING:
    from headrace.store.base import Store


def chosen(store: Store, where: str) -> list[str]:
    """Their keys; none is an answer, too. No payload is read."""
    from headrace.core.errors import FilterError, SplitError
    from headrace.store.splits.division import split

    columns = store.columns()
    if not len(columns["key"]):
        return []
    try:
        return sorted(split(columns, {"all": 1.0}, where=where).keys("all"))
    except FilterError as error:
        raise UsageError(f"--where: {error}") from error
    except SplitError:
        return []
