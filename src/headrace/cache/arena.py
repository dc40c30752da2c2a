"""Which bytes of a shared arena hold which entry: the words beside the data. Pure; the caller holds the lock.

The data is cut into pages, a page into chunks of one size, and each chunk has a record at a place of its own. Primary
are the sizes that pages were cut into and the records; what is counted, the hash chains and the list of what waits for
readers are derived, and computed again when a process died inside a method (DIRTY).

A deleted entry is not reused before every reader who may see it has left: each deletion has a number, readers note the
one they came in at, and a chunk is free once all readers came later.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from headrace.cache import arena_words as W
from headrace.cache.arena_words import Shape
from headrace.cache.words import Array, Words

NEAR, FAR = 1.125, 2.0
"""An entry takes a chunk so much larger rather than have another page cut, and so much larger if there is none."""


class Name(NamedTuple):
    """An entry's key in words."""

    scope: int
    scope2: int
    sample: int
    form: int


class Chunk(NamedTuple):
    """Where an entry lies: its record, and its bytes in the data."""

    record: int
    offset: int
    size: int


class Arena:
    """One process's hands on the words: ``words`` to store through, ``view`` to read from."""

    def __init__(self, words: Words, view: Array, shape: Shape) -> None:
        """Nothing is remembered here."""
        self.w, self.r, self.shape = words, view, shape

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Derived facts hold at entry and, unless its process dies within, after."""
        self.heal()
        self.w[W.DIRTY] = 1
        yield
        self.w[W.DIRTY] = 0

    def find(self, name: Name) -> Chunk | None:
        """Where an entry that can be read lies."""
        at = int(self.r[self._bucket(name)])
        while at:
            record = self.r[at - 1 : at - 1 + W.RECORD].tolist()
            if record[W.R_SCOPE : W.R_FORM + 1] == list(name):
                return self._chunk(at - 1)
            at = record[W.R_NEXT]
        return None

    def _bucket(self, name: Name) -> int:
        mixed = (name.scope ^ name.sample * 4 ^ name.form) * 0x9E3779B97F4A7C15 & (1 << 64) - 1
        return self.shape.bucket0 + (mixed >> 20) % self.shape.buckets

    def _chunk(self, record: int) -> Chunk:
        page, chunk = self.shape.page_of(record)
        cut = int(self.r[self.shape.page0 + 2 * page])
        offset = self.shape.data + page * self.shape.page + (0 if cut >= W.WHOLE else chunk * cut)
        return Chunk(record, offset, int(self.r[record + W.R_SIZE]))

    def room(self, size: int) -> tuple[int, int, int] | None:
        """The first page, the pages and the cut with which ``allocate`` would serve; None: there is no room now."""
        cut = self.shape.cut(size)
        pages = self.r[self.shape.page0 : self.shape.record0].reshape(-1, 2)
        if cut <= self.shape.page:
            return self._chunk_room(cut, pages)
        count = -(-cut // self.shape.page)
        free = pages[:, W.G_CUT] == 0
        if count > len(free):
            return None
        runs = np.flatnonzero(np.convolve(free, np.ones(count, np.int64), "valid") == count)
        return (int(runs[0]), count, cut) if len(runs) else None

    def _chunk_room(self, cut: int, pages: Array) -> tuple[int, int, int] | None:
        """A page with a chunk that is free, of this size or larger, or one to be cut."""
        cuts = pages[:, W.G_CUT]
        larger = np.flatnonzero((cuts >= cut) & (cuts <= FAR * cut) & (cuts <= self.shape.page))
        larger = larger[pages[larger, W.G_USED] < self.shape.page // cuts[larger]]
        page = int(larger[cuts[larger].argmin()]) if len(larger) else -1
        if page < 0 or cuts[page] > NEAR * cut:
            free = np.flatnonzero(cuts == 0)
            if len(free):
                return int(free[0]), 1, cut
        return None if page < 0 else (page, 1, int(cuts[page]))

    def allocate(self, name: Name, size: int, where: tuple[int, int, int], writer: int) -> Chunk:
        """A chunk that belongs to ``writer`` until it is published or freed."""
        page, count, cut = where
        at = self.shape.page0 + 2 * page
        if not self.r[at + W.G_CUT]:
            for tail in range(1, count):
                self.w[at + 2 * tail + W.G_CUT] = W.TAIL
            self.w[at + W.G_CUT] = cut if cut <= self.shape.page else W.WHOLE + count
        chunks = self.shape.page // cut if cut <= self.shape.page else 1
        first = self.shape.record(page, 0)
        states = self.r[first : first + chunks * W.RECORD : W.RECORD]
        record = first + int(np.flatnonzero(states == W.FREE)[0]) * W.RECORD
        for field, value in zip((W.R_SCOPE, W.R_SCOPE2, W.R_SAMPLE, W.R_FORM), name, strict=True):
            self.w[record + field] = value
        self.w[record + W.R_SIZE] = size
        self.w[record + W.R_STAMP] = writer
        self.w[record + W.R_STATE] = W.WRITING
        self.w[at + W.G_USED] = int(self.r[at + W.G_USED]) + 1
        self.w[W.HELD] = int(self.r[W.HELD]) + cut
        return self._chunk(record)

    def publish(self, record: int) -> None:
        """Let it be found."""
        name = Name(*self.r[record + W.R_SCOPE : record + W.R_FORM + 1].tolist())
        bucket = self._bucket(name)
        self.w[record + W.R_NEXT] = int(self.r[bucket])
        self.w[record + W.R_STATE] = W.READY
        self.w[bucket] = record + 1
        self.w[W.ENTRIES] = int(self.r[W.ENTRIES]) + 1

    def delete(self, name: Name) -> bool:
        """Let it not be found any more; its chunk waits for readers."""
        bucket = self._bucket(name)
        before, at = -1, int(self.r[bucket])
        while at:
            record, following = at - 1, int(self.r[at - 1 + W.R_NEXT])
            if tuple(self.r[record + W.R_SCOPE : record + W.R_FORM + 1].tolist()) == name:
                self.w[record + W.R_STAMP] = int(self.r[W.CLOCK])
                self.w[record + W.R_STATE] = W.WAITS
                self.w[W.CLOCK] = int(self.r[W.CLOCK]) + 1
                self.w[bucket if before < 0 else before + W.R_NEXT] = following
                self.w[record + W.R_NEXT] = int(self.r[W.WAITING])
                self.w[W.WAITING] = at
                self.w[W.ENTRIES] = int(self.r[W.ENTRIES]) - 1
                return True
            before, at = record, following
        return False

    def oldest(self) -> int:
        """The number of the first deletion that some reader may not know of."""
        active = self.r[self.shape.readers : self.shape.readers + W.READERS]
        active = active[active > 0]
        return int(active.min()) - 1 if len(active) else int(self.r[W.CLOCK])

    def reclaim(self) -> int:
        """Free what no reader can see any more; how many chunks."""
        oldest, count = self.oldest(), 0
        before, at = -1, int(self.r[W.WAITING])
        while at:
            record, following = at - 1, int(self.r[at - 1 + W.R_NEXT])
            if int(self.r[record + W.R_STAMP]) < oldest:
                self.w[W.WAITING if before < 0 else before + W.R_NEXT] = following
                self.free(record)
                count += 1
            else:
                before = record
            at = following
        return count

    def free(self, record: int) -> None:
        """Of a chunk that cannot be found; the last one of a page gives the page back."""
        page, _ = self.shape.page_of(record)
        at = self.shape.page0 + 2 * page
        cut = int(self.r[at + W.G_CUT])
        self.w[record + W.R_STATE] = W.FREE
        used = int(self.r[at + W.G_USED]) - 1
        self.w[at + W.G_USED] = used
        pages = cut - W.WHOLE if cut >= W.WHOLE else 1
        self.w[W.HELD] = int(self.r[W.HELD]) - (pages * self.shape.page if cut >= W.WHOLE else cut)
        if not used:
            self.w[at + W.G_CUT] = 0
            for tail in range(1, pages):
                self.w[at + 2 * tail + W.G_CUT] = 0

    def written_by(self, writer: int) -> list[int]:
        """Records that a writer began and did not publish."""
        return [record for record, _ in self.records(W.WRITING) if int(self.r[record + W.R_STAMP]) == writer]

    def records(self, only: int | None = None) -> Iterator[tuple[int, int]]:
        """All records that are not free, with their states; ``only`` those in one."""
        cuts = self.r[self.shape.page0 : self.shape.record0 : 2]
        for page in np.flatnonzero((cuts > 0) & (cuts < W.TAIL)).tolist():
            cut, first = int(cuts[page]), self.shape.record(page, 0)
            chunks = 1 if cut >= W.WHOLE else self.shape.page // cut
            states = self.r[first : first + chunks * W.RECORD : W.RECORD]
            for chunk in np.flatnonzero(states != W.FREE if only is None else states == only).tolist():
                yield first + chunk * W.RECORD, int(states[chunk])

    def heal(self) -> None:
        """If somebody died inside a method: compute again all that is derived."""
        if not self.r[W.DIRTY]:
            return
        shape = self.shape
        self.w[shape.bucket0 : shape.page0] = np.zeros(shape.buckets, np.int64)
        for fact in (W.ENTRIES, W.HELD, W.WAITING):
            self.w[fact] = 0
        used: dict[int, int] = {}
        for record, state in list(self.records()):
            page, _ = shape.page_of(record)
            used[page] = used.get(page, 0) + 1
            if state == W.READY:
                self.publish(record)
            elif state == W.WAITS:
                self.w[record + W.R_NEXT] = int(self.r[W.WAITING])
                self.w[W.WAITING] = record + 1
        held, covered = 0, -1
        for page in range(shape.pages):
            at = shape.page0 + 2 * page
            cut = int(self.r[at + W.G_CUT])
            if page <= covered:
                self.w[at + W.G_CUT] = W.TAIL
            elif cut and page not in used:
                self.w[at + W.G_CUT] = 0
            elif cut >= W.WHOLE:
                covered = page + cut - W.WHOLE - 1
                held += (cut - W.WHOLE) * shape.page
            else:
                held += cut * used.get(page, 0)
            self.w[at + W.G_USED] = used.get(page, 0)
        self.w[W.HELD] = held
        self.w[W.REBUILT] = int(self.r[W.REBUILT]) + 1
        self.w[W.DIRTY] = 0
