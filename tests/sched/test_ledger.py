"""Single steps of the ledger."""

import contextlib

import pytest

from headrace.sched import ledger_layout as W
from headrace.sched.epochs import oversight
from headrace.sched.epochs.publication import Batch
from headrace.sched.epochs.repair import mend
from headrace.sched.lanes import filing
from headrace.sched.lanes.lane_ledger import LaneLedger
from headrace.sched.lanes.lane_messages import ClaimResult, Filed, Next, RowSpan, TakeRule, TakeSize, Tickets, Written
from headrace.sched.ledger_layout import Dims
from tests.sched.memory import KILLED, Words

DIMS = Dims(lanes=3, groups=8, slots=6, rows=8)


def room(rows: int) -> int:
    return 10 * rows


class Lane:
    """A lane's ledger, step by step."""

    def __init__(self, ledger: LaneLedger) -> None:
        self.ledger = ledger

    def take(self, want: int) -> Tickets | int | None:
        what, *found, _ = self.ledger.visit(None, None, TakeSize(TakeRule.CHUNKS, want, least=want))
        self.ledger.facts.w[self.ledger.facts.lane + W.L_WAITING] = 0
        return Tickets(*found) if what == Next.TICKETS else found[3] if what == Next.COLLATE else None

    def finish(self, rows: RowSpan, group: int, start: int, objects: list[int] | None = None) -> Filed:
        return self.ledger.finish(Written(rows.slot, rows.first, rows.count, group, start, objects))

    def claim(self, want: int, layout: int, room) -> RowSpan | None:
        found, rows = self.ledger.claim(want, layout, room)
        self.ledger.facts.w[self.ledger.facts.lane + W.L_WAITING] = 0
        return rows if found == ClaimResult.ROWS else None

    def observe(self, *made: int) -> None:
        """Without giving up what it holds."""
        w, at = self.ledger.facts.w, self.ledger.facts.lane
        held, w[W.STOP] = (w[at + W.L_GROUP], w[at + W.L_SLOT]), 1
        assert self.ledger.visit(None, made, TakeSize(TakeRule.CHUNKS)).what == Next.STOP
        w[at + W.L_GROUP], w[at + W.L_SLOT], w[W.STOP] = *held, 0

    def __getattr__(self, name: str):
        return getattr(self.ledger if hasattr(self.ledger, name) else self.ledger.facts, name)


class Ledger:
    """One ledger, its trainer and its lanes."""

    def __init__(self, *, free_order: bool, native: bool) -> None:
        self.words = Words(DIMS.words, native=native)
        self.trainer = self.words.trainer(DIMS)
        self.lanes = [Lane(self.words.lane(DIMS, lane)) for lane in range(DIMS.lanes)]
        self.free_order = free_order
        self.trainer.reset(free_order=free_order)

    def publish(self, group: int, count: int, *, collate: bool = False) -> None:
        """A group, and the slot of the same number."""
        self.put(group, group, count, collate=collate)

    def put(self, group: int, slot: int, count: int, ahead: tuple[int, ...] = (), *, collate: bool = False) -> None:
        waiting = [self.words[DIMS.lane(lane) + W.L_WAITING] for lane in range(DIMS.lanes)]
        batch = Batch(slot, count, collate, group, count, W.INTEGERS, 64, self.free_order)
        self.trainer.publish(batch, DIMS.lanes, ahead)
        for lane, word in enumerate(waiting):
            self.words[DIMS.lane(lane) + W.L_WAITING] = word

    def busy(self) -> set[int]:
        return {slot for slot in range(DIMS.slots) if self.trainer.is_busy(slot, DIMS.lanes)}

    def repair(self, lane: int):
        published = list(range(self.words[W.TAIL]))
        return mend(self.trainer, lane, DIMS.lanes, published, published)

    def status(self, slot: int) -> int:
        return self.words[DIMS.slot(slot) + W.S_STATUS]

    def ticket(self, group: int, position: int) -> int:
        return self.words[DIMS.ticket(group) + position]


@pytest.fixture
def free(native: bool) -> Ledger:
    return Ledger(free_order=True, native=native)


@pytest.fixture
def strict(native: bool) -> Ledger:
    return Ledger(free_order=False, native=native)


@pytest.mark.parametrize(
    ("sizes", "want", "taken"),
    [
        ([3], 1, [(0, 0, 1), (0, 1, 2), (0, 2, 3)]),
        ([3], 2, [(0, 0, 2), (0, 2, 3)]),
        ([3], 8, [(0, 0, 3)]),
        ([3, 1, 2], 2, [(0, 0, 2), (0, 2, 3), (1, 0, 1), (2, 0, 2)]),
        ([1, 1], 8, [(0, 0, 1), (1, 0, 1)]),
    ],
)
def test_tickets_come_in_order_and_never_across_groups(strict: Ledger, sizes, want, taken) -> None:
    for group, size in enumerate(sizes):
        strict.publish(group, size)
    for turn, (group, start, end) in enumerate(taken):
        assert strict.lanes[turn % 3].take(want) == Tickets(group, start, end, group)
    assert strict.lanes[0].take(want) is None


def test_what_is_run_again_comes_first(strict: Ledger) -> None:
    strict.publish(0, 4)
    assert strict.lanes[0].take(3) == Tickets(0, 0, 3, 0)
    assert len(strict.repair(0).reissued) == 3
    again = [strict.lanes[1].take(8), strict.lanes[1].take(8), strict.lanes[1].take(8)]
    assert sorted(tickets.start for tickets in again) == [0, 1, 2]
    assert strict.lanes[1].take(8) == Tickets(0, 3, 4, 0)


@pytest.mark.parametrize("fuse", range(12))
@pytest.mark.parametrize("what", ["new", "again", "collation"])
def test_no_two_lanes_hold_the_same(strict: Ledger, what: str, fuse: int) -> None:
    """A lane dies while it takes something, and the next one comes before anybody noticed."""
    strict.publish(0, 1, collate=what == "collation")
    if what != "new":
        strict.lanes[0].take(1)
        if what == "collation":
            strict.lanes[0].finish(RowSpan(0, 0, 1, -1), 0, 0, [0])
        strict.repair(0)
    strict.words.fuse = fuse
    with contextlib.suppress(*KILLED):
        strict.lanes[1].take(1)
    strict.words.fuse = None
    before = strict.ticket(0, 0), strict.words[DIMS.slot(0) + W.S_DEATHS]
    taken = strict.lanes[2].take(1)
    repair = strict.repair(1)
    if taken is None:
        assert strict.lanes[2].take(1) is not None or strict.words[W.UNRESOLVED] == 0
    else:
        assert (repair.ticket, repair.collating, repair.reissued) == (None, -1, [])
        assert (strict.ticket(0, 0), strict.words[DIMS.slot(0) + W.S_DEATHS]) == before


def test_a_batch_of_nothing_is_only_collated(strict: Ledger) -> None:
    strict.trainer.publish_empty(2, 0, DIMS.lanes)
    assert strict.lanes[0].take(1) == 2
    strict.words[W.AWAITED] = 3
    assert strict.lanes[0].ready(2, 0, 1, failed=False) is True
    assert strict.trainer.is_ready(2)


def test_a_number_used_again_for_nothing_has_no_failures(strict: Ledger) -> None:
    strict.publish(0, 1)
    strict.lanes[0].take(1)
    strict.lanes[0].fail(Tickets(0, 0, 1, 0), 0, lambda: 64)
    assert strict.trainer.failed([0]) == [(0, 0, 64)]
    strict.trainer.publish_empty(1, 0, DIMS.lanes)
    assert strict.trainer.failed([0]) == []


def test_holes_are_filled_first(free: Ledger) -> None:
    free.publish(0, 4)
    for lane in free.lanes[:2]:
        lane.take(1)
        lane.claim(1, 0, room)
    free.repair(0)
    free.lanes[2].take(1)
    assert free.lanes[2].claim(8, 0, room) == RowSpan(0, 0, 1, 0)
    free.lanes[0].take(2)
    assert free.lanes[0].claim(8, 0, room) == RowSpan(0, 2, 2, 0)
    assert free.lanes[0].claim(8, 0, room) is None


def test_rows_come_from_one_slot_at_a_time(free: Ledger) -> None:
    free.publish(0, 3)
    free.publish(1, 2)
    lane = free.lanes[0]
    lane.take(3)
    assert [lane.claim(2, 0, room)[:3] for _ in range(3)] == [(0, 0, 2), (0, 2, 1), (1, 0, 2)]


@pytest.mark.parametrize(("first", "bump"), [(-1, 0), (0, 40), (5, 40)])
def test_the_first_claim_decides_the_layout(free: Ledger, first: int, bump: int) -> None:
    free.publish(0, 4)
    for lane in free.lanes[:2]:
        lane.take(1)
    took = [
        free.lanes[0].claim(1, first, room if first >= 0 else lambda rows: 0),
        free.lanes[1].claim(1, 3, lambda rows: 999),
    ]
    assert [rows.layout for rows in took] == [first, first]
    assert [free.lanes[2].reserve(0, 7), free.lanes[2].reserve(0, 1)] == [bump, bump + 7]


def test_a_slot_is_ready_when_its_last_row_is(free: Ledger) -> None:
    free.publish(0, 2)
    rows = []
    for lane in free.lanes[:2]:
        lane.take(1)
        rows.append(lane.claim(1, 0, room))
    free.words[W.AWAITED] = W.ANY
    assert free.lanes[1].finish(rows[1], 0, 1) == Filed(-1, wake=False)
    assert free.lanes[0].finish(rows[0], 0, 0) == Filed(-1, wake=True)
    assert (free.status(0), free.words[W.UNRESOLVED]) == (W.READY, 0)


@pytest.mark.parametrize(("awaited", "wake"), [(W.NOTHING, False), (W.ANY, True), (1, True), (2, False)])
def test_only_what_is_awaited_wakes(strict: Ledger, awaited: int, wake: bool) -> None:
    strict.publish(0, 1)
    strict.publish(1, 1)
    strict.lanes[0].take(1)
    strict.words[W.AWAITED] = awaited
    assert strict.lanes[0].finish(RowSpan(0, 0, 1, 0), 0, 0).wake is wake
    assert strict.words[W.AWAITED] == (W.NOTHING if wake else awaited)


def test_objects_must_be_collated(strict: Ledger) -> None:
    strict.publish(0, 2)
    strict.lanes[0].take(2)
    assert strict.lanes[0].finish(RowSpan(0, 0, 1, 0), 0, 0) == Filed(-1, wake=False)
    assert strict.lanes[0].finish(RowSpan(0, 1, 1, 0), 0, 1, [77]) == Filed(0, wake=False)
    assert strict.status(0) == W.COLLATING
    assert strict.words[DIMS.row_state(0) + 1] == W.AS_OBJECT | 77 << 8


def test_a_ticket_that_is_done_is_not_done_again(free: Ledger) -> None:
    free.publish(0, 2)
    free.lanes[0].take(1)
    rows = free.lanes[0].claim(1, 0, room)
    free.words[DIMS.ticket(0)] = W.DONE
    before = free.words[W.UNRESOLVED]
    free.lanes[0].finish(rows, 0, 0)
    assert free.words[DIMS.row_state(0)] == W.EMPTY
    assert free.words[W.UNRESOLVED] == before
    free.lanes[1].take(1)
    assert free.lanes[1].claim(1, 0, room) == rows


def test_a_lane_keeps_its_slot_until_its_last_row_is_written(strict: Ledger) -> None:
    strict.publish(0, 4)
    strict.lanes[0].take(3)
    strict.lanes[0].finish(RowSpan(0, 0, 2, 0), 0, 0)
    assert strict.busy() == {0}
    strict.trainer.reset(free_order=False)
    assert strict.busy() == {0}
    strict.lanes[0].finish(RowSpan(0, 2, 1, 0), 0, 2)
    assert strict.busy() == set()


@pytest.mark.parametrize("free_order", [True, False])
def test_a_sample_may_take_one_worker_down(free_order: bool, native: bool) -> None:
    ledger = Ledger(free_order=free_order, native=native)
    ledger.publish(0, 2)
    deaths = []
    for lane in ledger.lanes[:2]:
        lane.take(1)
        deaths.append(ledger.repair(ledger.lanes.index(lane)).deaths)
    assert deaths == [1, 2]
    assert ledger.ticket(0, 0) == W.FAILED | 2 << 4 | W.NO_BLOB << 8
    assert ledger.trainer.failed([0]) == [(0, 0, W.NO_BLOB)]
    assert ledger.words[W.UNRESOLVED] == 1
    assert ledger.lanes[2].take(8)[:3] == (0, 1, 2)


def test_collation_may_take_one_worker_down(strict: Ledger) -> None:
    strict.publish(0, 1, collate=True)
    strict.lanes[0].take(1)
    assert strict.lanes[0].finish(RowSpan(0, 0, 1, -1), 0, 0, [0]).collate == 0
    assert strict.repair(0).collating == 0
    assert strict.lanes[1].take(1) == 0
    assert strict.repair(1).deaths == 2
    assert strict.trainer.is_ready(0)
    assert strict.words[DIMS.slot(0) + W.S_FAILED] == 1


def test_a_claim_on_an_earlier_use_of_a_group_is_void(free: Ledger) -> None:
    """A lane that collates somebody's batch long after its own samples were delivered."""
    free.publish(0, 1, collate=True)
    free.lanes[0].take(1)
    assert free.lanes[0].finish(free.lanes[0].claim(1, -1, room), 0, 0, [0]).collate == 0
    free.put(0, 1, 1, collate=True)
    assert free.lanes[1].take(1) == Tickets(0, 0, 1, -1)
    assert len(free.repair(1).reissued) == 1


def test_more_can_be_queued_again_than_one_batch_has(free: Ledger) -> None:
    for group in range(3):
        free.publish(group, DIMS.rows)
        free.lanes[group].take(DIMS.rows)
        free.lanes[group].claim(DIMS.rows, 0, room)
    assert [len(free.repair(lane).reissued) for lane in range(3)] == [8, 8, 8]
    for _ in range(3 * DIMS.rows):
        group, start, _, _ = free.lanes[0].take(1)
        rows = free.lanes[0].claim(1, 0, room)
        free.lanes[0].finish(rows, group, start)
    assert [free.status(slot) for slot in range(3)] == [W.READY] * 3


def test_what_an_old_epoch_brings_is_dropped(strict: Ledger) -> None:
    strict.publish(0, 2)
    strict.lanes[0].take(1)
    strict.lanes[1].take(1)
    strict.trainer.reset(free_order=False)
    strict.publish(0, 2)
    strict.words[W.AWAITED] = W.ANY
    assert strict.lanes[0].finish(RowSpan(0, 0, 1, 0), 0, 0) == Filed(-1, wake=False)
    assert strict.lanes[1].fail(Tickets(0, 1, 2, 0), 1, lambda: 64) == Filed(-1, wake=False)
    assert [strict.ticket(0, position) for position in (0, 1)] == [W.PENDING, W.PENDING]
    assert strict.words[W.UNRESOLVED] == 2
    assert strict.repair(1).ticket is None


def roles(ledger: Ledger) -> list[int]:
    return [ledger.words[DIMS.lane(lane) + W.L_ROLE] for lane in range(DIMS.lanes)]


def test_as_many_take_tickets_as_the_limit_says(strict: Ledger) -> None:
    strict.publish(0, 8)
    strict.words[W.LIMIT] = 2
    assert [lane.take(1) is not None for lane in strict.lanes] == [True, True, False]
    assert (roles(strict), strict.words[W.FOREGROUND]) == ([W.WORKING, W.WORKING, W.PARKED], 2)
    strict.words[W.LIMIT] = 1
    assert [lane.take(1) is not None for lane in strict.lanes] == [False, True, False]
    strict.words[W.LIMIT] = 3
    assert [lane.take(1) is not None for lane in strict.lanes] == [True, True, True]


def test_only_those_with_a_place_are_woken(strict: Ledger) -> None:
    strict.publish(0, 1)
    strict.words[W.LIMIT] = 1
    strict.lanes[0].take(1)
    for lane, reason in enumerate([0, W.FOR_WORK, W.FOR_ROOM]):
        strict.words[DIMS.lane(lane) + W.L_WAITING] = reason
    assert strict.trainer.wake(DIMS.lanes) == [2]
    assert strict.trainer.wake(DIMS.lanes) == []
    strict.words[W.LIMIT] = 2
    assert strict.trainer.wake(DIMS.lanes) == [1]


def test_no_more_are_woken_than_there_are_tickets(strict: Ledger) -> None:
    def woken(group: int, count: int) -> list[int]:
        batch = Batch(group, count, False, group, count, W.INTEGERS, 64, free_order=False)
        return strict.trainer.publish(batch, DIMS.lanes)

    def all_sleep() -> None:
        for lane in range(DIMS.lanes):
            strict.words[DIMS.lane(lane) + W.L_WAITING] = W.FOR_WORK

    assert [lane.take(1) for lane in strict.lanes] == [None] * DIMS.lanes
    all_sleep()
    assert woken(0, 1) == [0]
    assert woken(1, 2) == [1, 2]
    all_sleep()
    strict.words[W.LIMIT] = 1
    assert woken(2, 1) == [0, 1, 2], "the first to come may lose their places"


@pytest.mark.parametrize(
    ("want", "waiting", "woken"),
    [(1, 0, 3), (4, 0, 1), (2, 0, 2), (4, 1, 2)],
    ids=["one by one", "whole groups", "halves", "one group still waits"],
)
def test_no_more_are_woken_than_will_find_something(strict: Ledger, want: int, waiting: int, woken: int) -> None:
    strict.words[W.LIMIT] = DIMS.lanes
    strict.publish(0, 4)
    while strict.lanes[0].take(want) is not None:  # so many it takes at once
        pass
    for group in range(1, 1 + waiting):
        strict.publish(group, 4)
    for lane in range(DIMS.lanes):
        strict.words[DIMS.lane(lane) + W.L_WAITING] = W.FOR_WORK
    batch = Batch(3, 4, False, 3, 4, W.INTEGERS, 64, free_order=False)
    assert len(strict.trainer.publish(batch, DIMS.lanes)) == woken
    assert not strict.trainer.is_taken
    while strict.lanes[0].take(want) is not None:
        pass
    assert strict.trainer.is_taken


def test_a_lane_that_was_woken_and_comes_counts_for_what_is_published_next(strict: Ledger) -> None:
    strict.words[W.LIMIT] = DIMS.lanes
    strict.publish(0, 4)
    for lane in reversed(strict.lanes):
        while lane.take(4) is not None:  # whole groups
            pass
    for lane in range(DIMS.lanes):
        strict.words[DIMS.lane(lane) + W.L_WAITING] = W.FOR_WORK
    batches = [Batch(group, 4, False, group, 4, W.INTEGERS, 64, free_order=False) for group in (1, 2, 3)]
    assert [strict.trainer.publish(batch, DIMS.lanes) for batch in batches] == [[0], [1], [2]]


@pytest.mark.parametrize(("relaxed", "woken"), [(False, 3), (True, 1)])
def test_one_lane_is_woken_for_a_group_while_there_is_time(strict: Ledger, relaxed: bool, woken: int) -> None:
    strict.words[W.LIMIT] = DIMS.lanes
    for lane in strict.lanes:
        lane.ledger.visit(None, None, TakeSize(TakeRule.CHUNKS))  # falls asleep
    batch = Batch(0, 4, False, 0, 4, W.INTEGERS, 64, free_order=False)
    assert len(strict.trainer.publish(batch, DIMS.lanes, relaxed=relaxed)) == woken


@pytest.mark.parametrize(
    ("groups", "limit", "chunk", "least", "taken"),
    [(6, 1, 4, 0, 4), (1, 3, 4, 0, 1), (3, 3, 4, 0, 4), (2, 3, 4, 0, 2), (1, 3, 4, 3, 3), (1, 3, 8, 0, 2)],
    ids=["much is queued", "little", "enough", "half", "no fewer than are worth it", "no less than a quarter"],
)
def test_the_less_is_queued_the_fewer_are_taken(
    strict: Ledger, groups: int, limit: int, chunk: int, least: int, taken: int
) -> None:
    strict.words[W.LIMIT] = limit
    for group in range(groups):
        strict.publish(group, 8)
    _, *found, _ = strict.lanes[0].ledger.visit(None, None, TakeSize(TakeRule.CHUNKS, chunk, least=least))
    assert Tickets(*found) == Tickets(0, 0, taken, 0)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_the_rest_of_what_a_slow_lane_took_is_made_by_others(strict: Ledger, at: int) -> None:
    strict.publish(0, 3)
    assert strict.lanes[0].take(3) == Tickets(0, 0, 3, 0)
    for position in range(at + 1):
        assert strict.lanes[0].begin(position, 100 + position)
    assert oversight.relieve(strict.trainer, DIMS.lanes, 100 + at + 9, 10) == (0, 100 + at + 10 if at < 2 else None)
    assert oversight.relieve(strict.trainer, DIMS.lanes, 100 + at + 10, 10) == (2 - at, None)
    assert oversight.relieve(strict.trainer, DIMS.lanes, 1000, 10) == (0, None), "there is nothing left to take"
    taken = [strict.lanes[1].take(3) for _ in range(at + 1, 3)]
    assert taken == [Tickets(0, position, position + 1, 0) for position in range(at + 1, 3)]
    assert strict.lanes[1].take(3) is None
    if at < 2:
        assert not strict.lanes[0].begin(at + 1, 1000)
    assert strict.lanes[0].end_long() == at + 1
    assert strict.lanes[0].finish(RowSpan(0, 0, at + 1, 0), 0, 0) == Filed(-1, wake=False)
    assert not strict.words[DIMS.lane(0) + W.L_SLOT], "it writes nothing else there"


def test_what_is_made_together_stays_together(strict: Ledger) -> None:
    strict.publish(0, 3)
    strict.lanes[0].take(3)
    strict.lanes[0].expect(100)
    assert oversight.relieve(strict.trainer, DIMS.lanes, 1000, 10) == (0, None)
    assert strict.lanes[0].end_long() == 3


def test_nothing_is_taken_for_an_old_epoch(strict: Ledger) -> None:
    strict.publish(0, 3)
    strict.lanes[0].take(3)
    strict.lanes[0].begin(0, 100)
    strict.trainer.reset(free_order=False)
    assert oversight.relieve(strict.trainer, DIMS.lanes, 1000, 10) == (0, None)


def test_a_lane_with_a_slow_sample_gives_its_place_away(strict: Ledger) -> None:
    strict.publish(0, 8)
    strict.words[W.LIMIT] = 2
    for lane, began in ((0, 100), (1, 150)):
        strict.lanes[lane].take(1)
        strict.words[DIMS.lane(lane) + W.L_BEGAN] = began
    strict.words[DIMS.lane(2) + W.L_WAITING] = W.FOR_WORK
    assert oversight.put_aside(strict.trainer, DIMS.lanes, 119, 20, 1) == 120
    assert oversight.put_aside(strict.trainer, DIMS.lanes, 120, 20, 1) == 170
    assert (roles(strict), strict.words[W.FOREGROUND]) == ([W.ASIDE, W.WORKING, W.PARKED], 1)
    assert strict.trainer.wake(DIMS.lanes) == [2]
    assert strict.lanes[2].take(1) is not None
    strict.words[DIMS.lane(2) + W.L_BEGAN] = 180
    assert oversight.put_aside(strict.trainer, DIMS.lanes, 185, 20, 1) == 200, "one is aside already: look again"
    assert strict.lanes[0].take(1) is None
    assert roles(strict) == [W.PARKED, W.WORKING, W.WORKING]
    assert strict.words[W.HANDOFFS] == 1


def test_how_long_lanes_were_aside_is_known(strict: Ledger) -> None:
    strict.publish(0, 8)
    for lane in strict.lanes[:2]:
        lane.take(1)
    strict.words[DIMS.lane(0) + W.L_BEGAN] = 1
    strict.words[DIMS.lane(1) + W.L_BEGAN] = 90
    oversight.put_aside(strict.trainer, DIMS.lanes, 101, 100, 1)
    strict.lanes[1].observe(1, 500, 3)
    assert strict.words[W.RETURNS] == 0
    strict.lanes[0].observe(1, 130, 3)
    assert (strict.words[W.RETURNS], strict.words[W.EXCESS]) == (1, 30)


def test_a_sample_that_was_only_taken_is_not_slow_yet(strict: Ledger) -> None:
    strict.publish(0, 8)
    strict.lanes[0].take(1)
    strict.words[DIMS.lane(0) + W.L_BEGAN] = 1
    strict.lanes[0].take(1)
    assert oversight.put_aside(strict.trainer, 1, 1000, 20, 1) == 1020
    strict.words[DIMS.lane(0) + W.L_BEGAN] = 1
    strict.words[DIMS.lane(0) + W.L_WAITING] = W.FOR_ROOM
    assert oversight.put_aside(strict.trainer, 1, 1000, 20, 1) is None
    assert strict.words[W.HANDOFFS] == 0


def test_a_lane_busy_for_an_old_epoch_gives_its_place_away(strict: Ledger) -> None:
    strict.publish(0, 8)
    strict.lanes[0].take(1)
    strict.words[DIMS.lane(0) + W.L_BEGAN] = 1
    strict.trainer.reset(free_order=False, limit=1)
    strict.publish(0, 8)
    assert strict.lanes[1].take(1) is None
    oversight.put_aside(strict.trainer, 2, 1000, 20, 1)
    assert strict.lanes[1].take(1) is not None


def test_the_place_of_a_dead_lane_is_free(strict: Ledger) -> None:
    strict.publish(0, 8)
    strict.words[W.LIMIT] = 1
    strict.lanes[0].take(1)
    assert strict.lanes[1].take(1) is None
    strict.repair(0)
    assert (roles(strict), strict.words[W.FOREGROUND]) == ([W.PARKED] * 3, 0)
    assert strict.lanes[1].take(1) == Tickets(0, 0, 1, 0)


def test_a_hole_is_one_of_the_rows_that_are_kept(free: Ledger) -> None:
    """Else a sample would find none although there is one for each."""
    free.trainer.reset(free_order=True, displacement=1)
    for group in range(2):
        free.publish(group, 2)
    free.lanes[0].take(1)
    free.lanes[1].take(1)
    free.lanes[1].finish(free.lanes[1].claim(1, 0, room), 0, 1)
    free.lanes[1].take(1)
    free.lanes[1].finish(free.lanes[1].claim(1, 0, room), 1, 0)
    assert free.lanes[0].claim(1, 0, room) == RowSpan(1, 0, 1, 0)
    free.repair(0)
    assert free.lanes[0].take(1) == Tickets(0, 0, 1, -1)
    free.lanes[1].take(1)
    assert free.lanes[1].claim(1, 0, room) == RowSpan(1, 0, 1, 0)
    assert free.lanes[0].claim(1, 0, room) == RowSpan(1, 1, 1, 0)


@pytest.mark.parametrize("displacement", [1, 2])
def test_rows_are_kept_for_a_sample_that_was_overtaken(free: Ledger, displacement: int) -> None:
    free.trainer.reset(free_order=True, displacement=displacement)
    for group in range(4):
        free.publish(group, 2)
    free.lanes[0].take(1)
    slots = []
    for _ in range(7):
        group, start, _, _ = free.lanes[1].take(1)
        rows = free.lanes[1].claim(1, 0, room)
        free.lanes[1].finish(rows, group, start)
        slots.append(rows.slot)
    assert sorted([*slots, displacement]) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert free.lanes[0].claim(1, 0, room) == RowSpan(displacement, 1, 1, 0)


def test_a_row_kept_for_a_sample_that_failed_is_free(free: Ledger) -> None:
    free.trainer.reset(free_order=True, displacement=1)
    free.publish(0, 1)
    free.publish(1, 1)
    free.lanes[0].take(1)
    free.lanes[1].take(1)
    assert free.lanes[1].claim(1, 0, room).slot == 0
    free.publish(2, 1)
    free.lanes[2].take(1)
    assert free.lanes[2].claim(1, 0, room).slot == 2
    free.lanes[2].give_back()
    free.lanes[0].fail(Tickets(0, 0, 1, -1), 0, lambda: 64)
    assert free.lanes[2].claim(1, 0, room).slot == 1


def test_the_last_sample_wakes_who_waits_for_a_batch_that_stays_short(free: Ledger) -> None:
    free.trainer.reset(free_order=True, displacement=1)
    for group in range(3):
        free.publish(group, 1)
    free.lanes[0].take(1)
    free.lanes[1].take(1)
    free.lanes[1].finish(free.lanes[1].claim(1, 0, room), 1, 0)
    free.lanes[1].take(1)
    rows = free.lanes[1].claim(1, 0, room)
    assert rows.slot == 2, "slot 1 is kept for the first sample"
    free.lanes[0].fail(Tickets(0, 0, 1, -1), 0, lambda: 64)
    free.words[W.AWAITED] = 1 + 1
    assert free.lanes[1].finish(rows, 2, 0) == Filed(-1, wake=True)


def test_rows_given_back_are_claimed_again(free: Ledger) -> None:
    free.trainer.reset(free_order=True, displacement=1)
    free.publish(0, 3)
    free.lanes[0].take(3)
    assert free.lanes[0].claim(2, 0, room) == RowSpan(0, 0, 2, 0)
    free.lanes[0].give_back()
    assert free.busy() == set()
    assert free.words[DIMS.group(0) + W.G_UNCLAIMED] == 3
    assert {free.lanes[0].claim(1, 0, room).first for _ in range(3)} == {0, 1, 2}


def test_tickets_queued_ahead_are_taken_first_and_once(strict: Ledger) -> None:
    strict.publish(0, 4)
    strict.put(1, 1, 4, (1, 3))
    taken = [strict.lanes[0].take(8)[:3] for _ in range(5)]
    assert taken == [(1, 3, 4), (1, 1, 2), (0, 0, 4), (1, 0, 1), (1, 2, 3)]
    assert strict.lanes[0].take(8) is None


def test_a_group_that_was_all_ahead_is_passed_over(strict: Ledger) -> None:
    """Also when its number is in use again."""
    strict.put(0, 0, 1, (0,))
    assert strict.lanes[0].take(1) == Tickets(0, 0, 1, 0)
    strict.lanes[0].finish(RowSpan(0, 0, 1, 0), 0, 0)
    filing.release(strict.lanes[0].facts)
    strict.put(0, 1, 1)
    assert strict.lanes[0].take(1) == Tickets(0, 0, 1, 1)
    assert strict.lanes[1].take(1) is None


def test_extraordinary_costs_are_logged(strict: Ledger) -> None:
    strict.words[DIMS.index(0) + 1] = 77
    strict.publish(0, 2)
    strict.lanes[0].take(1)
    strict.lanes[0].take(1)
    strict.words[W.THRESHOLD] = 10
    strict.lanes[0].observe(1, W.STRAGGLER_NS, 3)
    strict.words[W.THRESHOLD] = W.STRAGGLER_NS
    strict.lanes[0].observe(1, W.STRAGGLER_NS * W.STRAGGLES, 3)
    assert strict.trainer.stragglers(0) == (0, [])
    strict.lanes[0].observe(1, W.STRAGGLER_NS * W.STRAGGLES + 1, 3)
    assert strict.trainer.stragglers(0) == (1, [77])
    assert strict.trainer.stragglers(1) == (1, [])


def test_costs_are_counted(strict: Ledger) -> None:
    strict.lanes[0].observe(3, 50, 7)
    strict.words[W.THRESHOLD] = 40
    strict.lanes[0].observe(2, 40, 6)
    strict.lanes[1].observe(1, 41, 7)
    assert strict.words[W.HISTOGRAM + 6 : W.HISTOGRAM + 8].tolist() == [2, 4]
    assert (strict.words[W.FINISHED], strict.words[W.SLOW]) == (6, 1)


@pytest.mark.parametrize("fuse", range(9))
def test_a_hole_is_nobody_elses_when_the_one_who_fills_it_dies(free: Ledger, fuse: int) -> None:
    free.trainer.reset(free_order=True, displacement=1)
    for group in range(3):
        free.publish(group, 1)
    for lane in free.lanes:
        lane.take(1)
        lane.claim(1, 0, room)
    for lane in (0, 1):  # the hole filled first is not the last one
        free.repair(lane)
    for lane in (1, 0):
        free.lanes[lane].take(1)
    free.words.fuse = fuse
    with contextlib.suppress(*KILLED):
        free.lanes[1].claim(1, 0, room)
    free.words.fuse = None
    claimed = [free.lanes[0].claim(1, 0, room)]
    free.repair(1)
    free.lanes[1].take(1)
    claimed.append(claimed[0] and free.lanes[1].claim(1, 0, room))
    if claimed[0] is not None:  # else it waits until the death is noticed
        assert sorted(rows.slot for rows in claimed) == [0, 1]
        assert free.words[W.HOLES] == 0
