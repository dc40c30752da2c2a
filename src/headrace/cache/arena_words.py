"""Where every fact of a shared arena stands in the words beside its data, and how its pages may be cut."""

# Header
MAGIC, VERSION, SIZE = 0, 1, 2
DIRTY = 5
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
