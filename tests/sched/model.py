"""A whole run in one process: workers and a trainer that advance step by step, in any order a test likes."""

import functools
import random
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar, cast

from headrace.core.story import StoryLog
from headrace.sched import ledger_layout as W
from headrace.sched.epochs.repair import holds
from headrace.sched.epochs.trainer_commands import Arrangement
from headrace.sched.ledger_story import Story
from tests.sched.epochs import DIMS, Plan, SimRun
from tests.sched.lanes import Shared, SimLane
from tests.sched.memory import Slab, Words, pending

LIMIT = 10_000


Method = TypeVar("Method", bound=Callable[..., Any])


def told(method: Method) -> Method:
    """What fails in there says how it came to that."""

    @functools.wraps(method)
    def telling(self: "World", *args: Any, **options: Any) -> Any:
        try:
            return method(self, *args, **options)
        except AssertionError as error:
            self.story.gather()
            error.add_note(self.story.log.ending(100))
            raise

    return cast(Method, telling)


class World:
    """Workers, memory, and one epoch after the other."""

    def __init__(self, plans: list[Plan], *, native: bool = False, paces: int | None = None) -> None:
        """``paces``: what chance begins with that has lanes take as many tickets as it likes."""
        self.words = Words(DIMS.words, native=native)
        self.slab = Slab(DIMS)
        self.shared = Shared(self.words, self.slab)
        self.shared.chance = None if paces is None else random.Random(paces)
        self.story = Story(self.words.buffer, DIMS, StoryLog(lambda: self.shared.now))
        self.words.buffer[W.LANES] = DIMS.lanes
        self.lanes = [SimLane(self.shared, lane, 1) for lane in range(DIMS.lanes)]
        self.unnoticed: list[int] = []
        self.shared.is_alive = lambda lane: self.lanes[lane].alive
        self.deaths = 0
        self._lent: deque[tuple[int, dict[int, object]]] = deque()
        self.plans, self._plans = plans, deque(plans)
        self.runs: list[SimRun] = []
        self.begin()

    @property
    def run(self) -> SimRun:
        return self.runs[-1]

    def begin(self) -> bool:
        """The next epoch, if there is one; what is left of this one is given up."""
        if not self._plans:
            return False
        if self.runs:
            self.run.abandon()
        self.shared.bell += 1  # whatever was rung before is no message to the new epoch
        dead = self.run.dead if self.runs else []
        self.runs.append(SimRun(self, self._plans.popleft()))
        self.unnoticed += dead
        return True

    def reclaim(self) -> None:
        """All slots are free but the user's."""
        self.slab.reclaim({slot for slot, _ in self._lent})

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

    def step_trainer(self) -> None:
        self.run.step()
        self.check()

    def _after(self, lane: int) -> None:
        if not self.lanes[lane].alive and lane not in self.unnoticed:
            self.unnoticed.append(lane)
            self.deaths += 1
        self.check()

    def check(self) -> None:
        if self.run.torn:
            return  # whatever is there is void, and will be begun again
        torn = self.unnoticed or self.run.dead or not all(lane.alive for lane in self.lanes)
        roles = [self.words[DIMS.lane(lane) + W.L_ROLE] for lane in range(DIMS.lanes)]
        assert torn or self.words[W.FOREGROUND] == roles.count(W.WORKING)
        self.check_counts(torn=bool(torn))
        assert torn or not self.run.overslept(), "nobody wakes the trainer"
        held = [ticket for lane in self.lanes if lane.alive for ticket in self._held(lane.at)]
        assert len(held) == len(set(held)), "two lanes hold one ticket"

    def _held(self, at: int) -> list[tuple[int, int]]:
        """Tickets of the lane whose words stand there."""
        words = self.words
        if not holds(self.run.ledger, at):
            return []
        span = range(words[at + W.L_START], words[at + W.L_END])
        return [(words[at + W.L_GROUP], position) for position in span]

    def check_counts(self, *, torn: bool = False) -> None:
        owed, counted = pending(self.words, DIMS, list(self.run.groups)), self.words[W.UNRESOLVED]
        assert counted >= owed if torn else counted == owed

    def movable(self) -> list[int]:
        """Lanes that can go on; -1 for the trainer."""
        found = [number for number, lane in enumerate(self.lanes) if lane.can_move]
        return [*found, -1] if self.run.can_move else found

    def advance(self, actor: int) -> None:
        self.shared.now += 1
        self.step_trainer() if actor < 0 else self.step_lane(actor)

    @told
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
                assert self.run.asleep, "the trainer is stuck"
                assert self.run.due is not None, "everybody sleeps and work is owed"
                self.shared.now = max(self.shared.now, self.run.due)
            for actor in movable:
                if left and actor in self.movable():
                    self.advance(actor)
                    left -= 1
        assert left or ticks, "it does not end"
        return left

    @told
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
                assert self.run.asleep, "the trainer is stuck"
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

    @told
    def verify(self) -> None:
        """Every index of a finished epoch came out once, in the batches its arrangement promises."""
        for run in self.runs:
            plan = run.plan
            drawn = run.drawn
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
                assert all(batch.whole for batch in run.delivered), "short of samples"
                continue
            out = set(run.failed)
            for batch in run.collation_failed:
                out.update(batch)
            empty = [batch for batch in (*batches, *run.collation_failed) if not batch]
            assert len(empty) == plan.batches.count(()) or run.was_torn  # nothing is owed of them
            wanted = [tuple(index for index in batch if index not in out) for batch in plan.batches]
            wanted, batches = [batch for batch in wanted if batch], [batch for batch in batches if batch]
            if plan.arrangement is Arrangement.STRICT:
                assert batches == wanted
            else:
                assert sorted(batches) == sorted(wanted)
