"""Streams in one process: workers that make batches of their own, and a consumer that takes them."""

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.sched import words as W
from headrace.sched.consumer import ConsumerLedger
from headrace.sched.moves import Next
from headrace.sched.streams import ConsumerStreams, LaneStream
from headrace.sched.words import Dims
from tests.sched.memory import Killed, Slab, Words

LANES = 3
DIMS = Dims(lanes=LANES, groups=1, slots=40, rows=1)
LIMIT = 20_000


@dataclass(frozen=True)
class StreamPlan:
    """One epoch: how many batches each stream has."""

    lengths: tuple[int, ...]
    ahead: int = 2
    in_order: bool = True


class StreamLane:
    """Does what its stream says. Where to resume from holds for the epoch it was said in."""

    def __init__(self, world: "StreamWorld", number: int, resume: tuple[int, int]) -> None:
        self.world, self.words, self.number, self._resume = world, world.words, number, resume
        self.stream = LaneStream(world.words, DIMS, number)
        self.alive, self.asleep, self.to_report = True, False, False
        self._position: int | None = None
        self._steps = self._run()

    @property
    def can_move(self) -> bool:
        return self.alive and (not self.asleep or self.world.bells[self.number] > 0)

    def step(self) -> None:
        if self.asleep:
            self.asleep, self.world.bells[self.number] = False, 0
        try:
            next(self._steps)
        except Killed:
            self.alive = False

    def kill(self, fuse: int) -> None:
        if self.can_move:
            self.words.fuse = fuse
            self.step()
            self.words.fuse = None
        self.alive = self.to_report = False

    def _run(self) -> Iterator[None]:
        slab = self.world.slab
        while True:
            what, slot, fresh = self.stream.visit()
            if fresh:
                self._position = None
            use = slab.uses.get(slot)
            epoch = len(self.world.runs) - 1
            yield
            if what == Next.ASLEEP:
                self.asleep = True
                yield
                continue
            if self._position is None:
                self._position = self._resume[1] if self._resume[0] == epoch else 0
            position, length = self._position, self.world.plans[epoch].lengths[self.number]
            if position < length:
                slab.write(slot, use, 0, (epoch, self.number, position))
                yield
                self.stream.attach(slot, position + 1)
                yield
                self._position += 1
                wake = self.stream.ready(slot, position + 10, 0, 1, failed=False)
            else:
                wake = self.stream.end()
            self.to_report = wake
            yield
            if wake:
                self.world.bell += 1
                self.to_report = False
                yield


class StreamRun:
    """Mirrors the engine's consumer of one epoch of streams."""

    def __init__(self, world: "StreamWorld", plan: StreamPlan) -> None:
        self.world, self.plan, self.words = world, plan, world.words
        self.streams = ConsumerStreams(world.words, DIMS, LANES)
        self.queues: list[deque[int]] = [deque() for _ in range(LANES)]
        self.taken = [0] * LANES
        self.delivered: list[tuple[int, int]] = []
        self.finished = self.asleep = False
        self.can_stop = True
        self.dead: list[int] = []
        self._turn = 0
        self.streams.reset()
        self._steps = self._run()

    @property
    def can_move(self) -> bool:
        return not self.finished and (not self.asleep or self.world.bell > 0 or bool(self.dead))

    def step(self) -> None:
        if self.asleep:
            self.asleep, self.world.bell = False, 0
        next(self._steps, None)

    def abandon(self) -> None:
        for queue in self.queues:
            while queue:
                self.world.slab.release(queue.popleft())

    def _run(self) -> Iterator[None]:
        yield from self._allow()
        while True:
            lane = self.look()
            if lane is None:
                self.streams.expect()
            yield
            if lane is not None:
                self._deliver(lane)
                yield from self._allow()
                self.can_stop = True
                yield
                self.can_stop = False
            elif not any(self.queues):
                self.finished = True
                return
            else:
                self.asleep = self.can_stop = True
                yield
                self.can_stop = False
                while self.dead:
                    yield from self._replace(self.dead.pop())

    def _allow(self) -> Iterator[None]:
        for lane in range(LANES):
            while len(self.queues[lane]) < self.plan.ahead and not self.streams.ended(lane):
                yield
                slot = self.world.slab.acquire(lambda slot: self.world.ledger.is_busy(slot, LANES))
                self.streams.allow(lane, slot)
                self.queues[lane].append(slot)
                yield
        for lane in self.world.ledger.wake(LANES):
            self.world.bells[lane] += 1
        yield

    def look(self) -> int | None:
        for _ in range(LANES):
            lane, queue = self._turn, self.queues[self._turn]
            if queue and self.world.ledger.is_ready(queue[0]):
                self._turn = (lane + 1) % LANES
                return lane
            if self.streams.ended(lane):
                while queue:
                    self.world.slab.release(queue.popleft())
            elif self.plan.in_order:
                return None
            self._turn = (lane + 1) % LANES
        return None

    def _deliver(self, lane: int) -> None:
        slot = self.queues[lane].popleft()
        epoch, owner, position = self.world.slab.cells[slot, 0]
        assert (epoch, owner, position) == (len(self.world.runs) - 1, lane, self.taken[lane])
        assert self.streams.outcome(slot) == (position + 10, False, position + 1, False)
        self.taken[lane] += 1
        self.delivered.append((lane, position))
        self.world.lend(slot)

    def _replace(self, lane: int) -> Iterator[None]:
        self.world.ledger.bury(lane)
        counted = self.words[DIMS.lane(lane) + W.L_MADE]
        made = self.streams.count_made(lane, self.queues[lane])
        agrees = counted == self.words[DIMS.lane(lane) + W.L_MADE]
        assert agrees or self.streams.ended(lane), "what was made is not what can be had"
        yield
        epoch = len(self.world.runs) - 1
        self.world.lanes[lane] = StreamLane(self.world, lane, (epoch, self.taken[lane] + made))
        self.world.bells[lane] += 1
        yield


class StreamWorld:
    """Workers, memory, and one epoch after the other."""

    def __init__(self, plans: list[StreamPlan]) -> None:
        self.words, self.slab, self.plans = Words(DIMS.words), Slab(DIMS), plans
        self.ledger = ConsumerLedger(self.words, DIMS)
        self.bell, self.bells = 0, [0] * LANES
        self.runs: list[StreamRun] = []
        self.unnoticed: list[int] = []
        self._lent: deque[tuple[int, object]] = deque()
        self.lanes = [StreamLane(self, lane, (0, 0)) for lane in range(LANES)]
        self.begin()

    @property
    def run(self) -> StreamRun:
        return self.runs[-1]

    def begin(self) -> bool:
        if len(self.runs) == len(self.plans):
            return False
        if self.runs:
            self.run.abandon()
            self.unnoticed += self.run.dead
        self.runs.append(StreamRun(self, self.plans[len(self.runs)]))
        return True

    def lend(self, slot: int) -> None:
        self._lent.append((slot, self.slab.cells[slot, 0]))
        while len(self._lent) > 2:
            slot, value = self._lent.popleft()
            assert self.slab.cells[slot, 0] == value, "a batch was overwritten while the user had it"
            self.slab.release(slot)

    def shuffle(
        self, rng: random.Random, kills: dict[int, int], stops: set[int], laziness: float, start: int = 0
    ) -> None:
        """Until all epochs are over; deaths come at certain ticks, after so many stores."""
        for tick in range(start, LIMIT):
            if (self.run.finished or (tick in stops and self.run.can_stop)) and not self.begin():
                return
            movable = [number for number, lane in enumerate(self.lanes) if lane.can_move]
            if self.unnoticed and self.run.asleep and (rng.random() > laziness or not movable):
                self.notice(rng)
            movable += [-1] if self.run.can_move else []
            assert movable, "everybody sleeps and batches are owed"
            actor = rng.choice(movable)
            if actor < 0:
                self.run.step()
            elif tick in kills:
                self.kill(actor, kills[tick])
            else:
                self.lanes[actor].step()
            self.check()
        raise AssertionError("it does not end")

    def notice(self, rng: random.Random) -> None:
        lane = rng.choice(self.unnoticed)
        self.unnoticed.remove(lane)
        self.run.dead.append(lane)

    def kill(self, lane: int, fuse: int) -> None:
        self.lanes[lane].kill(fuse)
        self.unnoticed.append(lane)

    def check(self) -> None:
        for lane in range(LANES):
            at = DIMS.lane(lane)
            assert self.words[at + W.L_MADE] <= self.words[at + W.L_QUOTA], "more was made than allowed"
            assert len(self.run.queues[lane]) <= self.run.plan.ahead
        told = self.bell or self.unnoticed or self.run.dead or any(lane.to_report for lane in self.lanes)
        if self.run.asleep and not told:
            heads = [queue[0] for queue in self.run.queues if queue]
            ready = [slot for slot in heads if self.ledger.is_ready(slot)]
            assert not ready or self.run.plan.in_order, "nobody wakes the consumer"

    def verify(self) -> None:
        for run in self.runs:
            if run.finished:
                plan = run.plan
                owed = {(lane, i) for lane, length in enumerate(plan.lengths) for i in range(length)}
                assert set(run.delivered) == owed
                assert len(run.delivered) == len(owed)
                in_turn = sorted(owed, key=lambda batch: (batch[1], batch[0]))
                assert not plan.in_order or run.delivered == in_turn
