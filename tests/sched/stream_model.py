"""Streams in one process: workers, and a trainer that does what its machine says, step by step, in any order."""

import random
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from headrace.sched import ledger_layout as W
from headrace.sched.epochs.streammachine import (
    Allow,
    CloseStream,
    DeliverMade,
    Made,
    StreamMachine,
    StreamProgress,
    StreamRules,
)
from headrace.sched.epochs.streams import TrainerStreams
from headrace.sched.epochs.trainer_commands import End, Ring, Wait
from headrace.sched.resume import Resume, SlotContents
from tests.sched.memory import Slab, Words
from tests.sched.stream_lanes import DIMS, LANES, StreamLane, StreamPlan, note, replaced

LIMIT = 20_000


@dataclass
class Hand:
    """On its way to the user."""

    batch: tuple[int, int, str]
    """Lane, position, what it was."""
    load: object
    then: StreamProgress


class StreamRun:
    """Does what the machine says, a step at a time; ``can_stop`` says when the user could give it up."""

    def __init__(self, world: "StreamWorld", plan: StreamPlan) -> None:
        self.world, self.plan, self.words = world, plan, world.words
        self.ledger, self.streams = world.words.trainer(DIMS), TrainerStreams(world.words, DIMS, LANES)
        self.hands: deque[Hand] = deque()
        self.machine = StreamMachine(
            self.ledger,
            self.streams,
            [Resume(began) for began in plan.began],
            self.hands,
            StreamRules(plan.in_order, plan.ahead, repeats=True),
            plan.turn,
        )
        self.delivered: list[tuple[int, int, str]] = []
        """To the user, in order; with what he was spared."""
        self.finished = self.asleep = False
        self.can_stop = True
        self.dead: list[int] = []
        self.machine.begin()
        self._steps = self._run()

    @property
    def can_move(self) -> bool:
        return not self.finished and (not self.asleep or self.world.bell > 0 or bool(self.dead))

    def step(self) -> None:
        if self.asleep:
            self.asleep, self.world.bell = False, 0
        next(self._steps, None)

    def abandon(self) -> None:
        self.machine.give_up()
        self.world.reclaim([])

    def _run(self) -> Iterator[None]:
        self.can_stop = False
        yield from self._allow()
        self.can_stop = True
        yield
        self.can_stop = False
        yield from self._deliver()

    def _deliver(self) -> Iterator[None]:
        machine = self.machine
        while True:
            machine.start()
            act = machine.next()
            yield
            if isinstance(act, End):
                self.finished = True
                return
            if isinstance(act, DeliverMade):
                hand = self._hand(act.made)
                yield
                self._hold(hand)
                yield from self._allow()
                if hand.load is None:
                    continue
                self._take(hand)
                self.can_stop = True
                yield
                self.can_stop = False
                self._settle()
            elif isinstance(act, CloseStream):
                yield from self._close(act.made)
            elif isinstance(act, Wait):
                self.asleep = self.can_stop = True
                yield
                self.can_stop = False
                while self.dead:
                    yield from self._replace(self.dead[-1])

    def _allow(self) -> Iterator[None]:
        machine = self.machine
        machine.start_ahead()
        while not isinstance(act := machine.next(), Wait):
            yield
            if isinstance(act, Allow):
                if self.plan.tight and not act.must:
                    machine.no_room(act.lane)
                    continue
                slot = self.world.slab.acquire(lambda slot: self.ledger.is_busy(slot, LANES))
                yield
                machine.allow(act.lane, slot)
            elif isinstance(act, Ring):
                self._ring(act.lanes)
            yield

    def _ring(self, lanes: Iterable[int]) -> None:
        for lane in lanes:
            self.world.bells[lane] += 1

    def _hand(self, made: Made) -> Hand:
        """What is in the slot is what its lane put there, and the next of its stream."""
        lane, slot, outcome = made
        epoch, owner, position, what = self.world.slab.cells[slot, 0]
        assert (epoch, owner) == (self.world.epoch, lane), "another one's batch"
        assert outcome.failed == (what != "batch")
        assert outcome.items == position + 10
        place = self.machine.after(made, self._reading(made))
        if outcome.failed:
            self.world.slab.release(slot)
        else:
            self.world.lend(slot)
        return Hand((lane, position, what), None if what == "skipped" else slot, place)

    def _hold(self, hand: Hand) -> None:
        """From here on it is not lost."""
        self.hands.append(hand)
        if hand.load is None:
            self.delivered.append(hand.batch)

    def _reading(self, made: Made) -> SlotContents:
        cells, outcome = self.world.slab.cells, made.outcome
        left = cells[made.slot, outcome.note] if outcome.note >= 0 else None
        return SlotContents(outcome.failed and cells[made.slot, 0][3] == "refused", left)

    def _take(self, hand: Hand) -> None:
        """The user has it."""
        if hand.load is not None:
            self.delivered.append(hand.batch)
            hand.load = None

    def _settle(self) -> None:
        while self.hands and self.hands[0].load is None:
            self.machine.settle(self.hands[0].then)
            self.hands.popleft()

    def _close(self, ended: Made) -> Iterator[None]:
        left = self._reading(ended).note
        yield
        for slot in self.machine.close(ended.lane, None if left is None else left.random):
            self.world.slab.release(slot)
            yield

    def _replace(self, lane: int) -> Iterator[None]:
        made = self.machine.left_by(lane)
        yield
        resume = self.machine.successor(lane, [(each, self._reading(each)) for each in made])
        assert resume is not None
        self.world.lanes[lane] = StreamLane(self.world, lane, resume)
        self.dead.remove(lane)
        yield
        self._ring([lane])
        yield

    def check(self) -> None:
        """What the user has is what the machine says he has, whenever it is asked."""
        epoch, reached = self.world.epoch, self.machine.reached
        for lane, at in enumerate(reached.streams):
            had = [position for owner, position, what in self.delivered if owner == lane and what != "refused"]
            began, length = self.plan.began[lane], self.plan.lengths[lane]
            assert had == list(range(began, began + len(had))), "not each once and in order"
            assert at.batches == began + len(had), "another number was delivered"
            assert at.ended == (bool(had) and at.batches == length and lane in self.plan.short)
            if had and self.plan.noted:
                assert at == replaced(at, note(epoch, lane, at.batches)), "another one's note"
        last = self.delivered[-1][0] + 1 if self.delivered else self.plan.turn
        assert reached.turn == last % LANES, "another one's turn"

    def overslept(self) -> bool:
        """It sleeps although there is something for it."""
        turn = self.machine.reached.turn
        for lane in (*range(turn, LANES), *range(turn)) if self.asleep else ():
            queue = self.machine.queues[lane]
            if queue and (self.ledger.is_ready(queue[0]) or self.streams.ended(lane)):
                return True
            if self.plan.in_order and not self.streams.ended(lane):
                return False
        return False

    def verify(self) -> None:
        """All came, in turn if that was wanted."""
        plan, epoch = self.plan, self.world.epoch
        had = [(lane, position) for lane, position, what in self.delivered if what != "refused"]
        owed = {(lane, i) for lane in range(LANES) for i in range(plan.began[lane], plan.lengths[lane])}
        assert set(had) == owed
        assert len(had) == len(owed)
        ends = [note(epoch, lane, plan.lengths[lane]).random if plan.noted else None for lane in range(LANES)]
        assert self.machine.left == ends, "what the streams left is lost"
        if plan.in_order and not self.refusals:
            in_turn = sorted(owed, key=lambda at: (at[1] - plan.began[at[0]], (at[0] - plan.turn) % LANES))
            assert had == in_turn

    @property
    def refusals(self) -> int:
        """They take a turn each."""
        return sum(what == "refused" for _, _, what in self.delivered)


class StreamWorld:
    """Workers, memory, and one epoch after the other."""

    def __init__(self, plans: list[StreamPlan], *, native: bool = False) -> None:
        self.words, self.slab, self.plans = Words(DIMS.words, native=native), Slab(DIMS), plans
        self.bell, self.bells = 0, [0] * LANES
        self.runs: list[StreamRun] = []
        self.unnoticed: list[int] = []
        self.steps = 0  # of the trainer
        self._lent: deque[tuple[int, object]] = deque()
        self.lanes = [StreamLane(self, lane, Resume(plans[0].began[lane], generation=1)) for lane in range(LANES)]
        self.begin()

    @property
    def run(self) -> StreamRun:
        return self.runs[-1]

    @property
    def epoch(self) -> int:
        return len(self.runs) - 1

    def begin(self) -> bool:
        """The next epoch, if there is one; what is left of this one is given up."""
        if self.runs and self.run.finished:
            self.run.verify()
            lent = [slot for slot, _ in self._lent]
            assert sorted([*self.slab.free, *lent]) == list(range(self.slab.count)), "a slot is nobody's"
        if len(self.runs) == len(self.plans):
            return False
        if self.runs:
            self.run.abandon()
            self.unnoticed += self.run.dead
        self.runs.append(StreamRun(self, self.plans[len(self.runs)]))
        return True

    def lend(self, slot: int) -> None:
        """The user keeps two batches."""
        assert all(slot != lent for lent, _ in self._lent), "he is given it again"
        self._lent.append((slot, self.slab.cells[slot, 0]))
        while len(self._lent) > 2:
            slot, value = self._lent.popleft()
            assert self.slab.cells[slot, 0] == value, "a batch was overwritten while the user had it"
            self.slab.release(slot)

    def reclaim(self, held: list[int]) -> None:
        """All slots are free but those ``held`` and the user's."""
        assert len(set(held)) == len(held), "a slot of two batches"
        self._lent = deque(each for each in self._lent if each[0] not in held)
        self.slab.reclaim({*held, *(slot for slot, _ in self._lent)})

    def shuffle(
        self,
        rng: random.Random,
        *,
        kills: dict[int, int] | None = None,
        stops: Collection[int] = (),
        laziness: float = 0.0,
    ) -> None:
        """Until all epochs are over; deaths come at certain ticks, after so many stores."""
        kills = kills or {}
        for tick in range(LIMIT):
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
                self.run.check()
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
        run = self.run
        for lane in range(LANES):
            at = DIMS.lane(lane)
            assert self.words[at + W.L_MADE] <= self.words[at + W.L_QUOTA], "more was made than allowed"
            assert len(run.machine.queues[lane]) <= run.plan.ahead
        told = self.bell or self.unnoticed or run.dead or any(lane.to_report for lane in self.lanes)
        assert told or not run.overslept(), "nobody wakes the trainer"
