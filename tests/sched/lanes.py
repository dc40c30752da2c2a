"""A worker that does what its machine says, one critical section or one thing outside it at a time."""

import random
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice

from headrace.sched import ledger_layout as W
from headrace.sched.epochs.trainer_commands import GO_ON
from headrace.sched.lanes.lane_messages import TakeRule, TakeSize, Tickets
from headrace.sched.lanes.lanemachine import (
    CollateSlot,
    CollateWhole,
    LaneMachine,
    Make,
    MakeWhole,
    PlaceSamples,
    RingTrainer,
    Sleep,
    WriteRows,
)
from headrace.sched.lanes.pace import Pace
from headrace.sched.ledger_story import LaneStory
from tests.sched.memory import KILLED, Killed, Slab, Words

Steps = Iterator[None]
OBJECT = -1
LAYOUTS = {"row": 0, "misfit": 0, "other": 1}
ROOM = {OBJECT: lambda rows: 0, 0: lambda rows: rows, 1: lambda rows: rows + 2}


class Shared:
    """What all workers of a run see."""

    def __init__(self, words: Words, slab: Slab) -> None:
        self.words, self.slab, self.dims = words, slab, slab.dims
        self.blobs: dict[tuple[int, int], int] = {}
        self.bell = 0
        """The trainer's."""
        self.behaviour: dict[int, str] = {}
        """Of samples: "row" or "other" (two layouts), "object", "raises", "kills once", "kills".

        Some cannot be written: "misfit" not as the row that it looks like, "unsendable" and "too large" not at all.
        """
        self.collate = False
        self.whole = False
        self.killed_by: dict[int, int] = {}
        self.now = 1
        """What the clocks show."""
        self.chance: random.Random | None = None
        """Where paces are random."""
        self.is_alive: Callable[[int], bool] = lambda _: True
        self.collate_deaths: dict[tuple[int, ...], int] = {}
        """Batches whose collation takes its worker down so many times more."""


class SimPace(Pace):
    """Of a lane that always takes as many tickets; at random paces, as many as chance has it."""

    def __init__(self, chunk: int, chance: random.Random | None) -> None:
        super().__init__(TakeRule.CHUNKS, 1)
        self.chunk, self.chance = chunk, chance

    def size(self) -> TakeSize:
        chance = self.chance
        if chance is None:
            return TakeSize(TakeRule.CHUNKS, self.chunk, least=self.chunk)
        chunk, share, least, whole = (chance.randint(low, 8) for low in (0, 1, 0, 0))
        return TakeSize(chance.choice(list(TakeRule)), chunk, share, least, whole)

    def took(self, end: int) -> int:
        """Nanoseconds that the tickets up to ``end`` are said to have taken."""
        if self.chance is None:
            return 1 + 1000 * (end % 3)
        return self.chance.choice([0, 1, 1000, 6_000_000, 90_000_000])


class SimLane:
    """Does what the lane's machine says, a step at a time; ``fuse`` kills it on the way."""

    def __init__(self, shared: Shared, number: int, chunk: int) -> None:
        self.shared, self.words, self.dims, self.slab = shared, shared.words, shared.dims, shared.slab
        self.number, self.pace = number, SimPace(chunk, shared.chance)
        self.ledger = shared.words.lane(shared.dims, number)
        self.facts = self.ledger.facts
        # Told past the fuse: at which stores a lane is killed does not depend on it.
        story = LaneStory(shared.words.buffer, shared.dims, number, lambda: shared.now)
        self.machine = LaneMachine(self.ledger, self.pace, alone=False, patience=0, story=story)
        self.at = shared.dims.lane(number)
        self.alive, self.asleep, self.bell = True, False, 0
        self.to_report = False
        """It is about to wake the trainer."""
        self.uses: dict[int, int] = {}
        self.torn = False
        """It was killed inside a critical section."""
        self._begun = False
        self._tickets: tuple[Tickets, int] | None = None
        self._samples: deque[tuple[int, int, str]] = deque()  # position, index, kind: made and not placed yet
        self._run_left, self._layout = 0, OBJECT  # of those, the ones to be written
        self._odd = 0  # so many of the first ones did not fit their rows
        self._batch: tuple[int, ...] = ()  # made alone
        self._steps = self._run()

    @property
    def can_move(self) -> bool:
        return self.alive and (not self.asleep or self.bell > 0)

    def step(self) -> None:
        if self.asleep:
            assert self.bell
            self.asleep, self.bell = False, 0
        try:
            next(self._steps)
        except KILLED:
            self.alive = False

    def holds(self, group: int, position: int) -> bool:
        """Whether it took this ticket (of this use of the group) and did not come back yet."""
        if self._tickets is None or self._tickets[1] != self.words[self.dims.group(group) + W.G_SERIAL]:
            return False
        tickets, end = self._tickets[0], self.words[self.at + W.L_END]  # the rest may have been taken away
        return tickets.group == group and tickets.start <= position < min(tickets.end, end)

    @property
    def is_making(self) -> bool:
        """Whether it has begun a sample (of whatever epoch) and not ended it."""
        at, words = self.at, self.words
        return self._begun and words[at + W.L_POS] < words[at + W.L_END]

    def kill(self, fuse: int) -> None:
        """It takes one more step, of which only ``fuse`` stores happen."""
        if self.can_move:
            self.words.fuse = fuse
            self.step()
            self.words.fuse, self.torn = None, not self.alive
        self.alive = self.to_report = False
        self._steps = iter(())

    def _run(self) -> Steps:
        doing = {
            RingTrainer: self._ring,
            Sleep: self._sleep,
            Make: self._make,
            MakeWhole: self._make_whole,
            PlaceSamples: self._place,
            WriteRows: self._write,
            CollateSlot: self._collate,
            CollateWhole: self._collate_whole,
        }
        while True:
            self.machine.alone = self.shared.whole
            again, tickets, collating = (
                self.words[W.RETRIES] > 0,
                self.machine.tickets,
                self.words[self.at + W.L_COLLATE],
            )
            command = self.machine.next()
            if self.machine.tickets is not tickets:
                self._took(self.machine.tickets, again=again)
            elif not self.words[self.at + W.L_GROUP]:
                self._tickets, self._begun = None, False
            now = self.words[self.at + W.L_COLLATE]
            if now != collating and now and not isinstance(command, CollateWhole):
                self._note_use(now - 1)
            if isinstance(command, WriteRows) and self.machine.tickets.slot < 0:
                self._note_use(command.rows.slot)
            self.to_report = isinstance(command, RingTrainer)
            yield
            if command is not GO_ON:
                yield from doing[type(command)](command)

    def _took(self, tickets: Tickets, *, again: bool) -> None:
        self._tickets, self._begun = (tickets, self.words[self.dims.group(tickets.group) + W.G_SERIAL]), False
        if tickets.slot >= 0:
            self._note_use(tickets.slot)
        if not again:
            self._check_place()

    def _note_use(self, slot: int) -> None:
        self.uses[slot] = self.slab.uses[slot]

    def _check_place(self) -> None:
        roles = [self.words[self.dims.lane(lane) + W.L_ROLE] for lane in range(self.dims.lanes)]
        assert roles[self.number] == W.WORKING
        at_work = [lane for lane, role in enumerate(roles) if role == W.WORKING and self.shared.is_alive(lane)]
        assert len(at_work) <= self.words[W.LIMIT], "too many take tickets"

    def _ring(self, _: object) -> Steps:
        self.shared.bell += 1
        self.to_report = False
        yield

    def _sleep(self, _: object) -> Steps:
        self.asleep = True
        yield

    def _indices(self, group: int) -> list[int]:
        """Read without the lock, so of another epoch perhaps."""
        return self.facts.indices(group, self.facts.group(group).count)

    def _sample(self, index: int) -> str:
        behaviour = self.shared.behaviour.get(index, "row")
        if behaviour.startswith("kills"):
            before = self.shared.killed_by.get(index, 0)
            self.shared.killed_by[index] = before + 1
            if behaviour == "kills" or before == 0:
                raise Killed
            behaviour = "row"
        return "object" if self.shared.collate and behaviour in LAYOUTS else behaviour

    def _made_one(self, indices: list[int], position: int) -> tuple[int, str]:
        index = indices[position] if position < len(indices) else -1
        return index, "raises" if index < 0 else self._sample(index)

    def _filing(self, group: int, index: int) -> Callable[[], int]:
        def file() -> int:
            used = self.facts.blob_used(group)
            self.facts.use_blob(group, used + 1)
            self.shared.blobs[group, used] = index
            return used

        return file

    def _make(self, command: Make) -> Steps:
        group, start, end, _ = command.tickets
        indices = self._indices(group)
        self._samples, self._odd = deque(), 0
        failed = []
        for position in range(start, end):
            self._begun = True
            if not self.machine.begin(position, self.shared.now):
                end = position
                break
            yield
            index, kind = self._made_one(indices, position)
            if kind == "raises":
                failed.append((position, self._filing(group, index)))
            else:
                self._samples.append((position, index, kind))
        wanted = self.machine.made(end - start, failed, self.pace.took(end), 1)
        while self._samples and self._samples[-1][0] >= wanted:
            self._samples.pop()
        yield

    def _make_whole(self, command: MakeWhole) -> Steps:
        group, _, end, _ = command.tickets
        indices = self._indices(group)
        made, failed = [], []
        self.machine.expect(self.shared.now)
        for position in range(end):
            self._begun = True
            self.machine.begin(position, self.shared.now)
            yield
            index, kind = self._made_one(indices, position)
            if kind == "raises":
                failed.append((position, self._filing(group, index)))
            else:
                made.append(position)
        self._batch = tuple(indices[position] for position in made)
        self.machine.made_whole(made, failed, 1, collate=True)
        yield

    def _place(self, _: object) -> Steps:
        position, index, kind = self._samples[0]
        if kind == "unsendable":
            self._samples.popleft()
            self.machine.refuse(position, self._filing(self.machine.tickets.group, index))
            return
        count, self._layout = 1, OBJECT if self._odd else LAYOUTS.get(kind, OBJECT)
        if self._layout != OBJECT:
            for at, (other, _, look) in enumerate(islice(self._samples, 1, None), 1):
                if other != position + at or LAYOUTS.get(look, OBJECT) != self._layout:
                    break
                count += 1
        self._run_left = count
        self.machine.place(position, count, self._layout, ROOM[self._layout])
        yield

    def _write(self, command: WriteRows) -> Steps:
        rows, use = command.rows, self.uses[command.rows.slot]
        run, objects = list(islice(self._samples, rows.count)), None
        if self._layout != OBJECT and rows.layout == self._layout:
            if any(kind == "misfit" for _, _, kind in run):
                self._odd = self._run_left
                self.machine.unwritten()
                return
            for row, (_, index, _) in enumerate(run, rows.first):
                self.slab.write(rows.slot, use, row, index)
            yield
        else:
            objects = []
            for position, index, kind in run:
                if kind == "too large":
                    self._samples.popleft()
                    self.machine.unwritten()
                    self.machine.refuse(position, self._filing(self.machine.tickets.group, index))
                    return
                objects.append(self.ledger.reserve(rows.slot, 1))
                yield
                self.slab.write(rows.slot, use, objects[-1], index)
                yield
        for _ in run:
            self._samples.popleft()
        self._run_left, self._odd = self._run_left - len(run), max(0, self._odd - len(run))
        self.machine.wrote(objects, 0)

    def _collate_fn(self, batch: tuple[int, ...]) -> None:
        left = self.shared.collate_deaths.get(batch, 0)
        if left:
            self.shared.collate_deaths[batch] = left - 1
            raise Killed

    def _collate(self, command: CollateSlot) -> Steps:
        slot, samples = command.slot, []
        for row in self.facts.present(slot):
            at = self.facts.object_at(slot, row)
            samples.append(self.slab.cells.get((slot, row if at < 0 else at)))
        yield
        yield from self._collated(slot, tuple(samples))

    def _collate_whole(self, command: CollateWhole) -> Steps:
        yield from self._collated(command.slot, self._batch)

    def _collated(self, slot: int, batch: tuple[int, ...]) -> Steps:
        self._collate_fn(batch)
        offset = self.ledger.reserve(slot, 1)
        yield
        self.slab.write(slot, self.uses[slot], offset, batch)
        yield
        self.machine.collated(offset, 1, failed=False)
