"""A worker as a sequence of steps: one critical section, or one thing done outside it, per step."""

from collections.abc import Callable, Iterator
from typing import Any

from headrace.sched import words as W
from headrace.sched.moves import Appetite, Eats, Found, Next, Rows, Tickets, Written
from tests.sched.memory import KILLED, Killed, Slab, Words

Steps = Iterator[None]
OBJECT = -1
ROOM = {OBJECT: lambda rows: 0, 0: lambda rows: rows, 1: lambda rows: rows + 2}


class Shared:
    """What all workers of a run see."""

    def __init__(self, words: Words, slab: Slab) -> None:
        self.words, self.slab, self.dims = words, slab, slab.dims
        self.blobs: dict[tuple[int, int], int] = {}
        self.bell = 0
        """The consumer's."""
        self.behaviour: dict[int, str] = {}
        """Of samples: "row" or "other" (two layouts), "object", "raises", "kills once", "kills"."""
        self.collate = False
        self.whole = False
        self.killed_by: dict[int, int] = {}
        self.now = 1
        """What the clocks show."""
        self.is_alive: Callable[[int], bool] = lambda _: True
        self.collate_deaths: dict[tuple[int, ...], int] = {}
        """Batches whose collation takes its worker down so many times more."""


class SimLane:
    """Mirrors the engine's worker loop; ``step`` advances it, ``fuse`` kills it on the way."""

    def __init__(self, shared: Shared, number: int, chunk: int) -> None:
        self.shared, self.words, self.dims, self.slab = shared, shared.words, shared.dims, shared.slab
        self.number, self.chunk = number, chunk
        self.ledger = shared.words.lane(shared.dims, number)
        self.at = shared.dims.lane(number)
        self.alive, self.asleep, self.bell = True, False, 0
        self.to_report = False
        """It is about to wake the consumer."""
        self.uses: dict[int, int] = {}
        self.torn = False
        """It was killed inside a critical section."""
        self._begun = False
        self._tickets: tuple[Tickets, int] | None = None
        self._written: Written | None = None
        self._made: tuple[int, int, int] | None = None
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
        tickets = self._tickets[0]
        return tickets.group == group and tickets.start <= position < tickets.end

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
        appetite = Eats.CHUNKS
        while True:
            again, written, made = self.words[W.RETRIES] > 0, self._written, self._made
            self._written = None
            what, group, start, end, slot, wake = self.ledger.visit(written, made, Appetite(appetite, self.chunk))
            if what != Next.COLLATE or not start:
                self._tickets, self._begun, self._made = None, False, None
            tickets = Tickets(group, start, end, slot)
            if what == Next.TICKETS and not again:
                self._check_place()
            self._note(tickets if what == Next.TICKETS else group if what == Next.COLLATE else None)
            yield from self._report(wake)
            if what == Next.ASLEEP:
                yield from self._sleep()
            elif what == Next.COLLATE:
                yield from self._collate(group)
            elif self._is_whole(tickets):
                yield from self._make_whole(tickets)
            else:
                yield from self._make(tickets)

    def _check_place(self) -> None:
        roles = [self.words[self.dims.lane(lane) + W.L_ROLE] for lane in range(self.dims.lanes)]
        assert roles[self.number] == W.WORKING
        at_work = [lane for lane, role in enumerate(roles) if role == W.WORKING and self.shared.is_alive(lane)]
        assert len(at_work) <= self.words[W.LIMIT], "too many take tickets"

    def _note(self, item: Tickets | int | None) -> None:
        slot = -1 if item is None else item
        if isinstance(item, Tickets):
            self._tickets = item, self.words[self.dims.group(item.group) + W.G_SERIAL]
            slot = item.slot
        if slot >= 0:
            self.uses[slot] = self.slab.uses[slot]

    def _report(self, wake: bool) -> Steps:
        self.to_report = wake
        yield
        if wake:
            self.shared.bell += 1
            self.to_report = False
            yield

    def _sleep(self) -> Steps:
        self.asleep = True
        yield

    def _indices(self, group: int) -> list[int]:
        """Read without the lock, so of another epoch perhaps."""
        first = self.dims.index(group)
        return self.words[first : first + self.words[self.dims.group(group) + W.G_COUNT]].tolist()

    def _sample(self, index: int) -> str:
        behaviour = self.shared.behaviour.get(index, "row")
        if behaviour.startswith("kills"):
            before = self.shared.killed_by.get(index, 0)
            self.shared.killed_by[index] = before + 1
            if behaviour == "kills" or before == 0:
                raise Killed
            behaviour = "row"
        return "object" if self.shared.collate and behaviour != "raises" else behaviour

    def _make(self, tickets: Tickets) -> Steps:
        group, start, end, slot = tickets
        indices = self._indices(group)
        samples: list[tuple[int, str]] = []
        first = start
        for position in range(start, end):
            self._begun = True
            self.ledger.begin(position, self.shared.now)
            yield
            index = indices[position] if position < len(indices) else -1
            kind = "raises" if index < 0 else self._sample(index)
            if kind == "raises":
                yield from self._place(group, slot, first, samples)
                samples, first = [], position + 1
                yield from self._fail(group, position, slot, index)
            else:
                samples.append((index, kind))
        self._made = (end - start, 1 + end % 3, end % 3)
        self.ledger.end(end)
        yield
        yield from self._place(group, slot, first, samples)

    def _is_whole(self, tickets: Tickets) -> bool:
        count = self.words[self.dims.group(tickets.group) + W.G_COUNT]
        return self.shared.whole and tickets.slot >= 0 and tickets.end - tickets.start == count

    def _make_whole(self, tickets: Tickets) -> Steps:
        group, slot = tickets.group, tickets.slot
        indices = self._indices(group)
        made, failed = [], []
        for position in range(tickets.end):
            self._begun = True
            self.ledger.begin(position, self.shared.now)
            yield
            index = indices[position] if position < len(indices) else -1
            (failed if index < 0 or self._sample(index) == "raises" else made).append(position)
        self.ledger.end(tickets.end)
        yield
        for position in failed:
            yield from self._fail(group, position, slot, indices[position] if position < len(indices) else -1)
        if made:
            self.ledger.collate_alone(slot)
            yield
            batch = tuple(indices[position] for position in made)
            self._collate_fn(batch)
            offset = self.ledger.reserve(slot, 1)
            yield
            self.slab.write(slot, self.uses[slot], offset, batch)
            yield
            yield from self._report(self.ledger.whole(slot, group, made, (offset, 1, False)))

    def _fail(self, group: int, position: int, slot: int, index: int) -> Steps:
        if self.ledger.stale:
            yield
            return
        offset = self.ledger.write_blob(group, 1)
        self.shared.blobs[group, offset] = index
        outcome = self.ledger.fail(group << 32 | position, offset, slot)
        self._note(outcome.collate if outcome.collate >= 0 else None)
        yield from self._report(outcome.wake)
        if outcome.collate >= 0:
            yield from self._collate(outcome.collate)

    def _place(self, group: int, slot: int, start: int, samples: list[tuple[int, str]]) -> Steps:
        while samples:
            kind, count = samples[0][1], 1
            while kind != "object" and count < len(samples) and samples[count][1] == kind:
                count += 1
            run = [index for index, _ in samples[:count]]
            yield from self._write(group, slot, start, run, {"row": 0, "other": 1, "object": OBJECT}[kind])
            start, samples = start + count, samples[count:]

    def _write(self, group: int, slot: int, start: int, run: list[int], layout: int) -> Steps:
        while run:
            rows = yield from self._claim(slot, start, len(run), layout)
            if rows is None:
                return
            use, objects = self.uses[rows.slot], None
            if layout != OBJECT and rows.layout == layout:
                for row, index in enumerate(run[: rows.count], rows.first):
                    self.slab.write(rows.slot, use, row, index)
                yield
            else:
                objects = []
                for index in run[: rows.count]:
                    objects.append(self.ledger.reserve(rows.slot, 1))
                    yield
                    self.slab.write(rows.slot, use, objects[-1], index)
                    yield
            yield from self._report_written()
            self._written = Written(rows.slot, rows.first, rows.count, group, start, objects)
            start, run = start + rows.count, run[rows.count :]

    def _report_written(self) -> Steps:
        if self._written is None:
            return
        outcome = self.ledger.finish(self._written)
        self._written = None
        self._note(outcome.collate if outcome.collate >= 0 else None)
        yield from self._report(outcome.wake)
        if outcome.collate >= 0:
            yield from self._collate(outcome.collate)

    def _claim(self, slot: int, position: int, count: int, layout: int) -> Any:
        room: Callable[[int], int] = ROOM[layout]
        if slot >= 0:
            decided = self.ledger.shape(slot, layout, room)
            yield
            return Rows(slot, position, count, decided)
        yield from self._report_written()
        while True:
            found, rows = self.ledger.claim(count, layout, room)
            yield
            if found == Found.ROWS:
                self.uses[rows.slot] = self.slab.uses[rows.slot]
                return rows
            if found == Found.GIVEN_UP:
                return None
            yield from self._sleep()

    def _collate_fn(self, batch: tuple[int, ...]) -> None:
        left = self.shared.collate_deaths.get(batch, 0)
        if left:
            self.shared.collate_deaths[batch] = left - 1
            raise Killed

    def _collate(self, slot: int) -> Steps:
        words, states = self.words, self.dims.row_state(slot)
        use, samples = self.uses[slot], []
        for row in self.ledger.present(slot):
            state = words[states + row]
            cell = row if state & 255 == W.IN_PLACE else state >> 8
            samples.append(self.slab.cells.get((slot, cell)))
        yield
        self._collate_fn(tuple(samples))
        offset = self.ledger.reserve(slot, 1)
        yield
        self.slab.write(slot, use, offset, tuple(samples))
        yield
        yield from self._report(self.ledger.ready(slot, offset, 1, failed=False))
