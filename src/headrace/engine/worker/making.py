"""Samples of a map-style dataset, from ticket to row."""

import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any

from headrace.core.errors import HeadraceError
from headrace.engine.fetcher import wire
from headrace.engine.memory import codec
from headrace.engine.memory.layout import Layout
from headrace.engine.worker import failure, seeding
from headrace.engine.worker.brought import Brought
from headrace.engine.worker.collator import Collator
from headrace.engine.worker.desk import Desk
from headrace.engine.worker.job import Job
from headrace.engine.worker.observer import Observer
from headrace.engine.worker.staged import Staged
from headrace.plan.cost import bin_of
from headrace.sched.moves import Appetite, Eats, Found, Next, Room, Rows, Tickets, Written
from headrace.sched.words import PICKLED, PLANNED

CHUNK_SECONDS = 0.0005
"""Cheap samples are taken several at a time, for about this long: claiming then costs a fraction of making."""
EVEN_SECONDS, EVEN = 0.004, 4.0
"""And for this long while none took so many times what they take on average: then nothing waits behind a slow one."""
FORGETS = 0.98
"""By this factor a chunk's worst sample counts less with every further chunk."""
WHOLE_SECONDS = 0.02
"""A batch for a user's collate_fn that takes no longer than this is made by one worker, so samples need not travel."""
EVERYTHING = Appetite(Eats.EVERYTHING)


class _Refused(Exception):
    """The worker could not start; the reason is filed instead."""


class SampleMaker:
    """The loop of one worker: take tickets, make samples, put them where they belong."""

    def __init__(
        self, job: Job, desk: Desk, observer: Observer, refusal: bytes | None, staged: Staged | None = None
    ) -> None:
        """``refusal``: what every ticket fails with because the worker could not start properly.

        ``staged``: what makes samples where there is a cache.
        """
        task = job.task
        self.desk, self.ledger, self.words = desk, desk.ledger, desk.words
        self.dataset, self.collator = task.dataset, Collator(job, desk, observer)
        self.observer, self.stream = observer, observer.stream
        self._brought: Brought | Staged = staged or Brought(task.dataset, task.arena, observer)
        self._reads: Callable[[memoryview, int], Sequence[Any]] = wire.read_places
        if staged is not None:
            staged.observer, self._reads = observer, staged.reads
        self._get = observer.samples(self._brought)
        self.batched, self.standard, self.seed_samples = (
            task.batched,
            task.standard_collate,
            task.seed_samples,
        )
        self.where = f"in DataLoader worker process {job.lane}"
        self.refusal = refusal
        singly = not task.batched or task.arena is not None or staged is not None
        bulk = None if singly else getattr(self.dataset, "__getitems__", None)
        self._bulk = None if bulk is None else observer.bulk(bulk)
        self._made: tuple[int, int, int] | None = None  # samples, nanoseconds each, bin: to be told to the ledger
        self._cost = 0.0  # seconds a sample takes, smoothed; 0 while unknown
        self._worst = 0.0  # and the worst of them, which is forgotten slowly
        self._share = max(1, min(job.lanes, 4))
        self._layout: tuple[int, Layout] | None = None
        self._indices: tuple[int, int, list[Any]] = (-1, -1, [])  # group, its serial, its indices
        self._places: Sequence[Any] = []  # of the rows for them, where some were brought; plans, where there is a cache
        self._written: Written | None = None
        self._size = 0  # bytes of the sample last written

    def run(self) -> None:
        """Until the stop flag is set."""
        ledger, desk = self.ledger, self.desk
        while True:
            written, made = self._written, self._made
            what, group, start, end, slot, wake = ledger.visit(written, made, self._appetite())
            self._written = None
            if wake:
                desk.consumer.ring()
            if what != Next.COLLATE or not start:
                self._made = None
            if what == Next.STOP:
                return
            if what == Next.COLLATE:
                self._collate(group)
            elif what == Next.ASLEEP:
                self.observer.settle()
                desk.bell.wait()
            elif self._is_whole(tickets := Tickets(group, start, end, slot)):
                self._make_whole(tickets)
            else:
                self._make(tickets)

    def _appetite(self) -> Appetite:
        """How many tickets to take at once."""
        if self._bulk is not None or not self.batched:
            return EVERYTHING
        if self._cost == 0.0:
            return Appetite(Eats.CHUNKS if self.standard else Eats.WHOLE)
        chunk = int(CHUNK_SECONDS / self._cost)
        if chunk > 1 and self._worst < EVEN * self._cost:
            chunk = int(EVEN_SECONDS / self._cost)
        if self.standard:
            return Appetite(Eats.CHUNKS, chunk, self._share)
        return Appetite(Eats.WHOLE, chunk, self._share, int(WHOLE_SECONDS / self._cost))

    def _is_whole(self, tickets: Tickets) -> bool:
        count = self.ledger.group(tickets.group).count
        complete = tickets.slot >= 0 and tickets.end - tickets.start == count
        return complete and (self._bulk is not None or not self.standard or self.ledger.is_local)

    def _index_list(self, group: int) -> list[Any]:
        """The indices of a group; unpacked once."""
        memory, (count, kind, serial, _) = self.desk.memory, self.ledger.group(group)
        if self._indices[:2] != (group, serial):
            blob, used = memory.blob(group), 0
            if kind & PICKLED:
                size = int.from_bytes(memory.bytes[blob : blob + 8], "little")
                found = pickle.loads(memory.bytes[blob + 8 : blob + 8 + size])  # noqa: S301  (from our own parent)
                used = -(-(8 + size) // 64) * 64
            else:
                first = memory.dims.index(group)
                found = self.words[first : first + count].tolist()
            self._places = []
            if kind & PLANNED:
                self._places = self._reads(memory.bytes[blob + used :], count)
            self._indices = (group, serial, found)
        return self._indices[2]

    def _make(self, tickets: Tickets) -> None:
        """Make samples one by one and place them."""
        group, start, end, slot = tickets
        indices, get, ledger = self._index_list(group), self._get, self.ledger
        seed, epoch = ledger.seed, ledger.group(group).epoch
        if self.stream is not None:
            self.stream.run(ledger.first_run + epoch, time.monotonic_ns())
        samples: list[Any] = []
        first = start  # of the samples in hand, which are consecutive
        clock, begin = time.monotonic_ns, ledger.begin
        began = last = clock()
        worst = 0
        for position in range(start, end):
            now = clock()
            begin(position, now)
            worst, last = max(worst, now - last), now
            if self.stream is not None:
                self.observer.repeated = ledger.is_repeated(group, position)
            try:
                if self.refusal is not None:
                    raise _Refused
                if self.seed_samples:
                    seeding.seed_sample(seed, epoch, indices[position])
                index = indices[position]
                self._brought.place = self._places[position] if self._places else None
                samples.append(get(index) if self._bulk is None else self._bulk([index])[0])
            except failure.LEAVING:
                raise
            except BaseException as error:  # noqa: BLE001  (the user's dataset; raised again in the training process)
                self._place(group, slot, first, samples)
                samples, first = [], position + 1
                self._fail(group, position, slot, self.refusal or failure.pack(error, self.where))
        now = clock()
        self._worst = max(FORGETS * self._worst, max(worst, now - last) / 1e9)
        self._observe(now - began, end - start)
        ledger.end(end)
        self._place(group, slot, first, samples)

    def _make_whole(self, tickets: Tickets) -> None:
        """Make a batch alone: in bulk, for a user's collate_fn, or a single sample that is a batch."""
        ledger, group, count, slot = self.ledger, tickets.group, tickets.end, tickets.slot
        indices = self._index_list(group)
        began, made = time.monotonic_ns(), []
        if self.stream is not None:
            self.stream.run(ledger.first_run + ledger.group(group).epoch, began)
        # In bulk, one call makes them all: the last one counts as begun when the others should be done.
        ledger.expect(began + int(self._cost * 1e9) * (count - 1))
        failed: list[tuple[int, bytes]] = []
        samples: Any = []
        if self._bulk is not None:
            try:
                samples = self._attempt(self._bulk, indices, group, indices[0])
                made = list(range(count))
            except failure.LEAVING:
                raise
            except BaseException as error:  # noqa: BLE001  (the user's dataset; raised again in the training process)
                packed = failure.pack(error, self.where)
                failed = [(position, packed) for position in range(count)]
        else:
            for position in range(count):
                ledger.begin(position, time.monotonic_ns())
                try:
                    index = indices[position]
                    self._brought.place = self._places[position] if self._places else None
                    samples.append(self._attempt(self._get, index, group, index))
                    made.append(position)
                except failure.LEAVING:
                    raise
                except BaseException as error:  # noqa: BLE001  (as above)
                    failed.append((position, failure.pack(error, self.where)))
        self._observe(time.monotonic_ns() - began, count)
        ledger.end(count)
        for position, packed in failed:
            self._fail(group, position, slot, self.refusal or packed)
        if not made:
            return
        if self._bulk is not None and self.standard and len(samples) == count:
            self._place(group, slot, 0, samples)
            return
        ledger.collate_alone(slot)
        if self.stream is not None:
            self.stream.rows(ledger.batch(slot), 0, len(made), time.monotonic_ns(), 0)
        result = self.collator.collate(slot, samples, indices[made[0]])
        self._size = result[1] // len(made)
        self.desk.report(self.ledger.whole(slot, group, made, result))

    def _attempt(self, get: Any, what: Any, group: int, seed: Any) -> Any:
        if self.refusal is not None:
            raise _Refused
        if self.seed_samples:
            seeding.seed_sample(self.ledger.seed, self.ledger.group(group).epoch, seed)
        return get(what)

    def _collate(self, slot: int) -> None:
        """Collate a slot whose samples are all there."""
        ledger = self.ledger
        if ledger.stale:
            ledger.drop_collation()
            return
        present, seed = ledger.present(slot), None
        if present:
            group, position = ledger.ticket(slot, present[0])
            indices = self._index_list(group)
            seed = indices[position] if position < len(indices) else None  # given up meanwhile
        empty = not present and ledger.expected(slot) > 0  # all failed: there is nothing for collate_fn to see

        def samples() -> list[Any]:
            return [self.desk.read_sample(slot, row) for row in present]

        offset, size, bad = self.collator.collate(slot, None if empty else samples, seed)
        self.desk.report(self.ledger.ready(slot, offset, size, failed=bad))

    def _observe(self, elapsed: int, samples: int) -> None:
        cost = elapsed // samples
        self._made = samples, cost, bin_of(cost)
        self.observer.tell(samples, self._size)
        seconds = cost / 1e9
        self._cost = seconds if self._cost == 0.0 else 0.8 * self._cost + 0.2 * seconds

    def _fail(self, group: int, position: int, slot: int, packed: bytes) -> None:
        """File an error under its ticket."""
        ledger, desk = self.ledger, self.desk
        packed = failure.within(packed, desk.error_room(group))
        with desk.lock:
            if ledger.stale:
                return
            packed = failure.within(packed, desk.error_room(group))  # others may have filed theirs meanwhile
            outcome = ledger.fail(group << 32 | position, desk.file_error(group, packed), slot)
        self.desk.report(outcome.wake)
        if outcome.collate >= 0:
            self._collate(outcome.collate)

    def _place(self, group: int, slot: int, start: int, samples: Sequence[Any]) -> None:
        """Samples of consecutive positions: those of one layout go into rows together, the others as objects."""
        while samples:
            count = len(samples)
            columns = self._layout[1].columns(samples) if self._layout is not None else None
            if columns is None and self.standard:
                count, columns = self._run(samples)
            if columns is None:
                count = 1
            try:
                if columns is not None:
                    self._write_run(group, slot, start, columns)
            except Exception:  # noqa: BLE001  (a number too large for its column, say: torch will say what is wrong)
                self._give_back(slot)
                columns = None
            if columns is None:
                for position, sample in enumerate(samples[:count], start):
                    self._write_object(group, slot, position, sample)
            start, samples = start + count, samples[count:]

    def _run(self, samples: Sequence[Any]) -> tuple[int, list[Sequence[Any]] | None]:
        """How many samples at the beginning share the first one's layout, and their columns."""
        known = self.desk.layout_of(samples[0])
        if known is None:
            return 1, None
        self._layout, layout = known, known[1]
        count = 1
        while count < len(samples) and layout.columns(samples[count : count + 1]) is not None:
            count += 1
        return count, layout.columns(samples[:count])

    def _write_run(self, group: int, slot: int, start: int, columns: list[Sequence[Any]]) -> None:
        """Samples of the current layout into rows; finishing the last of them is left to the next visit."""
        assert self._layout is not None
        number, layout = self._layout
        while columns[0]:
            rows = self._claim(slot, start, len(columns[0]), number, layout)
            if rows is None:
                return
            if rows.count < len(columns[0]):
                now, columns = [c[: rows.count] for c in columns], [c[rows.count :] for c in columns]
            else:
                now, columns = columns, [()]
            began, objects = 0 if self.stream is None else time.monotonic_ns(), None
            if rows.layout == number:
                self.desk.write_rows(rows, layout, now)
                self._size = layout.row_bytes
            else:
                values = [layout.sample(leaves) for leaves in zip(*now, strict=True)]
                objects = [self.desk.write_object(rows.slot, codec.Encoded(value)) for value in values]
            if began:
                self._record(rows, began)
            self._written_now(rows, group, start, objects)
            start += rows.count

    def _record(self, rows: Rows, began: int) -> None:
        """Samples were written to rows; they are in the trace before anybody can see them."""
        assert self.stream is not None
        self.stream.rows(self.ledger.batch(rows.slot), rows.first, rows.count, began, time.monotonic_ns() - began)

    def _write_object(self, group: int, slot: int, position: int, sample: Any) -> None:
        """A sample without a layout."""
        try:
            encoded = codec.Encoded(sample)
            rows = self._claim(slot, position, 1, -1, None)
            if rows is not None:
                began, self._size = 0 if self.stream is None else time.monotonic_ns(), encoded.size
                offset = self.desk.write_object(rows.slot, encoded)
                if began:
                    self._record(rows, began)
                self._written_now(rows, group, position, [offset])
        except HeadraceError as error:  # it cannot be sent, or does not fit
            self._give_back(slot)
            self._fail(group, position, slot, failure.pack(error, self.where))

    def _give_back(self, slot: int) -> None:
        """Rows claimed for what could not be written; others fill them."""
        if slot < 0 and self._written is None:  # else the rows held are those of samples that did fit
            with self.desk.lock:
                self.ledger.give_back()

    def _written_now(self, rows: Rows, group: int, start: int, objects: list[int] | None) -> None:
        """At most one finished run waits to be reported together with the next visit to the ledger."""
        self._report_written()
        self._written = Written(rows.slot, rows.first, rows.count, group, start, objects)

    def _report_written(self) -> None:
        if self._written is None:
            return
        outcome = self.ledger.finish(self._written)
        self._written = None
        self.desk.report(outcome.wake)
        if outcome.collate >= 0:
            self._collate(outcome.collate)

    def _claim(self, slot: int, position: int, count: int, number: int, layout: Layout | None) -> Rows | None:
        """Rows to write to; waits for a free batch where rows are claimed. None when the epoch was given up."""
        if slot >= 0:
            return Rows(slot, position, count, self.ledger.shape(slot, number, _room(layout)))
        self._report_written()
        while True:
            found, rows = self.ledger.claim(count, number, _room(layout))
            if found == Found.ROWS:
                return rows
            if found == Found.GIVEN_UP:
                return None
            self.desk.bell.wait()


def _room(layout: Layout | None) -> Room:
    return (lambda _: 0) if layout is None else (lambda rows: layout.plan(rows)[1])
