"""The layout of a run's facts in a sequence of 64-bit words shared by all processes.

How those are written that share a word, or may be absent, is in ``encoding``: ``some``, ``pair`` and others.

The words are sparse: a region is reserved for the largest case and costs memory only where it is touched.
"""

import zlib
from typing import TypeAlias

Words: TypeAlias = "memoryview[int]"
"""A mutable sequence of 64-bit integers, sliced and assigned to as a ``memoryview`` with format ``q`` is."""

# Header
GENERATION = 0  # counts epochs; a result of an older generation is dropped
STOP = 1  # lanes leave when they see it
FREE_ORDER = 2  # 1: rows are claimed on completion; 0: they were assigned at dispatch
TAIL = 3  # groups published
CURSOR = 4  # next ticket to take: see ``cursor``
FILL_TAIL = 5  # slots offered to finishers (free order)
FILL_CURSOR = 6  # the slot being filled
RETRIES = 7  # entries in the retry stack
HOLES = 8  # entries in the hole stack
UNRESOLVED = 9  # tickets published and neither done nor failed (derived)
AWAITED = 10  # what the trainer sleeps for: NOTHING, ANY, or some(slot)
FAILURES = 11  # tickets failed in this generation (a hint; the tickets themselves are the fact)
EPOCH = 14  # its number
SEED = 15  # with the epoch and the index: what a sample's random numbers come from
LIMIT = 16  # lanes that may take tickets at once
FOREGROUND = 17  # lanes that do (derived)
THRESHOLD = 18  # nanoseconds after which a sample counts as slow; 0 while unknown
FINISHED, SLOW = 19, 20  # samples finished, and those of them that took longer than the threshold in force
DISPLACEMENT = 22  # free order: batches by which a sample may be overtaken; 0: any number
OLDEST = 23  # the first group some of whose tickets have no row yet (a hint: never too late)
HANDOFFS = 21  # lanes that went to the background with a slow sample
LOCAL = 24  # samples cannot travel between workers: each batch is made by one
NEVER = 1 << 62
BAR = 27  # nanoseconds after which a lane was put aside, last
RETURNS, EXCESS = 28, 29  # lanes that came back from aside, and the nanoseconds they had been there, in all
RUN = 30  # what the trace calls the iteration's first epoch (each further one is by one higher)
LANES = 33  # lanes that ever had a worker
BATCHES = 31  # slots opened, which numbers them
WORTH_WAKING = 34  # tickets that are worth waking a lane for, as the last to take some saw it; 0 while unknown (a hint)
MUTEX, MUTEX_WORDS = 40, 8  # the lock, where it is one of POSIX threads; the last word: how often it is entered
HISTOGRAM = 64  # samples finished, by cost: BINS words
BINS = 256
STRAGGLES, STRAGGLER_NS = 8, 5_000_000  # extraordinary: so many times the threshold, and not a hiccup of the machine
LOGGED = 32  # samples of extraordinary cost so far; their indices stand in LOG, the newest ones
LOG = HISTOGRAM + BINS
LOG_SIZE = 64
ASIDE_AT = LOG + LOG_SIZE  # lanes put aside, by the operation they were at: OPERATIONS words
OPERATIONS = 65  # operations told apart, numbered from 1 on; 0: in none
HEADER = ASIDE_AT + OPERATIONS

NOTHING, ANY = 0, -1

# Lane (one per worker)
L_GENERATION, L_GROUP, L_START, L_END = 0, 1, 2, 3  # tickets held: some(group), [start, end), of which a rest may go
L_POS = 4  # the one being made; = end once all are made
L_SLOT, L_ROW, L_ROWS = 5, 6, 7  # rows held: some(slot), [row, row + rows)
L_COLLATE = 8  # some(slot being collated)
L_WAITING = 9  # asleep until woken: FOR_WORK or FOR_ROOM
L_QUOTA, L_MADE, L_ENDED = 10, 11, 12  # streams: batches allowed, made; 1 when the stream is exhausted
L_ROLE, L_BEGAN = 14, 15  # PARKED, WORKING or ASIDE; when the sample being made was begun (nanoseconds)
L_SERIAL = 13  # G_SERIAL of the group held: a claim on an earlier use of the group's number is void
L_OPERATION = 16  # the operation the sample being made is at
L_STAGE = 17  # how far its worker has come: STARTING, INITIALIZING (in worker_init_fn) or AT_WORK
L_WHOLE = 18  # 1: the tickets held are made together, and none of them can be taken away
LANE = 19
PARKED, WORKING, ASIDE = 0, 1, 2
FOR_WORK, FOR_ROOM = 1, 2
STARTING, INITIALIZING, AT_WORK = 0, 1, 2
STREAM_RING = 64  # slots assigned ahead to one stream

# Group (one batch of indices, as drawn)
G_COUNT, G_SLOT = 0, 1  # tickets; some(slot) or 0
G_KIND, G_BLOB = 2, 3  # INTEGERS or PICKLED; bytes used in its blob
G_SERIAL = 4  # tells one use of a group number from the next: pair(generation, place in the order)
G_UNCLAIMED = 5  # free order: tickets that have no row yet (derived)
G_AHEAD = 7  # 1: some of its tickets were queued before their turn
GROUP = 8
INTEGERS, PICKLED = 0, 1
PLANNED = 2  # added: behind its indices, its blob says where what is needed for each sample lies

# Ticket: one word, state | deaths << 4 | AHEAD | blob offset << 8: see ``state``, ``deaths``, ``blob``, ``failed``
PENDING, DONE, FAILED = 0, 1, 2
NO_BLOB = 0  # the offset of a ticket that failed by taking its worker down
AHEAD = 1 << 7  # queued before its turn: not for those who take tickets in order
DEATHS_ALLOWED = 1  # a sample is run again after this many deaths

# Slot (one batch being made or delivered)
S_STATUS, S_EXPECTED, S_CLAIMED, S_DONE = 0, 1, 2, 3
S_LAYOUT, S_BUMP, S_COLLATE, S_DEATHS = 4, 5, 6, 7  # see ``layout``; bytes used; 1: a worker must collate
S_RESULT, S_RESULT_BYTES, S_FAILED = 8, 9, 10  # where the collated object stands; 1: it is an error
S_STATE, S_ITEMS, S_LAST = 11, 12, 14  # streams: some(offset of its state); items; 1: the stream ended with this batch
S_NUMBER = 13  # free order: its place in the order of filling, which is that of delivery
S_BATCH = 17  # its number among all slots opened
S_KEPT = 15  # some(lane) whose user code still refers to this memory: it is not used again as long as that does
SLOT = 20
IDLE, FILLING, COLLATING, READY = 0, 1, 2, 3
UNDECIDED = -2

# Row: some(pair(group, position)), then state | object offset << 8: see ``kind``, ``offset``, ``as_object``
EMPTY, IN_PLACE, AS_OBJECT, ABSENT = 0, 1, 2, 3
WHOLE = 1 << 48  # the object offset of a sample that exists only within its batch's result

# Account (one per lane, written by that lane alone): for sample sizes (operation 0) and each operation, COSTS words
COSTS = 65  # how many had a size or cost of so many bits; their sum

# Story (one ring per lane, written by that lane alone): records told so far, then those, TOLD words each: see ``story``
TOLD = 7

VERSION = zlib.crc32(repr([(name, value) for name, value in sorted(globals().items()) if type(value) is int]).encode())
"""Tells these numbers from any others: a native module was built from the same ones, or is not used."""


def check(what: str, number: int, there: int) -> None:
    """Raise IndexError where ``number`` is none of so many."""
    if not 0 <= number < there:
        raise IndexError(f"{what} {number}: there are {there}")


def _check_span(what: str, first: int, count: int, there: int) -> None:
    if not 0 <= first <= first + count <= there:
        raise IndexError(f"{count} {what} from {first} on: there are {there}")


class Dims:
    """The most of each kind that there can be, and where each begins. The defaults are reservations, not
    allocations.
    """

    def __init__(
        self, lanes: int = 512, groups: int = 1024, slots: int = 256, rows: int = 1 << 20, told: int = 0
    ) -> None:
        """``rows``: samples in one batch. ``told``: records in a lane's story; 0: nobody asked for one.

        Computed once: these numbers are used for every batch.
        """
        self.lanes, self.groups, self.slots, self.rows, self.told = lanes, groups, slots, rows, told
        self.ring = 2 * max(groups, slots)  # more than can be outstanding at once
        self._lane_stride = LANE + STREAM_RING
        self.order = HEADER + lanes * self._lane_stride  # the ring of published groups
        self.fill = self.order + self.ring  # the ring of offered slots
        self.retry = self.fill + self.ring  # the stack of tickets to run again
        stack = lanes * rows + slots  # all that lanes can hold: nothing new is taken while the stack has something
        self.hole = self.retry + stack + groups * rows  # the stack of rows whose owner died; before it, what is AHEAD
        self.group0, self.group_stride = self.hole + stack, GROUP + 2 * rows
        self.index0, self.ticket0 = self.group0 + GROUP, self.group0 + GROUP + rows
        self.slot0, self.slot_stride = self.group0 + groups * self.group_stride, SLOT + 2 * rows
        self.row_ticket0, self.row_state0 = self.slot0 + SLOT, self.slot0 + SLOT + rows
        self.account0 = self.slot0 + slots * self.slot_stride
        self.story0 = self.account0 + lanes * OPERATIONS * COSTS
        self.words = self.story0 + (lanes * (1 + told * TOLD) if told else 0)

    def check_lane(self, lane: int) -> None:
        """Raise IndexError where there is no such lane."""
        check("lane", lane, self.lanes)

    def check_slot(self, slot: int) -> None:
        """Raise IndexError where there is no such slot."""
        check("slot", slot, self.slots)

    def check_group(self, group: int) -> None:
        """Raise IndexError where there is no such group."""
        check("group", group, self.groups)

    def check_span(self, what: str, first: int, count: int) -> None:
        """Raise IndexError where a batch cannot have that many rows, or tickets, from ``first`` on."""
        _check_span(what, first, count, self.rows)

    def check_lanes(self, lanes: int) -> None:
        """Raise IndexError where there cannot be so many lanes."""
        _check_span("lanes", 0, lanes, self.lanes)

    def check_words(self, words: Words) -> None:
        """Raise ValueError where a ledger is not all there."""
        if len(words) < self.words:
            raise ValueError(f"{len(words)} words where the ledger has {self.words}")

    def lane(self, lane: int) -> int:
        """First word of a lane."""
        return HEADER + lane * self._lane_stride

    def account(self, lane: int) -> int:
        """First word of a lane's account."""
        return self.account0 + lane * OPERATIONS * COSTS

    def story(self, lane: int) -> int:
        """First word of a lane's story, where there is one."""
        return self.story0 + lane * (1 + self.told * TOLD)

    def group(self, group: int) -> int:
        """First word of a group."""
        return self.group0 + group * self.group_stride

    def index(self, group: int) -> int:
        """First index of a group."""
        return self.index0 + group * self.group_stride

    def ticket(self, group: int) -> int:
        """First ticket of a group."""
        return self.ticket0 + group * self.group_stride

    def slot(self, slot: int) -> int:
        """First word of a slot."""
        return self.slot0 + slot * self.slot_stride

    def row_ticket(self, slot: int) -> int:
        """First row's ticket."""
        return self.row_ticket0 + slot * self.slot_stride

    def row_state(self, slot: int) -> int:
        """First row's state."""
        return self.row_state0 + slot * self.slot_stride
