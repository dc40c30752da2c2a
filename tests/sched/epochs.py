"""The trainer of one epoch, which does what the epoch's machine says, a step at a time."""

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from headrace.plan.lookahead import Lookahead
from headrace.sched import encoding as E
from headrace.sched import ledger_layout as W
from headrace.sched.epochs import oversight
from headrace.sched.epochs.book import Settled
from headrace.sched.epochs.epoch import Epoch
from headrace.sched.epochs.epochmachine import EpochMachine
from headrace.sched.epochs.publication import Batch as Published
from headrace.sched.epochs.publication import IndexKind
from headrace.sched.epochs.trainer_commands import (
    Arrangement,
    CheckSendable,
    Command,
    Deliver,
    Draw,
    End,
    Failed,
    ReadySlot,
    Release,
    ReportFailure,
    Ring,
    SeeAfterLanes,
    Terms,
    Wait,
)
from headrace.sched.ledger_layout import Dims
from headrace.sched.ledger_story import Story
from headrace.sched.source import Group
from tests.sched.lanes import Shared, SimLane
from tests.sched.memory import Slab, Words, pending

DIMS = Dims(lanes=3, groups=24, slots=24, rows=8, told=64)


@dataclass(frozen=True)
class Plan:
    """One epoch."""

    arrangement: Arrangement
    batches: tuple[tuple[int, ...], ...]
    behaviour: dict[int, str] = field(default_factory=dict)
    chunks: tuple[int, ...] = (2, 2, 2)
    window: int = 2
    collate: bool = False
    whole: bool = False
    drop_last: bool = False
    collate_deaths: dict[tuple[int, ...], int] = field(default_factory=dict)
    limits: tuple[int, ...] = (3,)
    """Lanes that may work: at first, and after each batch that is delivered; then the last one stays."""
    threshold: int = 0
    """Ticks after which a sample is slow; 0: none is."""
    spares: int = 3
    displacement: int = 0
    ahead: frozenset[int] = frozenset()
    """Samples that are begun as soon as they are drawn."""
    held: int = 0
    """Batches that are handed out and not the user's yet."""


class Order:
    """What indices are drawn from: as the plan has them, or what is owed first."""

    def __init__(self, batches: deque[tuple[int, ...]], size: int) -> None:
        """``size``: what is owed is cut into groups of so many; 0: it stays as it was drawn."""
        self.batches, self.size = batches, size
        self.owed: list[list[int]] = []

    def next(self) -> Group | None:
        """The next group."""
        if self.owed:
            group = self.owed.pop(0)
            while self.size and len(group) < self.size and self.batches:
                group += self.batches.popleft()
            if self.size and group[self.size :]:
                self.owed.insert(0, group[self.size :])
            return Group(group[: self.size or None])
        return Group(list(self.batches.popleft())) if self.batches else None

    def put_back(self, groups: list[list[int]]) -> None:
        """See ``Source``."""
        if self.size:
            groups = [[index for group in groups + self.owed for index in group]]
            self.owed = []
        self.owed = [group for group in groups if group] + self.owed


@dataclass
class Hand:
    """On its way to the user."""

    then: Settled


class Staff:
    lanes = DIMS.lanes


@dataclass(frozen=True)
class Batch:
    """As the user gets it."""

    indices: tuple[int, ...]
    whole: bool
    """It has all its rows, or may be short of some."""
    late: int = 0
    """By how many batches the sample overtaken most was."""


class Around(Protocol):
    """What a run is in."""

    words: Words
    story: Story
    slab: Slab
    shared: Shared
    lanes: list[SimLane]

    def reclaim(self) -> None: ...

    def lend(self, slot: int, values: dict[int, object]) -> None: ...

    def start(self, lane: int, chunk: int) -> None: ...

    def check_counts(self) -> None: ...


class SimRun:
    """Does what the epoch's machine says, a step at a time; ``can_stop`` says when the user could give it up."""

    def __init__(self, world: Around, plan: Plan) -> None:
        self.world, self.plan = world, plan
        self.words, self.slab, self.ledger = world.words, world.slab, world.words.trainer(DIMS)
        self.ledger.story = world.story
        self.hands: deque[Hand] = deque()
        terms = Terms(
            plan.arrangement, Lookahead(plan.window, plan.window), plan.collate, plan.drop_last, plan.displacement
        )
        size = len(plan.batches[0]) if plan.arrangement is Arrangement.FREE else 0
        order = Order(deque(plan.batches), size)
        self.machine = EpochMachine(Epoch(self.ledger, terms, order, Staff(), self.hands))
        self.deaths: dict[tuple[int, int], tuple[Group, int]] = {}
        self.delivered: list[Batch] = []
        self.failed: list[int] = []
        self.collation_failed: list[tuple[int, ...]] = []
        self.dropped: list[tuple[int, ...]] = []
        self.finished = self.asleep = self.torn = self.was_torn = False
        self.can_stop = True
        self.dead: list[int] = []
        self._closed: set[int] = set()
        self._failures_then = 0
        shared = world.shared
        shared.behaviour |= plan.behaviour
        shared.collate, shared.whole = plan.collate, plan.whole
        shared.collate_deaths |= plan.collate_deaths
        self.due: int | None = None
        self.hand_offs = self.relieved = 0
        self._steps = self._run()
        self.machine.epoch.begin(0, plan.limits[0])
        for lane, chunk in zip(world.lanes, plan.chunks, strict=True):
            lane.pace.chunk = chunk

    @property
    def groups(self) -> dict[int, Group]:
        return self.machine.epoch.book.groups

    @property
    def open(self) -> dict[int, Group | None]:
        return self.machine.epoch.open

    @property
    def can_move(self) -> bool:
        return not self.finished and (not self.asleep or self.world.shared.bell > 0 or bool(self.dead) or self.is_due)

    @property
    def is_due(self) -> bool:
        """A sample may have become slow."""
        return self.due is not None and self.world.shared.now >= self.due

    @property
    def exhausted(self) -> bool:
        return self.machine.epoch.exhausted

    @property
    def drawn(self) -> list[int]:
        """Indices drawn so far."""
        left = len(self.machine.epoch.source.batches)
        return [index for batch in self.plan.batches[: len(self.plan.batches) - left] for index in batch]

    def step(self) -> None:
        if self.asleep:
            self.asleep, self.world.shared.bell = False, 0
        next(self._steps, None)

    def abandon(self) -> None:
        self.world.reclaim()
        self.open.clear()

    def _begin_again(self) -> Iterator[None]:
        machine, self.torn, self.was_torn = self.machine, True, True
        machine.begin_again()
        yield
        self._closed.clear()
        self.world.reclaim()
        self.torn = False
        yield

    def _run(self) -> Iterator[None]:
        machine, self.can_stop = self.machine, False
        yield from self._draw_ahead()
        while True:
            machine.start()
            act = machine.next()
            while not isinstance(act, Wait):
                if self.words[W.AWAITED] != W.NOTHING:
                    self._failures_then = self.words[W.FAILURES]
                yield
                if isinstance(act, End):
                    self.finished = True
                    return
                yield from self._do(act)
                self.can_stop = isinstance(act, (Deliver, ReportFailure))
                if self.can_stop:
                    self._settle()
                    yield
                    self.can_stop = False
                    machine.start()
                act = machine.next()
            self._assert_nobody_idles()
            self.asleep = self.can_stop = True
            yield
            self.can_stop = False
            while self.dead:
                yield from self._replace(self.dead[-1])

    def _assert_nobody_idles(self) -> None:
        """Before the trainer sleeps, all have been woken who find something to take."""
        words, lanes = self.words, self.world.lanes
        if self.ledger.is_taken or self.plan.ahead or self.world.shared.chance is not None:
            return  # at a random pace, what a lane took before says nothing of what it takes next
        for number, lane in enumerate(lanes):
            at = DIMS.lane(number)
            idles = words[at + W.L_WAITING] == W.FOR_WORK and words[at + W.L_ROLE] == W.WORKING
            assert not (idles and lane.alive and not lane.bell), "a lane sleeps while there is something to take"

    def _settle(self) -> None:
        """The user has had all but the last of what was handed out."""
        while len(self.hands) > self.plan.held:
            self.machine.settle(self.hands.popleft().then)

    def _do(self, act: Command) -> Iterator[None]:
        if isinstance(act, Ring):
            self._ring(act.lanes)
        elif isinstance(act, Draw):
            self._draw()
            return  # what is in the book is published in the same step, or the counts would not agree
        elif isinstance(act, CheckSendable):
            if any(self._behaviour(each) == "unsendable" for each in act.failed if not each.took_worker):
                yield from self._begin_again()
        elif isinstance(act, SeeAfterLanes):
            self._watch()
        elif isinstance(act, ReportFailure):
            failed = act.failed
            self._fail(failed)
            self.hands.append(Hand([(failed.group, {failed.position})]))
        elif isinstance(act, Deliver):
            self._deliver(act.ready)
            self._govern()
        elif isinstance(act, Release):
            self._close(act.slots, act.lanes)
        yield

    def _draw_ahead(self) -> Iterator[None]:
        self.machine.start_ahead()
        while not isinstance(act := self.machine.next(), Wait):
            yield
            yield from self._do(act)

    def _draw(self) -> None:
        machine = self.machine
        group = machine.epoch.draw()
        if group is None:
            machine.dry()
            return
        assert isinstance(group, Group)
        slot = self.slab.acquire(lambda slot: self.ledger.is_busy(slot, DIMS.lanes))
        free, size = machine.epoch.is_free, len(group.indices)
        machine.epoch.book.enter(group)
        self.ledger.write_indices(group.number, array("q", group.indices))
        ahead = [position for position, index in enumerate(group.indices) if index in self.plan.ahead]
        if self.ledger.is_local:
            ahead = []
        batch = Published(slot, size, self.plan.collate, group.number, size, IndexKind.INTEGERS, 64, free)
        machine.drew(batch, group, ahead)

    def _watch(self) -> None:
        if not self.plan.threshold:
            return
        now, words = self.world.shared.now, self.words
        self.relieved += oversight.relieve(self.ledger, DIMS.lanes, now, self.plan.threshold)[0]
        roles = [words[DIMS.lane(lane) + W.L_ROLE] for lane in range(DIMS.lanes)]
        self.due = oversight.put_aside(self.ledger, DIMS.lanes, now, self.plan.threshold, self.plan.spares)
        for lane, before in enumerate(roles):
            if before != words[DIMS.lane(lane) + W.L_ROLE]:
                assert before == W.WORKING
                assert self.world.lanes[lane].is_making or not self.world.lanes[lane].alive, "it makes nothing"
                assert 0 < words[DIMS.lane(lane) + W.L_BEGAN] <= now - self.plan.threshold, "it is not slow"
                self.hand_offs += 1
        assert self.due is None or self.due > now
        assert oversight.count_aside(self.ledger, DIMS.lanes) <= max(self.plan.spares, roles.count(W.ASIDE))
        if words[W.LIMIT] > words[W.FOREGROUND]:
            self._ring(self.ledger.wake(DIMS.lanes))

    def _govern(self) -> None:
        limits = self.plan.limits
        limit = limits[min(len(self.delivered), len(limits) - 1)]
        if limit != self.words[W.LIMIT]:
            self.words[W.LIMIT] = limit
            self._ring(self.ledger.wake(DIMS.lanes))

    def _ring(self, lanes: Sequence[int]) -> None:
        for lane in lanes:
            self.world.lanes[lane].bell += 1

    def _close(self, dropped: list[int], lanes: Sequence[int]) -> None:
        for slot in dropped:
            rows = self.ledger.present(slot)
            assert len(rows) < self.ledger.expected(slot), "a full batch is not dropped"
            assert not rows or self.plan.drop_last, "samples are lost"
            if rows:
                self.dropped.append(tuple(self.slab.cells[slot, self._cell(slot, row)] for row in rows))
            self.slab.release(slot)
        self._closed |= set(self.open)
        self._ring(lanes)

    def _cell(self, slot: int, row: int) -> int:
        """Where a row's sample stands in its slot."""
        state = self.words[DIMS.row_state(slot) + row]
        return row if state & 255 == W.IN_PLACE else state >> 8

    def _in_rows(self, slot: int, rows: list[int]) -> list[tuple[Group, int]]:
        tickets = self.ledger.tickets(slot)
        return [(self.groups[group], position) for group, position in (E.parts(tickets[row]) for row in rows)]

    def _deliver(self, ready: ReadySlot) -> None:
        slot, rows, at = ready.slot, ready.rows, DIMS.slot(ready.slot)
        found = self._in_rows(slot, rows)
        handed = {(id(group), position) for hand in self.hands for group, them in hand.then for position in them}
        assert not handed & {(id(group), position) for group, them in ready.settled for position in them}, "twice"
        assert len(set(found_once := [(id(group), at) for group, at in found])) == len(found_once), "two for one ticket"
        assert all(position in group.owed for group, position in found), "it was settled before"
        for each in ready.failed:
            self._fail(each)
        indices = tuple(group.indices[position] for group, position in found)
        failed = {each.position for each in ready.failed}
        if self.words[at + W.S_FAILED]:
            if ready.group is not None:
                assert pending(self.words, DIMS, [ready.group.number]) == 0
                indices = tuple(index for place, index in enumerate(ready.group.indices) if place not in failed)
            self.collation_failed.append(indices)
            self.slab.release(slot)
            self.hands.append(Hand(ready.settled))
            return
        if ready.group is not None:
            rest = set(range(len(ready.group.indices))) - failed
            assert {position for _, position in found} == rest, "a sample is neither there nor reported"
        cells, offset = self.slab.cells, self.words[at + W.S_RESULT]
        if self.words[at + W.S_COLLATE]:
            assert self.words[at + W.S_RESULT_BYTES] == 1
            values, where = cells[slot, offset], [offset]
        else:
            where = rows
            assert all(self.words[DIMS.row_state(slot) + row] == W.IN_PLACE for row in rows)
            values = tuple(cells.get((slot, row)) for row in rows)
        assert values == indices, "a row does not hold the sample of its ticket"
        if rows or not ready.expected:
            late = self._lateness(slot, found) if self.machine.epoch.is_free else 0
            whole = not self.machine.epoch.is_free or slot in self._closed or len(rows) == ready.expected
            self.delivered.append(Batch(values, whole, late))
            self.hands.append(Hand(ready.settled))
        else:
            self.machine.settle(ready.settled)
        self._closed.discard(slot)
        self.world.lend(slot, {cell: cells[slot, cell] for cell in where})

    def _lateness(self, slot: int, found: list[tuple[Group, int]]) -> int:
        number = self.words[DIMS.slot(slot) + W.S_NUMBER]
        serials = [self.words[DIMS.group(group.number) + W.G_SERIAL] & 0xFFFFFFFF for group, _ in found]
        return max((number - serial for serial in serials), default=0)

    def _behaviour(self, failed: Failed) -> str:
        index = failed.group.indices[failed.position]
        assert self.world.shared.blobs[failed.group.number, failed.blob] == index
        return self.plan.behaviour.get(index, "row")

    def _fail(self, failed: Failed) -> None:
        assert failed.position in failed.group.owed, "a sample fails once"
        if failed.took_worker:
            assert self.deaths[id(failed.group), failed.position][1] > W.DEATHS_ALLOWED
        else:
            assert self._behaviour(failed) in ("raises", "unsendable", "too large")
        self.failed.append(failed.group.indices[failed.position])

    def _replace(self, lane: int) -> Iterator[None]:
        before = {self._ticket(*ticket): ticket for ticket in self._pending()}
        groups = self.groups
        repair = self.machine.epoch.repair(lane)
        if repair.ticket is not None and repair.deaths:
            assert self._is_guilty(self.world.lanes[lane], *repair.ticket), "somebody else's sample is blamed"
            group, position = groups[repair.ticket[0]], repair.ticket[1]
            self.deaths[id(group), position] = group, self.deaths.get((id(group), position), (group, 0))[1] + 1
        for word, (number, position) in before.items():
            if self.words[word] & 15 == W.FAILED:
                assert not self._held(number, position), "it failed while somebody makes it"
        self.world.check_counts()
        yield
        self.world.start(lane, self.plan.chunks[lane])
        self.dead.remove(lane)
        yield
        self._ring(self.ledger.wake(DIMS.lanes))
        yield

    def _ticket(self, group: int, position: int) -> int:
        return DIMS.ticket(group) + position

    def _pending(self) -> Iterator[tuple[int, int]]:
        for number, group in self.groups.items():
            for position in range(len(group.indices)):
                if self.words[self._ticket(number, position)] & 15 == W.PENDING:
                    yield number, position

    def _held(self, group: int, position: int) -> bool:
        return any(lane.alive and lane.holds(group, position) for lane in self.world.lanes)

    def _is_guilty(self, dead: SimLane, group: int, position: int) -> bool:
        return dead.holds(group, position) or (dead.torn and not self._held(group, position))

    def overslept(self) -> bool:
        """It sleeps although there is something for it and nobody is about to say so."""
        if not self.asleep or self.world.shared.bell or any(lane.to_report for lane in self.world.lanes):
            return False
        candidates = self.open if self.machine.epoch.arrangement is Arrangement.BATCHES else islice(self.open, 1)
        if any(self.ledger.is_ready(slot) for slot in candidates):
            return True
        if not self.machine.epoch.is_free:
            return False
        collating = any(self.words[DIMS.slot(slot) + W.S_STATUS] == W.COLLATING for slot in self.open)
        return self.words[W.FAILURES] != self._failures_then or (self.words[W.UNRESOLVED] == 0 and not collating)
