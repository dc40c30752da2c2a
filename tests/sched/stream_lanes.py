"""Workers that make batches of streams of their own, a step at a time."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from headrace.sched.epochs.streams import StreamBatch
from headrace.sched.lanes.lanemachine import RING, SLEEP
from headrace.sched.lanes.streamlane import MakeNext, StreamLaneMachine
from headrace.sched.ledger_layout import Dims
from headrace.sched.resume import Note, Resume
from tests.sched.memory import KILLED, Slab, Words

LANES = 3
DIMS = Dims(lanes=LANES, groups=1, slots=40, rows=1)


@dataclass(frozen=True)
class StreamPlan:
    """One epoch: how many batches each stream has."""

    lengths: tuple[int, ...]
    ahead: int = 2
    in_order: bool = True
    turn: int = 0
    began: tuple[int, ...] = (0,) * LANES
    """What each stream starts from, in a first epoch: the batches before were delivered in another run."""
    behaviour: dict[tuple[int, int], str] = field(default_factory=dict)
    """Of a batch of a stream: ``raises``, is ``skipped``, or is ``refused`` once by each worker that comes to it."""
    short: frozenset[int] = frozenset()
    """Streams whose end is seen with their last batch."""
    noted: bool = True
    """Lanes leave a note beside each batch."""
    tight: bool = False
    """There is memory for no more batches than must be."""


def note(epoch: int, lane: int, batches: int) -> Note:
    """What a lane leaves after so many."""
    return Note({"at": batches}, b"%d began" % epoch, b"%d %d %d" % (epoch, lane, batches))


def replaced(resume: Resume, left: Note) -> Resume:
    """The same, with what this note says."""
    return Resume(resume.batches, left.state, resume.ended, left.began, left.random, resume.generation)


class Around(Protocol):
    """What a lane is in."""

    words: Words
    slab: Slab
    plans: list[StreamPlan]
    bell: int
    """The trainer's."""
    bells: list[int]

    @property
    def epoch(self) -> int:
        """The one under way."""


class StreamLane:
    """Does what its machine says."""

    def __init__(self, world: Around, number: int, resume: Resume) -> None:
        self.world, self.words, self.number = world, world.words, number
        self.machine = StreamLaneMachine(world.words, DIMS, number, resume=resume)
        self.alive, self.asleep, self._ringing = True, False, False
        self._position = 0
        self._refused: set[tuple[int, int]] = set()
        self._steps = self._run()

    @property
    def can_move(self) -> bool:
        return self.alive and (not self.asleep or self.world.bells[self.number] > 0)

    @property
    def to_report(self) -> bool:
        return self.alive and (self.machine.rings or self._ringing)

    def step(self) -> None:
        if self.asleep:
            self.asleep, self.world.bells[self.number] = False, 0
        try:
            next(self._steps)
        except KILLED:
            self.alive = False

    def kill(self, fuse: int) -> None:
        if self.can_move:
            self.words.fuse = fuse
            self.step()
            self.words.fuse = None
        self.alive = False

    def _run(self) -> Iterator[None]:
        while True:
            command, epoch = self.machine.next(), self.world.epoch
            use = self.world.slab.uses.get(command.slot) if isinstance(command, MakeNext) else None
            self._ringing = command is RING
            yield
            if command is RING:
                self.world.bell += 1
                self._ringing = False
            elif command is SLEEP:
                self.asleep = True
            else:
                assert isinstance(command, MakeNext)
                if self.machine.begins:
                    self._position = self._begun(epoch)
                    self.machine.began()
                yield from self._make(command.slot, use, epoch)
            yield

    def _begun(self, epoch: int) -> int:
        plan, resume = self.world.plans[epoch], self.machine.start
        if resume is None:
            return 0
        assert not resume.ended or resume.batches == plan.lengths[self.number], "it has not ended there"
        if plan.noted and resume.batches > plan.began[self.number]:
            assert resume == replaced(resume, note(epoch, self.number, resume.batches)), "another one's note"
        return resume.batches

    def _make(self, slot: int, use: int | None, epoch: int) -> Iterator[None]:
        slab, plan, position = self.world.slab, self.world.plans[epoch], self._position
        what = plan.behaviour.get((self.number, position), "batch")
        ends, refuses = position == plan.lengths[self.number], what == "refused" and (epoch, position)
        if refuses in self._refused:
            refuses, what = False, "batch"
        after = position if ends else position + 1
        slab.write(slot, use, 0, (epoch, self.number, position, what))
        slab.write(slot, use, 1, note(epoch, self.number, after))
        yield
        left = 1 if plan.noted else -1
        if ends:
            self.machine.ended(left)
            return
        last = not refuses and after == plan.lengths[self.number] and self.number in plan.short
        if refuses:
            self._refused.add(refuses)
        else:
            self._position = after
        self.machine.made(StreamBatch(position + 10, 0, 1, what != "batch", left, last))
