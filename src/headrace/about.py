"""Names of a dataset's samples: their keys, and what their store knows of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.errors import StoreError
from headrace.store.base import Columns
from headrace.store.catalogues.keys import Keys


def in_order(columns: Columns, keys: Sequence[str]) -> dict[str, npt.NDArray[Any]] | None:
    """Columns of a store in the order of some of its keys; None where the store does not have them all."""
    place = {key: number for number, key in enumerate(columns["key"].tolist())}
    found = [place.get(key, -1) for key in keys]
    if -1 in found:
        return None
    rows = np.array(found, np.int64)
    return {name: values[rows] for name, values in columns.items()}


class About:
    """Additions to every sample: its key, and some of its metadata.

    Held in arrays and one text for each column, so that forked workers share it without copying.
    """

    def __init__(self, keys: Keys | None, columns: Mapping[str, npt.NDArray[Any]], store: str) -> None:
        """``keys``: None where they are not wanted. Raises ``StoreError`` for a column that batches cannot hold."""
        self._columns: dict[str, Any] = {} if keys is None else {"key": keys}
        for name, values in columns.items():
            self._columns[name] = _held(name, values, store)

    def of(self, index: int) -> dict[str, Any]:
        """The additions to a sample, in values that torch's collation takes: texts, and Python's numbers and truth
        values.
        """
        found = {name: values[index] for name, values in self._columns.items()}
        return {name: value.item() if isinstance(value, np.generic) else value for name, value in found.items()}


def _held(name: str, values: npt.NDArray[Any], store: str) -> Any:
    if values.dtype != object:
        return values
    if all(value is None or isinstance(value, str) for value in values):
        return Keys(value or "" for value in values)
    missing = sum(value is None for value in values)
    raise StoreError(
        f"metadata={name!r}: {missing} of {len(values)} samples of {store} have none, and a batch of whole numbers has "
        "no place for that: leave the column out, or the samples (split --where)",
        server=store,
    )
