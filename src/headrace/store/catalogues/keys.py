"""Many keys in little memory: one text and where each key begins, which forked processes share without copying."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import overload

import numpy as np


class Keys(Sequence[str]):
    """A sequence of keys. A list of texts would be copied into every worker, page by page, by counting references."""

    def __init__(self, keys: Iterable[str]) -> None:
        encoded = [key.encode("utf-8", "surrogatepass") for key in keys]
        self._text = b"".join(encoded)
        self._ends = np.fromiter(accumulate(map(len, encoded), initial=0), np.int64, len(encoded) + 1)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        number = len(self)
        if not -number <= index < number:
            raise IndexError(f"there are {number} samples, and index {index} is none of them")
        place = index % number
        return self._text[self._ends[place] : self._ends[place + 1]].decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        text, ends = self._text, self._ends.tolist()
        for first, end in pairwise(ends):
            yield text[first:end].decode("utf-8", "surrogatepass")

    def __repr__(self) -> str:
        return f"Keys({len(self)})"
