"""Samples that lie beside each other and are read together: what a store and its sessions offer, and how it is asked.

A fetcher that is asked for a sample may be told in which block it is to be read. It then reads the block, gives what
was asked for, and keeps the rest until that is asked for, too. The block is a hint: whoever has no room for it, or no
such session, reads the sample by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from headrace.store.base import RemoteStore, Row, Session

if TYPE_CHECKING:  # a fetcher starts in half the time without numpy
    import numpy as np
    import numpy.typing as npt

_MARK = "\0"
"""Between a key and its block. No key has it."""


class NeighbourBlock(NamedTuple):
    """The neighbours of a sample in its shard that are read with it: so many ``before`` and ``after`` it.

    ``place`` is the number of the sample, as a store counts all that lie in its shards, one shard behind the other.
    """

    place: int
    before: int
    after: int

    @property
    def samples(self) -> range:
        """The places of all its samples."""
        return range(self.place - self.before, self.place + self.after + 1)


def marked(key: str, block: NeighbourBlock) -> str:
    """The key, and the block to read it in, as one text."""
    return f"{key}{_MARK}{block.place} {block.before} {block.after}"


def unmarked(text: str) -> tuple[str, NeighbourBlock | None]:
    """The key and the block that ``marked`` made a text of; None for the block where the text is a key alone."""
    key, mark, block = text.partition(_MARK)
    return key, NeighbourBlock(*map(int, block.split())) if mark else None


class NeighbourSession(Session, Protocol):
    """Connections that can read neighbours in one request."""

    async def around(self, key: str, before: int, after: int) -> Sequence[Row | None]:
        """The row under that key with so many before and after it in the same shard, in the order of the shard.

        None stands for one that cannot be had this way: ``get`` says why. Neighbours have an empty key. Raises a
        ``StoreError`` where none can be had, or there are not so many.
        """
        ...

    def hedges(self) -> int:
        """The number of requests that were made a second time because their answer was late."""
        ...


@dataclass(frozen=True)
class Lying:
    """The places of samples: for each, in the order in which they were asked for, its shard and its place in the
    shard.
    """

    shards: "npt.NDArray[np.int64]"
    places: "npt.NDArray[np.int64]"
    counts: "npt.NDArray[np.int64]"
    """Samples of each shard of the store."""
    sizes: "npt.NDArray[np.int64]"
    """Bytes of each shard's samples."""
    whole: bool = False
    """Whether shards, or the row groups that are given for shards, can only be read whole."""


@runtime_checkable
class NeighbourStore(RemoteStore, Protocol):
    """A store over shards, whose sessions are ``NeighbourSession``."""

    def lying(self, keys: Sequence[str]) -> Lying:
        """The places where the samples with these keys lie. Blocking; no payload is read."""
        ...
