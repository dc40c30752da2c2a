"""Samples of a map-style dataset, from ticket to row: what the lane's machine says is done here."""

import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any

from headrace.engine.members import bulk_of
from headrace.engine.worker import failure
from headrace.engine.worker.collation import Collator
from headrace.engine.worker.maker import Maker
from headrace.engine.worker.memory import WorkerMemory
from headrace.engine.worker.observer import Observer
from headrace.engine.worker.placing import Placer, Run
from headrace.engine.worker.randomness import seeding
from headrace.engine.worker.startup.job import Job
from headrace.sched.epochs.trainer_commands import GO_ON
from headrace.sched.lanes import lanemachine as L
from headrace.sched.lanes.lane_messages import TakeRule
from headrace.sched.lanes.pace import Pace


class _Refused(Exception):
    """The worker could not start; the reason is filed instead."""


class SampleMaker:
    """The loop of one worker: ask the machine, make samples, put them where they belong."""

    def __init__(
        self,
        job: Job,
        memory: WorkerMemory,
        observer: Observer,
        refusal: bytes | None,
        maker: Maker,
    ) -> None:
        """``refusal``: what every ticket fails with because the worker could not start properly."""
        task = job.task
        self._memory, self._facts = memory, memory.facts
        self._observer, self._stream = observer, observer.stream
        self._maker = maker
        maker.watched_by(observer)
        self._get = observer.samples(maker)
        self._standard, self._seed_samples = task.standard_collate, task.seed_samples
        self._where, self._refusal = f"in DataLoader worker process {job.lane}", refusal
        singly = not task.batched or task.making.one_by_one
        bulk = None if singly else bulk_of(task.dataset)
        self._bulk = None if bulk is None else observer.bulk(bulk)
        rule = TakeRule.CHUNKS if task.standard_collate else TakeRule.WHOLE
        if bulk is not None or not task.batched:
            rule = TakeRule.EVERYTHING
        alone = bulk is not None or not task.standard_collate
        self._machine = L.LaneMachine(memory.ledger, Pace(rule, job.lanes), alone=alone, story=memory.story())
        self._placer = Placer(self._machine, memory, self._stream, self._where, standard=task.standard_collate)
        self._collator = Collator(job, memory, observer)
        self._indices: tuple[int, int, list[Any]] = (-1, -1, [])  # group, its serial, its indices
        self._places: Sequence[Any] = []  # the notes about them, where a source wrote some
        self._whole: tuple[Any, list[Any]] = ([], [])  # the samples of a batch made alone, and their indices

    def run(self) -> None:
        """Run until the stop flag is set."""
        doing: dict[type[L.LaneCommand], Callable[[Any], None]] = {
            L.RingTrainer: lambda _: self._memory.trainer.ring(),
            L.Sleep: self._sleep,
            L.Make: self._make,
            L.MakeWhole: self._make_whole,
            L.PlaceSamples: lambda _: self._placer.place(),
            L.WriteRows: self._placer.write,
            L.CollateSlot: self._collate,
            L.CollateWhole: self._collate_whole,
        }
        following = self._machine.next
        while (command := following()) is not L.STOP:
            if command is not GO_ON:
                doing[type(command)](command)

    def _sleep(self, _: L.Sleep) -> None:
        self._observer.settle()
        self._memory.bell.wait()

    def _index_list(self, group: int) -> list[Any]:
        """The indices of a group; unpacked once."""
        memory, drawn = self._memory.reservation, self._facts.group(group)
        # The serial too: the group's number is used again.
        if self._indices[:2] != (group, drawn.serial):
            blob, used = memory.blob(group), 0
            if drawn.is_pickled:
                packed = memory.read_sized(blob)
                found = pickle.loads(packed)  # noqa: S301  (from our own parent)
                used = -(-(8 + len(packed)) // 64) * 64
            else:
                found = self._facts.indices(group, drawn.count)
            self._places = []
            if drawn.is_planned and self._refusal is None:
                self._places = self._maker.reads(memory.bytes[blob + used :], drawn.count)
            self._indices = (group, drawn.serial, found)
        return self._indices[2]

    def _make(self, command: L.Make) -> None:
        machine, facts = self._machine, self._facts
        group, start, end, _ = command.tickets
        indices, get = self._index_list(group), self._get
        seed, epoch = facts.seed, facts.epoch
        if self._stream is not None:
            self._stream.run(facts.first_run + epoch, time.monotonic_ns())
        runs: list[Run] = []
        failed: L.Failures = []
        samples: list[Any] = []
        first = start  # of the samples in hand, which are consecutive
        clock, begin = time.monotonic_ns, machine.begin
        began = last = clock()
        worst = 0
        for position in range(start, end):
            now = clock()
            # Taken away meanwhile, since the one before took long: the rest is another lane's.
            if not begin(position, now):
                end = position
                break
            worst, last = max(worst, now - last), now
            if self._stream is not None:
                self._observer.repeated = facts.is_repeated(group, position)
            try:
                if self._refusal is not None:
                    raise _Refused
                if self._seed_samples:
                    seeding.seed_sample(seed, epoch, indices[position])
                index = indices[position]
                self._maker.place = self._places[position] if self._places else None
                samples.append(get(index) if self._bulk is None else self._bulk([index])[0])
            except failure.LEAVING:
                raise
            except BaseException as error:  # noqa: BLE001  (the user's dataset; raised again in the training process)
                if samples:
                    runs.append((first, samples))
                samples, first = [], position + 1
                failed.append((position, self._filing(group, error)))
        now = clock()
        if samples:
            runs.append((first, samples))
        # One that was begun may have been taken away at that moment: the ledger says where what is ours ends.
        wanted = machine.made(end - start, failed, now - began, max(worst, now - last))
        self._maker.settle()  # no sample is slow for it, nor at fault if the lane dies there
        if wanted < end:
            runs = [(first, samples[: wanted - first]) for first, samples in runs if first < wanted]
        self._placer.take(runs)
        self._observer.tell(end - start, self._placer.size)

    def _filing(self, group: int, error: BaseException) -> Callable[[], int]:
        return self._memory.filing(group, self._refusal or failure.pack(error, self._where))

    def _make_whole(self, command: L.MakeWhole) -> None:
        """Make a batch alone: in bulk, for a user's collate_fn, or a single sample that is a batch."""
        machine = self._machine
        group, _, count, _ = command.tickets
        indices = self._index_list(group)
        began = time.monotonic_ns()
        if self._stream is not None:
            self._stream.run(self._facts.first_run + self._facts.epoch, began)
        machine.expect(began)
        failed: L.Failures = []
        made: list[int] = []
        samples: Any = []
        if self._bulk is not None:
            try:
                samples = self._attempt(self._bulk, indices, group, indices[0])
                made = list(range(count))
            except failure.LEAVING:
                raise
            except BaseException as error:  # noqa: BLE001  (the user's dataset; raised again in the training process)
                filing = self._filing(group, error)
                failed = [(position, filing) for position in range(count)]
        else:
            for position in range(count):
                machine.begin(position, time.monotonic_ns())
                try:
                    index = indices[position]
                    self._maker.place = self._places[position] if self._places else None
                    samples.append(self._attempt(self._get, index, group, index))
                    made.append(position)
                except failure.LEAVING:
                    raise
                except BaseException as error:  # noqa: BLE001  (as above)
                    failed.append((position, self._filing(group, error)))
        self._maker.settle()
        elapsed = time.monotonic_ns() - began
        in_rows = self._bulk is not None and self._standard and len(samples) == count
        if in_rows:
            self._placer.take([(0, samples)])
        elif made:
            self._whole = samples, [indices[position] for position in made]
        self._observer.tell(count, self._placer.size)
        machine.made_whole(made, failed, elapsed, collate=not in_rows)

    def _attempt(self, get: Any, what: Any, group: int, seed: Any) -> Any:
        if self._refusal is not None:
            raise _Refused
        if self._seed_samples:
            seeding.seed_sample(self._facts.seed, self._facts.epoch, seed)
        return get(what)

    def _collate_whole(self, command: L.CollateWhole) -> None:
        """Collate the batch that was made alone."""
        slot, (samples, indices) = command.slot, self._whole
        self._whole, count = ([], []), len(indices)
        if self._stream is not None:
            self._stream.rows(self._facts.number(slot), 0, count, time.monotonic_ns(), 0)
        offset, size, bad = self._collator.collate(slot, samples, indices[0] if count else None, lambda: indices)
        self._placer.size = size // count
        self._machine.collated(offset, size, bad)

    def _collate(self, command: L.CollateSlot) -> None:
        """Collate a slot whose samples are all there."""
        facts, slot = self._facts, command.slot
        present, seed = facts.present(slot), None
        if present:
            group, position = facts.ticket(slot, present[0])
            indices = self._index_list(group)
            seed = indices[position] if position < len(indices) else None  # given up meanwhile
        empty = not present and facts.expected(slot) > 0  # all failed: there is nothing for collate_fn to see

        def samples() -> list[Any]:
            return [self._memory.read_sample(slot, row) for row in present]

        def drawn() -> list[Any]:
            places = [facts.ticket(slot, row) for row in present]
            return [self._index_list(group)[position] for group, position in places]

        self._machine.collated(*self._collator.collate(slot, None if empty else samples, seed, drawn))
