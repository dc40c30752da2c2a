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

from headrace.cache.words import Array, Words

# Header
MAGIC, VERSION, SIZE, PAGES, PAGE_BYTES, DIRTY = 0, 1, 2, 3, 4, 5
CLOCK = 6  # number of the next deletion
ENTRIES, HELD = 7, 8  # entries that can be read; bytes of all chunks that are not free (derived)
WAITING = 9  # first of the records that wait for readers, + 1 (derived)
REBUILT = 10
HEADER = 16

# Reader (one per process): the deletion it came in at, + 1; 0: it reads nothing
READERS = 256

# Page: what it was cut into, and how many of its chunks are not free (derived)
G_CUT, G_USED = 0, 1
WHOLE, TAIL = 1 << 40, 1 << 41  # first page of a run: WHOLE + its pages; a further one: TAIL

# Record
R_STATE, R_SCOPE, R_SCOPE2, R_SAMPLE, R_FORM, R_SIZE, R_STAMP, R_NEXT = range(8)
RECORD = 8
FREE, WRITING, READY, WAITS = 0, 1, 2, 3  # R_STAMP: the writer's number, or that of the deletion

SMALLEST = 1024
STEP = 1.0625
"""From one size of chunks to the next: a random entry leaves a 32nd of its chunk empty."""
FEW = 16
"""Where no more than these go into a page, they are cut to fill it."""
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


class Shape:
    """Where everything stands for an arena of ``size`` bytes in all."""

    def __init__(self, size: int) -> None:
        """Pages are a 256th of the arena, so that there are some for each size of chunks, up to 8 MiB; in a small one
        they are larger, up to 256 KiB, so that they can be cut finely.
        """
        most = (size >> 8) if size >> 8 >= 1 << 18 else min(size >> 6, 1 << 18)
        self.page = 1 << min(23, max(16, most.bit_length() - 1))
        self.records_per_page = self.page // SMALLEST
        per_page = self.page + 8 * (2 + RECORD * self.records_per_page)
        fixed = 8 * (HEADER + READERS)
        self.buckets = 1 << max(10, (size >> 15).bit_length())
        self.pages = max(0, (size - fixed - 8 * self.buckets - self.page) // per_page)
        self.readers = HEADER
        self.bucket0 = self.readers + READERS
        self.page0 = self.bucket0 + self.buckets
        self.record0 = self.page0 + 2 * self.pages
        self.words = self.record0 + self.pages * self.records_per_page * RECORD
        self.data = -(-8 * self.words // 4096) * 4096
        self.size = size
        self.cuts = _cuts(self.page)

    def cut(self, size: int) -> int:
        """The chunk that ``size`` bytes take; more than a page: whole pages."""
        for cut in self.cuts:
            if size <= cut:
                return cut
        return -(-size // self.page) * self.page

    def record(self, page: int, chunk: int) -> int:
        """The word where a chunk's record begins."""
        return self.record0 + (page * self.records_per_page + chunk) * RECORD

    def page_of(self, record: int) -> tuple[int, int]:
        """Page and chunk of a record."""
        return divmod((record - self.record0) // RECORD, self.records_per_page)


def _cuts(page: int) -> list[int]:
    found, size = [], float(SMALLEST)
    while size <= page // FEW:
        found.append(int(size) // 64 * 64)
        size *= STEP
    return sorted({*found, *(page // chunks // 64 * 64 for chunks in range(1, FEW + 1))})


class Arena:
    """One process's hands on the words: ``words`` to store through, ``view`` to read from."""

    def __init__(self, words: Words, view: Array, shape: Shape) -> None:
        """Nothing is remembered here."""
        self.w, self.r, self.shape = words, view, shape

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Derived facts hold at entry and, unless its process dies within, after."""
        self.heal()
        self.w[DIRTY] = 1
        yield
        self.w[DIRTY] = 0

    def find(self, name: Name) -> Chunk | None:
        """Where an entry that can be read lies."""
        at = int(self.r[self._bucket(name)])
        while at:
            record = self.r[at - 1 : at - 1 + RECORD].tolist()
            if record[R_SCOPE : R_FORM + 1] == list(name):
                return self._chunk(at - 1)
            at = record[R_NEXT]
        return None

    def _bucket(self, name: Name) -> int:
        mixed = (name.scope ^ name.sample * 4 ^ name.form) * 0x9E3779B97F4A7C15 & (1 << 64) - 1
        return self.shape.bucket0 + (mixed >> 20) % self.shape.buckets

    def _chunk(self, record: int) -> Chunk:
        page, chunk = self.shape.page_of(record)
        cut = int(self.r[self.shape.page0 + 2 * page])
        offset = self.shape.data + page * self.shape.page + (0 if cut >= WHOLE else chunk * cut)
        return Chunk(record, offset, int(self.r[record + R_SIZE]))

    def room(self, size: int) -> tuple[int, int, int] | None:
        """The first page, the pages and the cut with which ``allocate`` would serve; None: there is no room now."""
        cut = self.shape.cut(size)
        pages = self.r[self.shape.page0 : self.shape.record0].reshape(-1, 2)
        if cut <= self.shape.page:
            return self._chunk_room(cut, pages)
        count = -(-cut // self.shape.page)
        free = pages[:, G_CUT] == 0
        if count > len(free):
            return None
        runs = np.flatnonzero(np.convolve(free, np.ones(count, np.int64), "valid") == count)
        return (int(runs[0]), count, cut) if len(runs) else None

    def _chunk_room(self, cut: int, pages: Array) -> tuple[int, int, int] | None:
        """A page with a chunk that is free, of this size or larger, or one to be cut."""
        cuts = pages[:, G_CUT]
        larger = np.flatnonzero((cuts >= cut) & (cuts <= FAR * cut) & (cuts <= self.shape.page))
        larger = larger[pages[larger, G_USED] < self.shape.page // cuts[larger]]
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
        if not self.r[at + G_CUT]:
            for tail in range(1, count):
                self.w[at + 2 * tail + G_CUT] = TAIL
            self.w[at + G_CUT] = cut if cut <= self.shape.page else WHOLE + count
        chunks = self.shape.page // cut if cut <= self.shape.page else 1
        first = self.shape.record(page, 0)
        states = self.r[first : first + chunks * RECORD : RECORD]
        record = first + int(np.flatnonzero(states == FREE)[0]) * RECORD
        for field, value in zip((R_SCOPE, R_SCOPE2, R_SAMPLE, R_FORM), name, strict=True):
            self.w[record + field] = value
        self.w[record + R_SIZE] = size
        self.w[record + R_STAMP] = writer
        self.w[record + R_STATE] = WRITING
        self.w[at + G_USED] = int(self.r[at + G_USED]) + 1
        self.w[HELD] = int(self.r[HELD]) + cut
        return self._chunk(record)

    def publish(self, record: int) -> None:
        """Let it be found."""
        name = Name(*self.r[record + R_SCOPE : record + R_FORM + 1].tolist())
        bucket = self._bucket(name)
        self.w[record + R_NEXT] = int(self.r[bucket])
        self.w[record + R_STATE] = READY
        self.w[bucket] = record + 1
        self.w[ENTRIES] = int(self.r[ENTRIES]) + 1

    def delete(self, name: Name) -> bool:
        """Let it not be found any more; its chunk waits for readers."""
        bucket = self._bucket(name)
        before, at = -1, int(self.r[bucket])
        while at:
            record, following = at - 1, int(self.r[at - 1 + R_NEXT])
            if tuple(self.r[record + R_SCOPE : record + R_FORM + 1].tolist()) == name:
                self.w[record + R_STAMP] = int(self.r[CLOCK])
                self.w[record + R_STATE] = WAITS
                self.w[CLOCK] = int(self.r[CLOCK]) + 1
                self.w[bucket if before < 0 else before + R_NEXT] = following
                self.w[record + R_NEXT] = int(self.r[WAITING])
                self.w[WAITING] = at
                self.w[ENTRIES] = int(self.r[ENTRIES]) - 1
                return True
            before, at = record, following
        return False

    def oldest(self) -> int:
        """The number of the first deletion that some reader may not know of."""
        active = self.r[self.shape.readers : self.shape.readers + READERS]
        active = active[active > 0]
        return int(active.min()) - 1 if len(active) else int(self.r[CLOCK])

    def reclaim(self) -> int:
        """Free what no reader can see any more; how many chunks."""
        oldest, count = self.oldest(), 0
        before, at = -1, int(self.r[WAITING])
        while at:
            record, following = at - 1, int(self.r[at - 1 + R_NEXT])
            if int(self.r[record + R_STAMP]) < oldest:
                self.w[WAITING if before < 0 else before + R_NEXT] = following
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
        cut = int(self.r[at + G_CUT])
        self.w[record + R_STATE] = FREE
        used = int(self.r[at + G_USED]) - 1
        self.w[at + G_USED] = used
        pages = cut - WHOLE if cut >= WHOLE else 1
        self.w[HELD] = int(self.r[HELD]) - (pages * self.shape.page if cut >= WHOLE else cut)
        if not used:
            self.w[at + G_CUT] = 0
            for tail in range(1, pages):
                self.w[at + 2 * tail + G_CUT] = 0

    def written_by(self, writer: int) -> list[int]:
        """Records that a writer began and did not publish."""
        return [record for record, _ in self.records(WRITING) if int(self.r[record + R_STAMP]) == writer]

    def records(self, only: int | None = None) -> Iterator[tuple[int, int]]:
        """All records that are not free, with their states; ``only`` those in one."""
        cuts = self.r[self.shape.page0 : self.shape.record0 : 2]
        for page in np.flatnonzero((cuts > 0) & (cuts < TAIL)).tolist():
            cut, first = int(cuts[page]), self.shape.record(page, 0)
            chunks = 1 if cut >= WHOLE else self.shape.page // cut
            states = self.r[first : first + chunks * RECORD : RECORD]
            for chunk in np.flatnonzero(states != FREE if only is None else states == only).tolist():
                yield first + chunk * RECORD, int(states[chunk])

    def heal(self) -> None:
        """If somebody died inside a method: compute again all that is derived."""
        if not self.r[DIRTY]:
            return
        shape = self.shape
        self.w[shape.bucket0 : shape.page0] = np.zeros(shape.buckets, np.int64)
        for fact in (ENTRIES, HELD, WAITING):
            self.w[fact] = 0
        used: dict[int, int] = {}
        for record, state in list(self.records()):
            page, _ = shape.page_of(record)
            used[page] = used.get(page, 0) + 1
            if state == READY:
                self.publish(record)
            elif state == WAITS:
                self.w[record + R_NEXT] = int(self.r[WAITING])
                self.w[WAITING] = record + 1
        held, covered = 0, -1
        for page in range(shape.pages):
            at = shape.page0 + 2 * page
            cut = int(self.r[at + G_CUT])
            if page <= covered:
                self.w[at + G_CUT] = TAIL
            elif cut and page not in used:
                self.w[at + G_CUT] = 0
            elif cut >= WHOLE:
                covered = page + cut - WHOLE - 1
                held += (cut - WHOLE) * shape.page
            else:
                held += cut * used.get(page, 0)
            self.w[at + G_USED] = used.get(page, 0)
        self.w[HELD] = held
        self.w[REBUILT] = int(self.r[REBUILT]) + 1
        self.w[DIRTY] = 0
