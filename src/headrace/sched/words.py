"""Where every fact of a run stands in a sequence of 64-bit words shared by all processes.

The words are sparse: a region is reserved for the largest case and costs memory only where it is touched.
"""

from dataclasses import dataclass

# Header
GENERATION = 0  # counts epochs; a result of an older generation is dropped
STOP = 1  # lanes leave when they see it
FREE_ORDER = 2  # 1: rows are claimed on completion; 0: they were assigned at dispatch
TAIL = 3  # groups published
CURSOR = 4  # next ticket to take: position in the order << 24 | position in the group
FILL_TAIL = 5  # slots offered to finishers (free order)
FILL_CURSOR = 6  # the slot being filled
RETRIES = 7  # entries in the retry stack
HOLES = 8  # entries in the hole stack
UNRESOLVED = 9  # tickets published and neither done nor failed (derived)
AWAITED = 10  # what the consumer sleeps for: NOTHING, ANY, or slot + 1
FAILURES = 11  # tickets failed in this generation (a hint; the tickets themselves are the fact)
LAYOUTS = 12  # layouts registered
LAYOUT_BYTES = 13  # bytes used in the layout region
EPOCH = 14  # with SEED and the index: what a sample's random numbers come from
SEED = 15
HEADER = 64

NOTHING, ANY = 0, -1

# Lane (one per worker)
L_GENERATION, L_GROUP, L_START, L_END = 0, 1, 2, 3  # tickets held: group + 1, [start, end)
L_POS = 4  # the one being made; = end once all are made
L_SLOT, L_ROW, L_ROWS = 5, 6, 7  # rows held: slot + 1, [row, row + rows)
L_COLLATE = 8  # slot being collated, + 1
L_WAITING = 9  # asleep until woken
L_QUOTA, L_MADE, L_ENDED = 10, 11, 12  # streams: batches allowed, made; 1 when the stream is exhausted
LANE = 16
STREAM_RING = 64  # slots assigned ahead to one stream

# Group (one batch of indices, as drawn)
G_COUNT, G_SLOT, G_KIND, G_BLOB = 0, 1, 2, 3  # tickets; slot + 1 or 0; INTEGERS or PICKLED; bytes used in its blob
G_SERIAL = 4  # tells one use of a group number from the next
GROUP = 8
INTEGERS, PICKLED = 0, 1

# Ticket: one word, state | deaths << 4 | blob offset << 8
PENDING, DONE, FAILED = 0, 1, 2
NO_BLOB = 0  # the offset of a ticket that failed by taking its worker down
DEATHS_ALLOWED = 1  # a sample is run again after this many deaths

# Slot (one batch being made or delivered)
S_STATUS, S_EXPECTED, S_CLAIMED, S_DONE = 0, 1, 2, 3
S_LAYOUT, S_BUMP, S_COLLATE, S_DEATHS = 4, 5, 6, 7  # layout + 1; bytes used; 1: a worker must collate
S_RESULT, S_RESULT_BYTES, S_FAILED = 8, 9, 10  # where the collated object stands; 1: it is an error
SLOT = 16
IDLE, FILLING, COLLATING, READY = 0, 1, 2, 3

# Row: ticket word (group << 32 | pos) + 1, then state | object offset << 8
EMPTY, IN_PLACE, AS_OBJECT, ABSENT = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class Dims:
    """How many of each there can be at most. The defaults are reservations, not allocations."""

    lanes: int = 512
    groups: int = 4096
    slots: int = 1024
    rows: int = 1 << 20
    """Samples in one batch."""

    @property
    def ring(self) -> int:
        """Length of the two order rings; more than can be outstanding at once."""
        return 2 * max(self.groups, self.slots)

    @property
    def stack(self) -> int:
        """Length of the retry and hole stacks."""
        return self.rows

    def lane(self, lane: int) -> int:
        """First word of a lane."""
        return HEADER + lane * (LANE + STREAM_RING)

    @property
    def order(self) -> int:
        """First word of the ring of published groups."""
        return self.lane(self.lanes)

    @property
    def fill(self) -> int:
        """First word of the ring of offered slots."""
        return self.order + self.ring

    @property
    def retry(self) -> int:
        """First word of the stack of tickets to run again."""
        return self.fill + self.ring

    @property
    def hole(self) -> int:
        """First word of the stack of rows whose owner died."""
        return self.retry + self.stack

    def group(self, group: int) -> int:
        """First word of a group: its header, its indices, its tickets."""
        return self.hole + self.stack + group * (GROUP + 2 * self.rows)

    def index(self, group: int) -> int:
        """First index of a group."""
        return self.group(group) + GROUP

    def ticket(self, group: int) -> int:
        """First ticket of a group."""
        return self.group(group) + GROUP + self.rows

    def slot(self, slot: int) -> int:
        """First word of a slot: its header, its rows' tickets, its rows' states."""
        return self.group(self.groups) + slot * (SLOT + 2 * self.rows)

    def row_ticket(self, slot: int) -> int:
        """First row's ticket."""
        return self.slot(slot) + SLOT

    def row_state(self, slot: int) -> int:
        """First row's state."""
        return self.slot(slot) + SLOT + self.rows

    @property
    def words(self) -> int:
        """All of it."""
        return self.slot(self.slots)
