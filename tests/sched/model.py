"""A whole run in one process: workers and a consumer that advance step by step, in any order a test likes."""

import random
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from enum import Enum

from headrace.sched import words as W
from headrace.sched.consumer import Batch as Published
from headrace.sched.words import Dims
from tests.sched.lanes import Shared, SimLane
from tests.sched.memory import Slab, Words, pending

DIMS = Dims(lanes=3, groups=24, slots=24, rows=8)
LIMIT = 10_000


class Arrangement(Enum):
    STRICT = 1
    BATCHES = 2
    FREE = 3


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
    follows: bool = False
    """It may be begun while the one before it is delivered; which batches are collated, and how, is the same."""


class Numbers:
    """Of groups."""

    def __init__(self) -> None:
        self.free: list[int] = []
        self.count = 0

    def take(self) -> int:
        if self.free:
            return self.free.pop()
        self.count += 1
        return self.count - 1


@dataclass
class Group:
    number: int
    indices: tuple[int, ...]
    slot: int
    owed: set[int]
    sequence: int
    deaths: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Batch:
    """As the user gets it."""

    indices: tuple[int, ...]
    expected: int
    closed: bool
    late: int = 0
    """By how many batches the sample overtaken most was."""


class SimRun:
    """Mirrors the engine's consumer of one epoch; ``can_stop`` says when the user could give it up."""

    def __init__(self, world: "World", plan: Plan, after: "SimRun | None" = None) -> None:
        self.world, self.plan = world, plan
        self.words, self.slab, self.ledger = world.words, world.slab, world.words.consumer(DIMS)
        self.epoch = 0 if after is None else after.epoch + 1
        self.next: SimRun | None = None
        self.free_order = plan.arrangement is Arrangement.FREE
        self.drawn = 0
        self.open: deque[int] = deque()
        self.owner: dict[int, Group] = {}
        self.groups: dict[int, Group] = {}
        self.closed: set[int] = set()
        self.delivered: list[Batch] = []
        self.failed: list[int] = []
        self.collation_failed: list[tuple[int, ...]] = []
        self.dropped: list[tuple[int, ...]] = []
        self.finished = self.asleep = False
        self.can_stop = True
        self.dead: list[int] = []
        self.numbers = Numbers() if after is None else after.numbers
        self._undelivered = self._lost = self._seen_failures = self._failures_then = 0
        self._size = 1
        shared = world.shared
        shared.behaviour |= plan.behaviour
        shared.collate, shared.whole = plan.collate, plan.whole
        shared.collate_deaths |= plan.collate_deaths
        self.due: int | None = None
        self.hand_offs = 0
        self._steps = self._run()
        if after is not None:
            self.ledger.follow(self.epoch)
            return
        limit, displacement = plan.limits[0], plan.displacement
        self.ledger.reset(free_order=self.free_order, limit=limit, displacement=displacement)
        self._set_lanes()

    def begin(self) -> None:
        """Take over from the run before."""
        self.ledger.advance(self.groups)
        self._set_lanes()

    def _set_lanes(self) -> None:
        for lane, chunk in zip(self.world.lanes, self.plan.chunks, strict=True):
            lane.pace.chunk = chunk

    def everything(self) -> dict[int, Group]:
        """The groups in the ledger."""
        return self.groups | (self.next.groups if self.next else {})

    @property
    def can_move(self) -> bool:
        return not self.finished and (not self.asleep or self.world.shared.bell > 0 or bool(self.dead) or self.is_due)

    @property
    def is_due(self) -> bool:
        """A sample may have become slow."""
        return self.due is not None and self.world.shared.now >= self.due

    @property
    def exhausted(self) -> bool:
        return self.drawn == len(self.plan.batches)

    def step(self) -> None:
        if self.asleep:
            self.asleep, self.world.shared.bell = False, 0
        next(self._steps, None)

    def abandon(self) -> None:
        for slot in self.open:
            self.slab.release(slot)
        self.open.clear()

    def _run(self) -> Iterator[None]:
        while True:
            self.can_stop = False
            yield from self._draw()
            self._watch()
            yield
            self._report_failures()
            yield
            if not self.open and self.exhausted:
                self.finished = True
                return
            slot = yield from self._look()
            yield
            if slot is not None:
                self._deliver(slot)
                self._govern()
                self.can_stop = True
                yield
            elif self._is_starved():
                yield from self._draw_one()
            elif self.open:
                self.asleep = self.can_stop = True
                yield
                self.can_stop = False
                while self.dead:
                    yield from self._replace(self.dead.pop())

    def _is_starved(self) -> bool:
        if not self.free_order or self.exhausted or self.words[W.UNRESOLVED]:
            return False
        return not self.open or self.words[DIMS.slot(self.open[0]) + W.S_STATUS] == W.FILLING

    def _draw(self) -> Iterator[None]:
        while not self.exhausted:
            window = self.plan.window * (self.words[W.LIMIT] if len(self.plan.limits) > 1 else 1)
            if self._undelivered >= window + self._lost // max(1, self._size):
                return
            yield from self._draw_one()
        yield from self._draw_early()

    def _draw_early(self) -> Iterator[None]:
        if self.next is None and self._undelivered < self.plan.window:
            self.next = self.world.follow(self)
        while self.next is not None and not self.next.exhausted:
            if self._undelivered + self.next.outstanding >= self.plan.window:
                return
            yield from self.next.draw_one()

    def draw_one(self) -> Iterator[None]:
        yield from self._draw_one()

    @property
    def outstanding(self) -> int:
        return self._undelivered

    def _watch(self) -> None:
        if not self.plan.threshold:
            return
        now, words = self.world.shared.now, self.words
        roles = [words[DIMS.lane(lane) + W.L_ROLE] for lane in range(DIMS.lanes)]
        self.due = self.ledger.put_aside(DIMS.lanes, now, self.plan.threshold, self.plan.spares)
        for lane, before in enumerate(roles):
            if before != words[DIMS.lane(lane) + W.L_ROLE]:
                assert before == W.WORKING
                assert self.world.lanes[lane].is_making or not self.world.lanes[lane].alive, "it makes nothing"
                assert 0 < words[DIMS.lane(lane) + W.L_BEGAN] <= now - self.plan.threshold, "it is not slow"
                self.hand_offs += 1
        assert self.due is None or self.due > now
        assert self.ledger.aside(DIMS.lanes) <= max(self.plan.spares, roles.count(W.ASIDE))
        if words[W.LIMIT] > words[W.FOREGROUND]:
            self._ring_lanes()

    def _govern(self) -> None:
        limits = self.plan.limits
        limit = limits[min(len(self.delivered), len(limits) - 1)]
        more, self.words[W.LIMIT] = limit > self.words[W.LIMIT], limit
        if more:
            self._ring_lanes()

    def _draw_one(self) -> Iterator[None]:
        slot = self.slab.acquire(lambda slot: self.ledger.is_busy(slot, DIMS.lanes))
        yield
        self._publish(self.plan.batches[self.drawn], slot)
        self.drawn += 1
        yield

    def _publish(self, indices: tuple[int, ...], slot: int) -> None:
        self._size = len(indices)
        number = self.numbers.take()
        group = Group(number, indices, -1 if self.free_order else slot, set(range(len(indices))), self.words[W.TAIL])
        self.groups[number] = group
        first = DIMS.index(number)
        self.words[first : first + len(indices)] = indices
        if indices:
            ahead = [position for position, index in enumerate(indices) if index in self.plan.ahead]
            size, free = len(indices), self.free_order
            batch = Published(slot, size, self.plan.collate, number, size, W.INTEGERS, 64, free)
            self._ring(self.ledger.publish(batch, DIMS.lanes, ahead))
        else:
            self._ring(self.ledger.publish_empty(slot, number, DIMS.lanes))
        if not self.free_order:
            self.owner[slot] = group
        self.open.append(slot)
        self._undelivered += 1

    def _ring_lanes(self) -> None:
        self._ring(self.ledger.wake(DIMS.lanes))

    def _ring(self, lanes: list[int]) -> None:
        for lane in lanes:
            self.world.lanes[lane].bell += 1

    def _look(self) -> Generator[None, None, int | None]:
        found = self.ledger.look(self._candidates())
        self._failures_then = self.words[W.FAILURES]
        yield
        if found is None and self.free_order and self.exhausted and self.words[W.UNRESOLVED] == 0:
            self._close_tail()
            yield
            found = self.ledger.look(self._candidates()) if self.open else None
            self._failures_then = self.words[W.FAILURES]
            yield
        if found is None and self.exhausted:
            self._ring_lanes()
        if found is not None:
            self.open.remove(found)
        return found

    def _candidates(self) -> list[int]:
        return list(self.open) if self.plan.arrangement is Arrangement.BATCHES else list(self.open)[:1]

    def _close_tail(self) -> None:
        for slot in list(self.open):
            filling = self.words[DIMS.slot(slot) + W.S_STATUS] == W.FILLING
            if filling and (self.plan.drop_last or not self.ledger.close(slot)):
                self.open.remove(slot)
                rows = self._present(slot)
                assert len(rows) < self.words[DIMS.slot(slot) + W.S_EXPECTED], "a full batch is not dropped"
                assert not rows or self.plan.drop_last, "samples are lost"
                if rows:
                    self.dropped.append(tuple(self._settle(slot, rows)))
                self.slab.release(slot)
                self._undelivered -= 1
            elif filling:
                self.closed.add(slot)
        self._ring_lanes()

    def _present(self, slot: int) -> list[int]:
        at, first = DIMS.slot(slot), DIMS.row_state(slot)
        expected = self.words[at + W.S_EXPECTED]
        if self.words[at + W.S_DONE] == expected and not self.words[W.FAILURES]:
            return list(range(expected))
        states = self.words[first : first + expected]
        return [row for row, state in enumerate(states) if state & 255 in (W.IN_PLACE, W.AS_OBJECT)]

    def _settle(self, slot: int, rows: list[int]) -> list[int]:
        """The indices of a slot's rows, which are not owed any more."""
        found = []
        for row in rows:
            ticket = self.words[DIMS.row_ticket(slot) + row] - 1
            group, position = self.groups[ticket >> 32], ticket & 0xFFFFFFFF
            assert position in group.owed, "two rows for one ticket"
            found.append(group.indices[position])
            self._forget(group, position)
        owner = self.owner.pop(slot, None)
        if owner is not None:
            assert not owner.owed, "a sample of a batch is neither there nor reported"
            self._retire(owner)
        return found

    def _give_up(self, slot: int, rows: list[int]) -> list[int]:
        """The indices of a batch that could not be collated: made or, where one lane made it alone, never filed."""
        if slot not in self.owner:
            return self._settle(slot, rows)
        group = self.owner.pop(slot)
        assert pending(self.words, DIMS, [group.number]) == 0
        self._retire(group)
        return [group.indices[position] for position in sorted(group.owed)]

    def _forget(self, group: Group, position: int) -> None:
        group.owed.remove(position)
        if not group.owed and group.slot < 0:
            self._retire(group)

    def _retire(self, group: Group) -> None:
        if self.groups.pop(group.number, None) is not None:
            self.numbers.free.append(group.number)

    def _deliver(self, slot: int) -> None:
        self._undelivered -= 1
        at, closed = DIMS.slot(slot), slot in self.closed
        self.closed.discard(slot)
        if slot in self.owner and self.words[W.FAILURES]:
            group = self.owner[slot]
            for _, position, blob in self.ledger.failed([group.number]):
                self._fail(group, position, blob)
        rows = self._present(slot)
        if self.words[at + W.S_FAILED]:
            self.collation_failed.append(tuple(self._give_up(slot, rows)))
            self.slab.release(slot)
            return
        cells, states = self.slab.cells, DIMS.row_state(slot)
        offset = self.words[at + W.S_RESULT]
        if self.words[at + W.S_COLLATE]:
            assert self.words[at + W.S_RESULT_BYTES] == 1
            values, where = cells[slot, offset], [offset]
        else:
            where = rows
            assert all(self.words[states + row] == W.IN_PLACE for row in rows)
            values = tuple(cells.get((slot, row)) for row in rows)
        expected = self.words[at + W.S_EXPECTED]
        late = self._lateness(slot, rows) if self.free_order else 0
        assert values == tuple(self._settle(slot, rows)), "a row does not hold the sample of its ticket"
        if rows or not expected:
            self.delivered.append(Batch(values, expected, closed, late))
        self.world.lend(slot, {cell: cells[slot, cell] for cell in where})

    def _lateness(self, slot: int, rows: list[int]) -> int:
        number, first = self.words[DIMS.slot(slot) + W.S_NUMBER], DIMS.row_ticket(slot)
        groups = [self.groups[(self.words[first + row] - 1) >> 32] for row in rows]
        return max((number - group.sequence for group in groups), default=0)

    def _fail(self, group: Group, position: int, blob: int) -> None:
        index = group.indices[position]
        assert position in group.owed, "a sample fails once"
        behaviour = self.plan.behaviour.get(index, "row")
        if blob != W.NO_BLOB:
            assert self.world.shared.blobs[group.number, blob] == index
            assert behaviour in ("raises", "unsendable", "too large")
        else:
            assert group.deaths[position] > W.DEATHS_ALLOWED
        self.failed.append(index)
        self._forget(group, position)

    def _report_failures(self) -> None:
        if not self.free_order or self.words[W.FAILURES] == self._seen_failures:
            return
        for number, position, blob in self.ledger.failed(list(self.groups)):
            group = self.groups.get(number)
            if group is not None and position in group.owed:
                self._seen_failures += 1
                self._lost += 1
                self._fail(group, position, blob)

    def _replace(self, lane: int) -> Iterator[None]:
        before = {self._ticket(*ticket): ticket for ticket in self._pending()}
        groups, slots = self.everything(), [*self.open, *(self.next.open if self.next else ())]
        repair = self.ledger.repair(lane, DIMS.lanes, list(groups), slots)
        if repair.ticket is not None and repair.deaths:
            assert self._is_guilty(self.world.lanes[lane], *repair.ticket), "somebody else's sample is blamed"
            group = groups[repair.ticket[0]]
            group.deaths[repair.ticket[1]] = group.deaths.get(repair.ticket[1], 0) + 1
        for word, (group, position) in before.items():
            if self.words[word] & 15 == W.FAILED:
                assert not self._held(group, position), "it failed while somebody makes it"
        self.world.check_counts()
        yield
        self.world.start(lane, self.plan.chunks[lane])
        yield
        self._ring_lanes()
        yield

    def _ticket(self, group: int, position: int) -> int:
        return DIMS.ticket(group) + position

    def _pending(self) -> Iterator[tuple[int, int]]:
        for number, group in self.everything().items():
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
        if any(self.ledger.is_ready(slot) for slot in self._candidates()):
            return True
        if not self.free_order:
            return False
        collating = any(self.words[DIMS.slot(slot) + W.S_STATUS] == W.COLLATING for slot in self.open)
        return self.words[W.FAILURES] != self._failures_then or (self.words[W.UNRESOLVED] == 0 and not collating)


class World:
    """Workers, memory, and one epoch after the other."""

    def __init__(self, plans: list[Plan], *, native: bool = False) -> None:
        self.words = Words(DIMS.words, native=native)
        self.slab = Slab(DIMS)
        self.shared = Shared(self.words, self.slab)
        self.lanes = [SimLane(self.shared, lane, 1) for lane in range(DIMS.lanes)]
        self.unnoticed: list[int] = []
        self.shared.is_alive = lambda lane: self.lanes[lane].alive
        self.deaths = 0
        self._lent: deque[tuple[int, dict[int, object]]] = deque()
        self.plans, self._plans = plans, deque(plans)
        self.begun_early = 0
        self.runs: list[SimRun] = []
        self.begin()

    @property
    def run(self) -> SimRun:
        return self.runs[-1]

    def begin(self) -> bool:
        """The next epoch, if there is one; what is left of this one is given up."""
        early = self.run.next if self.runs else None
        if not self._plans and early is None:
            return False
        if self.runs:
            self.run.abandon()
        self.shared.bell += 1  # whatever was rung before is no message to the new epoch
        dead = self.run.dead if self.runs else []
        if early is not None and self.run.finished:
            early.begin()
            self.begun_early += early.drawn > 0
            self.runs.append(early)
        else:
            if early is not None:
                early.abandon()
                self._plans.appendleft(early.plan)
            self.runs.append(SimRun(self, self._plans.popleft()))
        self.unnoticed += dead
        return True

    def follow(self, run: SimRun) -> SimRun | None:
        """The run after this one, if it may begin early."""
        if not self._plans or not self._plans[0].follows:
            return None
        return SimRun(self, self._plans.popleft(), run)

    def start(self, lane: int, chunk: int) -> None:
        bell = self.lanes[lane].bell
        self.lanes[lane] = SimLane(self.shared, lane, chunk)
        self.lanes[lane].bell = bell

    def lend(self, slot: int, values: dict[int, object]) -> None:
        """The user keeps two batches."""
        self._lent.append((slot, values))
        while len(self._lent) > 2:
            slot, values = self._lent.popleft()
            for cell, value in values.items():
                assert self.slab.cells[slot, cell] == value, "a batch was overwritten while the user had it"
            self.slab.release(slot)

    def step_lane(self, lane: int) -> None:
        self.lanes[lane].step()
        self._after(lane)

    def kill(self, lane: int, fuse: int) -> None:
        if self.lanes[lane].alive:
            self.lanes[lane].kill(fuse)
            self._after(lane)

    def notice(self, lane: int) -> None:
        self.unnoticed.remove(lane)
        self.run.dead.append(lane)

    def step_consumer(self) -> None:
        self.run.step()
        self.check()

    def _after(self, lane: int) -> None:
        if not self.lanes[lane].alive and lane not in self.unnoticed:
            self.unnoticed.append(lane)
            self.deaths += 1
        self.check()

    def check(self) -> None:
        torn = self.unnoticed or self.run.dead or not all(lane.alive for lane in self.lanes)
        roles = [self.words[DIMS.lane(lane) + W.L_ROLE] for lane in range(DIMS.lanes)]
        assert torn or self.words[W.FOREGROUND] == roles.count(W.WORKING)
        self.check_counts(torn=bool(torn))
        assert torn or not self.run.overslept(), "nobody wakes the consumer"

    def check_counts(self, *, torn: bool = False) -> None:
        for word, run in ((W.UNRESOLVED, self.run), (W.UNRESOLVED_NEXT, self.run.next)):
            owed = pending(self.words, DIMS, list(run.groups) if run else [])
            assert self.words[word] >= owed if torn else self.words[word] == owed

    def movable(self) -> list[int]:
        """Lanes that can go on; -1 for the consumer."""
        found = [number for number, lane in enumerate(self.lanes) if lane.can_move]
        return [*found, -1] if self.run.can_move else found

    def advance(self, actor: int) -> None:
        self.shared.now += 1
        self.step_consumer() if actor < 0 else self.step_lane(actor)

    def finish(self, *, early: bool, ticks: int = 0) -> int:
        """Everybody in turn until all epochs are over; ``early``: deaths are noticed at once, else at the last moment.

        With ``ticks``, only so many. How many were left.
        """
        left = ticks or LIMIT
        while left:
            if self.run.finished and not self.begin():
                break
            if self.unnoticed and self.run.asleep and early:
                self.notice(self.unnoticed[0])
            movable = self.movable()
            if self.run.asleep and self.unnoticed and (self.run.is_due or movable in ([], [-1])):
                self.notice(self.unnoticed[0])
                continue
            if not movable:
                assert self.run.asleep, "the consumer is stuck"
                assert self.run.due is not None, "everybody sleeps and work is owed"
                self.shared.now = max(self.shared.now, self.run.due)
            for actor in movable:
                if left and actor in self.movable():
                    self.advance(actor)
                    left -= 1
        assert left or ticks, "it does not end"
        return left

    def shuffle(self, rng: random.Random, kills: dict[int, int], stops: set[int], laziness: float, ticks: int) -> None:
        """Anybody, at random, for ``ticks``; ``kills``: at which tick, after how many stores; ``stops``: new epochs."""
        favourite = rng.choice([-1, 0, 1, 2])
        for tick in range(ticks):
            if self.run.finished and not self.begin():
                return
            if tick in stops and self.run.can_stop and not self.begin():
                return
            if self.unnoticed and self.run.asleep and rng.random() > laziness:
                self.notice(rng.choice(self.unnoticed))
            movable = self.movable()
            if self.run.asleep and self.unnoticed and (self.run.is_due or movable in ([], [-1])):
                self.notice(rng.choice(self.unnoticed))
                continue
            if not movable:
                assert self.run.asleep, "the consumer is stuck"
                assert self.run.due is not None, "everybody sleeps and work is owed"
                self.shared.now = max(self.shared.now, self.run.due)
                continue
            if rng.random() < 0.05:
                favourite = rng.choice([-1, 0, 1, 2])
            actor = favourite if favourite in movable and rng.random() < 0.5 else rng.choice(movable)
            if tick in kills and actor >= 0:
                self.kill(actor, kills[tick])
            else:
                self.advance(actor)

    def verify(self) -> None:
        """Every index of a finished epoch came out once, in the batches its arrangement promises."""
        for run in self.runs:
            plan = run.plan
            drawn = [index for batch in plan.batches[: run.drawn] for index in batch]
            batches = [batch.indices for batch in run.delivered]
            seen = [index for batch in [*batches, *run.collation_failed, *run.dropped] for index in batch]
            seen += run.failed
            assert len(seen) == len(set(seen)), "twice"
            assert set(seen) <= set(drawn)
            if not run.finished:
                continue
            assert sorted(seen) == sorted(drawn), "lost"
            assert run.exhausted
            if plan.arrangement is Arrangement.FREE:
                if plan.displacement:
                    assert all(batch.late <= plan.displacement for batch in run.delivered), "overtaken too often"
                assert all(batch.closed or len(batch.indices) == batch.expected for batch in run.delivered)
                continue
            out = set(run.failed)
            for batch in run.collation_failed:
                out.update(batch)
            empty = [batch for batch in (*batches, *run.collation_failed) if not batch]
            assert len(empty) == plan.batches.count(())
            wanted = [tuple(index for index in batch if index not in out) for batch in plan.batches]
            wanted, batches = [batch for batch in wanted if batch], [batch for batch in batches if batch]
            if plan.arrangement is Arrangement.STRICT:
                assert batches == wanted
            else:
                assert sorted(batches) == sorted(wanted)
