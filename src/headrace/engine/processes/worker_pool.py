"""The worker processes of a run: started, watched, woken, replaced, ended."""

import os
import select
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from multiprocessing.context import BaseContext

from headrace.core.errors import LoaderClosed
from headrace.core.story import StoryLog
from headrace.engine.memory.limits import explained
from headrace.engine.memory.lock import Bell, Mutex, Section, new_lock
from headrace.engine.memory.reservation import Reservation
from headrace.engine.processes.starting import Child, Starter, await_end, ending, kill, unimportable
from headrace.engine.step import IterationStep, held
from headrace.engine.worker.startup.job import Task, Wiring
from headrace.sched import native_ledger
from headrace.sched.epochs.roster import LaneStates
from headrace.sched.epochs.trainer_ledger import TrainerLedger
from headrace.sched.gauges import Gauges
from headrace.sched.ledger_story import Story
from headrace.sched.resume import Resume

GRACE_SECONDS = 1.0
"""The time that a worker may go on with the sample it is making once the loader has ended."""
START_SECONDS, SAMPLE_SECONDS = 60.0, 600.0
"""After which a worker is overdue. Starting takes a second or two, with imports over a network perhaps ten."""


class Pool:
    """Workers over one reservation: ``lanes`` to begin with, more when they are added. Not thread-safe.

    Who starts them is in ``starting``: the caller does, until there is a forker.
    """

    def __init__(
        self,
        memory: Reservation,
        lanes: int,
        context: BaseContext,
        task: Task,
        base_seed: int,
        log: StoryLog,
        step: IterationStep,
    ) -> None:
        """Starts nothing yet. ``log``: where the story is told, if the memory has room for one.

        ``step``: of whoever waits, who does so in windows of it.
        """
        self._step = step
        self.story = Story(memory.words, memory.dims, log) if memory.dims.told else None
        self.memory, self.workers = memory, lanes
        with explained("make a lock and a bell for the workers"):
            lock = new_lock(memory)
            try:
                self._wiring = Wiring(memory, lock, Bell())
            except OSError:
                lock.close()
                raise
        self.unimportable = partial(unimportable, task, context.get_start_method())
        self._starter = Starter(context, task, self._wiring, lanes, base_seed)
        self._bells: list[Bell] = []
        self._children: list[Child | None] = []
        self._roster = LaneStates(memory.words, memory.dims)
        self.overdue = Overdue(self._roster, context.get_start_method())
        self._poll = select.poll()
        self._poll.register(self._wiring.trainer.fd, select.POLLIN)
        self._watched: dict[int, int] = {}
        self._dead: set[int] = set()
        self.section = Section(self._wiring.lock)
        """The run's critical section, entered by the trainer: ``with pool.section:``."""
        self._owner = os.getpid()
        self.closed = self._dismissed = False
        self._bell_lock = threading.Lock()  # of the trainer's bell: nobody rings what is being closed
        self._roster.open()

    def start(self, resume: Callable[[int], Resume] = lambda _: Resume()) -> None:
        for lane in range(self.workers):
            self.add(resume(lane))

    def start_forker(self) -> None:
        """Start whoever starts workers from now on, if there is nobody."""
        self._starter.start_forker([child.watch for child in self._children if child is not None])

    @property
    def lanes(self) -> int:
        return len(self._children)

    def add(self, resume: Resume) -> None:
        self._starter.make_helpers()
        with self._starter.signals_held() as mask:
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
        self._starter.make_helpers()
        with self._starter.signals_held() as mask:
            self._start(lane, resume, mask)

    def _start(self, lane: int, resume: Resume, mask: set[int]) -> None:
        by_forker = self._starter.has_forker
        with explained(f"start worker {lane}"):
            child = self._starter.start(lane, self._bells[lane], resume, mask)
        before, self._children[lane] = self._children[lane], child
        self._dead.discard(lane)
        self.overdue.started(lane, child.pid)
        self._watched[child.watch] = lane
        self._poll.register(child.watch, select.POLLIN)
        if before is not None:
            before.close()
        if by_forker and not self._starter.has_forker:
            warnings.warn(
                "the process that replaces workers is gone (often the out-of-memory killer): until the next iter() "
                "they are forked from this one, with the dataset as it is then and without the cache, and inherit the "
                "locks that other threads hold at that moment",
                RuntimeWarning,
                stacklevel=3,
            )

    def ledger(self) -> TrainerLedger:
        """The trainer's view of the ledger, for one epoch."""
        kind = native_ledger.NativeTrainer if isinstance(self._wiring.lock, Mutex) else TrainerLedger
        ledger = kind(self.memory.words, self.memory.dims, self.section)
        ledger.story = self.story
        return ledger

    def gauges(self) -> Gauges:
        """The gauges of what the workers measure."""
        return Gauges(self.memory.words, self.memory.dims)

    def dismiss(self) -> None:
        """Have whoever waits, or will, raise ``LoaderClosed``. May be called by any thread, at any time."""
        self._dismissed = True
        with self._bell_lock:
            if self._wiring.trainer.fd >= 0:
                self._wiring.trainer.ring()

    def wait(self, seconds: float | None, besides: tuple[int, int] = (-1, 0)) -> list[int]:
        """Sleep until a worker rings, dies, time is up, or sooner; the lanes that died, until they are replaced.

        ``besides``: a descriptor and events of it that end the sleep too.
        """
        if besides[0] >= 0:
            self._poll.register(*besides)
        look = min(START_SECONDS, SAMPLE_SECONDS)
        patience = look if seconds is None else min(max(0.0, seconds), look)
        events = self._step.opened(self._poll.poll, 0 if self._dead else 1000 * patience)
        for fd, _ in events:
            if fd == self._wiring.trainer.fd:
                self._wiring.trainer.wait()
            elif fd in self._watched:
                self._dead.add(self._watched[fd])
                self._poll.unregister(fd)
                del self._watched[fd]
            else:
                self._poll.unregister(fd)  # ``besides``, or one that an interrupt left behind
        if self._dismissed:
            raise LoaderClosed
        if not events:
            self.overdue.warn()
        return sorted(self._dead)

    def told(self) -> str:
        """The end of the story, to be added to a message; empty where none is kept."""
        if self.story is None:
            return ""
        self.story.gather()
        return self.story.log.ending()

    def ended(self, lane: int) -> tuple[int, str]:
        """(pid, how it ended) of a worker that died; reaps it."""
        child = self._children[lane]
        if child is None:
            return -1, "was never started"
        how = ending(child)
        if self.story is not None:
            self.story.died(lane, child.pid, how)
        return child.pid, how

    def pids(self) -> list[int]:
        return [child.pid for child in self._children if child is not None]

    def ring(self, lanes: Iterable[int]) -> None:
        for lane in lanes:
            self._bells[lane].ring()

    def close(self) -> None:
        """End all workers and free the descriptors; idempotent. A worker in mid-sample has a moment to come back."""
        if self.closed or os.getpid() != self._owner:
            return
        with held():
            self._end()

    def _end(self) -> None:
        # Before the bells: whoever is rung looks whether it is to stop, and would sleep again.
        self._roster.stop()
        self.ring(lane for lane, bell in enumerate(self._bells) if bell.fd >= 0)
        self._starter.dismiss()
        running = {child.watch: child for child in self._children if child is not None and child.watch in self._watched}
        await_end(running, GRACE_SECONDS)
        for child in running.values():
            kill(child)
        await_end(running, None)
        for each in self._children:
            if each is not None:
                each.close()
        if self.story is not None:
            self.story.gather()
        self._starter.close()
        self._roster.stopped()
        self._wiring.lock.close()
        with self._bell_lock:
            self._wiring.trainer.close()
        for bell in self._bells:
            bell.close()
        self.closed = True


FORKED = (
    "If it waits for a lock that a thread of this process held when it was forked, it will wait for ever: "
    "multiprocessing_context='forkserver' starts workers without inherited locks"
)
AFRESH = "It imports what the program imports, which takes that long where the machine or the disk is busy"
"""What a worker may be doing that began without anything of this process."""


class Overdue:
    """Workers that never come to work, and samples that never end, while the trainer waits for them.

    Each is complained of once; the trainer decides how long it waits (``timeout``).
    """

    def __init__(self, roster: LaneStates, method: str) -> None:
        self._roster, self._method = roster, method
        self._since: dict[int, tuple[int, float]] = {}  # lane -> its process, when that was started
        self._complained: set[tuple[int, int]] = set()  # process, when its sample was begun (0: before its first)

    def started(self, lane: int, pid: int) -> None:
        self._roster.started(lane)
        self._since[lane] = pid, time.monotonic()

    def late(self) -> list[str]:
        """The workers that are not at work yet: of each, which, and where it is."""
        return [self._where(lane) for lane in self._since if not self._roster.is_at_work(lane)]

    def warn(self) -> None:
        """Warn about whoever keeps the trainer waiting for too long."""
        now, reports = time.monotonic(), []
        for lane, (pid, since) in self._since.items():
            begun = self._roster.begun(lane)
            if (pid, begun) in self._complained:
                continue
            if not self._roster.is_at_work(lane) and now - since >= START_SECONDS:
                reports.append(
                    f"{self._where(lane)}, {now - since:.0f} seconds after it was started. "
                    f"{FORKED if self._method == 'fork' else AFRESH}"
                )
            elif begun and now - begun / 1e9 >= SAMPLE_SECONDS:
                reports.append(f"DataLoader worker {lane} (pid {pid}) has been making {self._sample(lane)} for "
                               f"{now - begun / 1e9:.0f} seconds")  # fmt: skip
            else:
                continue
            self._complained.add((pid, begun))
        for report in reports:
            warnings.warn(f"{report} (py-spy dump --pid shows where it is; timeout= bounds the wait)", stacklevel=2)

    def _where(self, lane: int) -> str:
        place = "in worker_init_fn" if self._roster.is_initializing(lane) else "starting"
        return f"DataLoader worker {lane} (pid {self._since[lane][0]}) is still {place}"

    def _sample(self, lane: int) -> str:
        index = self._roster.index(lane)
        return "one sample" if index is None else f"sample {index}"
