"""The protocol of a shared cache, wherever it is kept: a small one, which shared memory and Redis implement.

Nothing here decides anything: the rules are in ``share.py``. All of it is a hint. Words that lag, are lost or make no
sense cost time and nothing else, so no method raises once a backend is open: what cannot be had is nothing.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from headrace.cache.backends.entry_word import Array, Words
from headrace.cache.division import DivisionRecord, Sums
from headrace.cache.entries.entry import Bytes, Pieces


class Entry(NamedTuple):
    """The name of one entry of the table, wherever the entry lies."""

    sample: int
    word: int


class RoomUse(NamedTuple):
    """The room that is taken, and counts of entries."""

    held: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Bytes of this dataset's entries: encoded, decoded and augmented ones in memory, and those on disk."""
    others: int = 0
    """Bytes in memory that other datasets of the cache take."""
    kept: int = 0
    """Entries that were ever added, those of them that gave way, and those that were gone when they were to be read."""
    evicted: int = 0
    lost: int = 0


class CacheTerms(NamedTuple):
    """The limits on what may be held."""

    budget: tuple[int, int, int, int]
    """As ``RoomUse.held``."""
    limit: int
    """Bytes in memory, of all datasets."""


class Swapped(NamedTuple):
    """The result of a swap."""

    removed: list[Entry]
    added: list[Entry]


class Aside(Protocol):
    """An entry that was written, and that nobody finds yet. If neither method is called, it goes by itself."""

    def settle(self) -> bool:
        """Let it be found under its name; False: it could not be."""

    def drop(self) -> None: ...


class Backend(Protocol):
    """A dataset in a cache. Used by one thread of one process at a time; entered twice, it has nothing."""

    samples: int
    where: str
    """What the cache is called, without what is secret."""
    slow: bool
    """Whether it lies behind a network: what is looked at often is then remembered for a while."""

    @property
    def rests(self) -> bool:
        """True if the cache cannot be asked at the moment, and is left alone."""

    @property
    def barred(self) -> bool:
        """True if nothing can be changed there at the moment."""

    def word(self, sample: int) -> int:
        """The word of one sample."""

    def words(self, samples: Array) -> Words:
        """The words of these samples."""

    def block(self, first: int, count: int) -> Words:
        """The words of ``count`` samples in a row."""

    def arrivals(self, since: int) -> tuple[Array | None, int]:
        """Samples added since then, and what to ask with next time; None: look at all of the table."""

    def swap(self, remove: Sequence[Entry], add: Sequence[Entry], terms: CacheTerms, *, lost: bool = False) -> Swapped:
        """Remove and add entries in one step. Those to ``remove`` that the table still has are taken out; those to
        ``add`` of whose samples it has nothing are put in, one after the other, as long as there is room within
        ``terms``. ``lost``: what is taken out is not there, or not whole; otherwise it gives way.
        """

    def aside(self, entry: Entry, pieces: Pieces) -> Aside | None:
        """Write an entry; None where it cannot be."""

    def read(self, entry: Entry) -> Bytes | None:
        """A copy of what lies under that name, in memory of the caller's own."""

    def erase(self, entries: Sequence[Entry]) -> None:
        """Delete what lies under these names."""

    def footprint(self, size: int) -> int:
        """Bytes of room that an entry of ``size`` bytes takes."""

    def room(self) -> RoomUse: ...

    def correct(self, by: Sequence[int]) -> None:
        """Add to what is counted as held."""

    def saw(self, name: str, fresh: Array, mirror: Bytes) -> None:
        """Publish what was seen of an epoch: ``fresh``, since the last time, and ``mirror``, all of it, a bit each."""

    def seen(self, names: Sequence[str], first: int, count: int) -> list[Bytes]:
        """The samples that were seen of each of these epochs, a bit for each of ``count`` samples from ``first``, a
        multiple of 8.
        """

    def forget(self, name: str) -> None:
        """Forget what was seen of an epoch, which is over."""

    def claim(self, job: str, entries: Sequence[Entry]) -> list[bool]:
        """Note that a job has made or is given these augmented entries; False: it had been before."""

    def report(self, name: str, record: bytes) -> None:
        """Publish a rank's report of itself; the rank counts as alive until it leaves, or is not heard of any more."""

    def reports(self) -> dict[str, bytes]:
        """The reports of the ranks that live, by name."""

    def leave(self, name: str) -> None: ...

    def division(self) -> DivisionRecord | None:
        """The division that holds, if there is one."""

    def divide(self, new: DivisionRecord, after: int | None) -> bool:
        """Have a division hold if the one that holds has the number ``after`` (None: whichever)."""

    def measure(self, sums: Sums) -> bool:
        """Add what was measured; False: try again later."""

    def measured(self) -> Sums: ...

    def fade(self) -> None:
        """Make what was measured so far count half from now on."""

    def spoil(self) -> None:
        """Have nothing of this data used any more: what was kept is not what is made."""

    def spoilt(self) -> bool:
        """True if somebody found that what was kept is not what is made; until the cache is cleared."""

    def note_disk(self, path: str) -> None:
        """A directory has entries of this cache: for whoever clears it."""

    def siblings(self) -> Sequence["Backend"]:
        """The other datasets of the cache; to be closed by the caller."""

    def remove(self) -> None:
        """Remove everything of this dataset."""

    def close(self) -> None:
        """Idempotent. What is held stays."""


PART = 1 << 17
"""Samples of a table that are looked at together."""


def blocks(backend: Backend) -> Iterator[tuple[int, Words]]:
    """All of a table, part by part: the first sample of each, and the words of that and those after it."""
    for first in range(0, backend.samples, PART):
        yield first, backend.block(first, min(PART, backend.samples - first))
