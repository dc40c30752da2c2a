"""The worker processes of a run: started, watched, woken, replaced, ended."""

import os
import select
import threading
import warnings
from collections.abc import Callable, Iterable
from multiprocessing.context import BaseContext

from headrace.core.errors import LoaderClosed
from headrace.core.story import StoryLog
from headrace.engine.consumer.processes.children import Child, await_end, epitaph, kill
from headrace.engine.consumer.processes.recruiter import Recruiter
from headrace.engine.consumer.processes.rollcall import RollCall
from headrace.engine.consumer.processes.section import Section
from headrace.engine.memory.limits import explained
from headrace.engine.memory.lock import Bell, Mutex, new_lock
from headrace.engine.memory.reservation import Reservation
from headrace.engine.worker.job import Task, Wiring
from headrace.engine.worker.signals import held
from headrace.sched import twin
from headrace.sched.consumer import ConsumerLedger
from headrace.sched.gauges import Gauges
from headrace.sched.resume import Resume
from headrace.sched.roster import LaneStates
from headrace.sched.story import Story

GRACE_SECONDS = 1.0
"""How long a worker may go on with the sample it is making once the loader has ended."""


class Pool:
    """Workers over one reservation: ``lanes`` to begin with, more when they are added. Not thread-safe.

    Who starts them is in ``recruiter``: the caller does, until there is a nursery.
    """

    def __init__(
        self, memory: Reservation, lanes: int, context: BaseContext, task: Task, base_seed: int, log: StoryLog
    ) -> None:
        """Starts nothing yet. ``log``: where the story is told, if the memory has room for one."""
        self.story = Story(memory.words, memory.dims, log) if memory.dims.told else None
        self.memory, self.workers = memory, lanes
        with explained("make a lock and a bell for the workers"):
            lock = new_lock(memory)
            try:
                self._wiring = Wiring(memory, lock, Bell())
            except OSError:
                lock.close()
                raise
        self._recruiter = Recruiter(context, task, self._wiring, lanes, base_seed)
        self._bells: list[Bell] = []
        self._children: list[Child | None] = []
        self._roster = LaneStates(memory.words, memory.dims)
        self._roll = RollCall(self._roster)
        self._poll = select.poll()
        self._poll.register(self._wiring.consumer.fd, select.POLLIN)
        self._watched: dict[int, int] = {}
        self._dead: set[int] = set()
        self._section = Section(self._wiring.lock)
        self._owner = os.getpid()
        self.closed = self._dismissed = False
        self._rope = threading.Lock()  # of the consumer's bell: nobody rings what is being closed
        self._roster.open()

    def start(self, resume: Callable[[int], Resume] = lambda _: Resume()) -> None:
        """Start every worker."""
        for lane in range(self.workers):
            self.add(resume(lane))

    def open_nursery(self) -> None:
        """Start whoever starts workers from now on, if there is nobody."""
        self._recruiter.open_nursery([child.watch for child in self._children if child is not None])

    @property
    def lanes(self) -> int:
        """How many there are."""
        return len(self._children)

    def add(self, resume: Resume) -> None:
        """Start one more worker."""
        self._recruiter.make_helpers()
        with self._recruiter.signals_held() as mask:
            lane = self.lanes
            with explained(f"make a bell for worker {lane}"):
                bell = Bell()
            self._roster.add(lane)
            self._bells.append(bell)
            self._children.append(None)
            try:
                self._start(lane, resume, mask)
            except BaseException:
                if self._children[lane] is None:
                    self._children.pop()
                    self._bells.pop().close()
                raise

    def restart(self, lane: int, resume: Resume) -> None:
        """Start a worker in place of one that died. Until that has been done, ``wait`` calls that one dead."""
        self._recruiter.make_helpers()
        with self._recruiter.signals_held() as mask:
            self._start(lane, resume, mask)

    def _start(self, lane: int, resume: Resume, mask: set[int]) -> None:
        nursed = self._recruiter.has_nursery
        with explained(f"start worker {lane}"):
            child = self._recruiter.start(lane, self._bells[lane], resume, mask)
        before, self._children[lane] = self._children[lane], child
        self._dead.discard(lane)
        self._roll.started(lane, child.pid)
        self._watched[child.watch] = lane
        self._poll.register(child.watch, select.POLLIN)
        if before is not None:
            before.close()
        if nursed and not self._recruiter.has_nursery:
            warnings.warn(
                "the process that replaces workers is gone (often the out-of-memory killer): until the next iter() "
                "they are forked from this one, and inherit the locks that other threads hold at that moment",
                RuntimeWarning,
                stacklevel=3,
            )

    def ledger(self) -> ConsumerLedger:
        """The consumer's view of the ledger, for one epoch."""
        kind = twin.NativeConsumer if isinstance(self._wiring.lock, Mutex) else ConsumerLedger
        ledger = kind(self.memory.words, self.memory.dims, self._section)
        ledger.story = self.story
        return ledger

    def gauges(self) -> Gauges:
        """What the workers measure."""
        return Gauges(self.memory.words, self.memory.dims)

    def section(self) -> Section:
        """The run's critical section, entered by the consumer: ``with pool.section():``."""
        return self._section

    def dismiss(self) -> None:
        """Whoever waits, or will, raises ``LoaderClosed``. May be called by any thread, at any time."""
        self._dismissed = True
        with self._rope:
            if self._wiring.consumer.fd >= 0:
                self._wiring.consumer.ring()

    def wait(self, seconds: float | None, besides: tuple[int, int] = (-1, 0)) -> list[int]:
        """Sleep until a worker rings, dies, time is up, or sooner; the lanes that died, until they are replaced.

        ``besides``: a descriptor and events of it that end the sleep too.
        """
        if besides[0] >= 0:
            self._poll.register(*besides)
        patience = self._roll.seconds() if seconds is None else min(max(0.0, seconds), self._roll.seconds())
        events = self._poll.poll(0 if self._dead else 1000 * patience)
        for fd, _ in events:
            if fd == self._wiring.consumer.fd:
                self._wiring.consumer.wait()
            elif fd in self._watched:
                self._dead.add(self._watched[fd])
                self._poll.unregister(fd)
                del self._watched[fd]
            else:
                self._poll.unregister(fd)  # ``besides``, or one that an interrupt left behind
        if self._dismissed:
            raise LoaderClosed
        if not events:
            self._roll.call()
        return sorted(self._dead)

    def late(self) -> list[str]:
        """Of each worker that is not at work yet: which, and where it is."""
        return self._roll.late()

    def told(self) -> str:
        """How the story ends, to be added to a message; empty where none is kept."""
        if self.story is None:
            return ""
        self.story.gather()
        return self.story.log.ending()

    def epitaph(self, lane: int) -> tuple[int, str]:
        """(pid, how it ended) of a worker that died; reaps it."""
        child = self._children[lane]
        if child is None:
            return -1, "was never started"
        how = epitaph(child)
        if self.story is not None:
            self.story.died(lane, child.pid, how)
        return child.pid, how

    def pids(self) -> list[int]:
        """Of the workers."""
        return [child.pid for child in self._children if child is not None]

    def ring(self, lanes: Iterable[int]) -> None:
        """Wake these workers."""
        for lane in lanes:
            self._bells[lane].ring()

    def close(self) -> None:
        """End all workers and free the descriptors; idempotent. A worker in mid-sample has a moment to come back."""
        if self.closed or os.getpid() != self._owner:
            return
        with held():
            self._end()

    def _end(self) -> None:
        self._roster.stop()
        self.ring(lane for lane, bell in enumerate(self._bells) if bell.fd >= 0)
        self._recruiter.dismiss()
        running = {child.watch: child for child in self._children if child is not None and child.watch in self._watched}
        await_end(running, GRACE_SECONDS)
        for child in running.values():
            kill(child)
        await_end(running, None)
        for child in filter(None, self._children):
            child.close()
        if self.story is not None:
            self.story.gather()
        self._recruiter.close()
        self._roster.stopped()
        self._wiring.lock.close()
        with self._rope:
            self._wiring.consumer.close()
        for bell in self._bells:
            bell.close()
        self.closed = True
