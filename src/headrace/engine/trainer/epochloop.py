"""An epoch with workers: what the machine of its kind says is done here."""

import time
from typing import Any

from headrace.core.errors import WorkerDied
from headrace.engine.trainer.epochdriver import EpochDriver
from headrace.engine.trainer.streamwork import StreamWork
from headrace.sched.epochs.trainer_commands import End, Wait
from headrace.sched.hand import NOT_YET, Hand, Hands, NotYet


class EpochLoop:
    """Delivers each sample of the epoch exactly once. The work says what that is made of: samples, or streams."""

    def __init__(self, work: EpochDriver | StreamWork, timeout: float) -> None:
        """Hands out work at once. ``timeout``: seconds without a batch after which it raises; 0: it waits."""
        self._work, self._timeout = work, timeout
        self.hands: Hands[Any] = work.hands
        self._pool, self._ledger, self.errors = work.pool, work.ledger, work.errors
        self.machine: Any = work.machine
        """The machine, which says what comes next."""
        work.begin()
        work.have_made()

    def next(self, *, block: bool = True) -> Hand[Any] | NotYet:
        """The next batch, or what a sample raised, in a hand; raises StopIteration at the end.

        With ``block`` off, ``NOT_YET`` when no batch is ready. Where something was raised, the next call goes on.
        """
        # Emptied by the call before: that its batch reached the user is sure only now, so only now it is settled.
        while self.hands and self.hands[0].load is None:
            self.machine.settle(self.hands[0].then)
            self.hands.popleft()
        machine, timeout, waited = self.machine, self._timeout, 0.0
        deadline = time.monotonic() + timeout if timeout else None
        self._work.asked()
        machine.start()
        while not isinstance(command := machine.next(), End):
            if isinstance(command, Wait):
                if not block:
                    return NOT_YET
                waited = self._sleep(deadline, waited)
                machine.start()
                continue
            hand = self._work.do(command)
            if hand is None:
                continue
            self.hands.append(hand)
            if machine.refills:
                self._work.have_made()
            if hand.load is not None:
                return hand
            machine.start()  # what failed is only counted
        self._work.ended()
        raise StopIteration

    def _sleep(self, deadline: float | None, waited: float) -> float:
        """Sleep until something happens; return how long was waited with that. The dead are replaced."""
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            busy = "; ".join(self._pool.overdue.late() + self._work.busy())
            msg = f"DataLoader timed out after {self._timeout} seconds" + (f" ({busy})" if busy else "")
            raise RuntimeError(msg + self._pool.told())
        began = time.monotonic()
        times, besides = self._work.patience()
        seconds = min((each for each in (left, *times) if each is not None), default=None)
        dead = self._pool.wait(seconds, besides)
        took = time.monotonic() - began
        for lane in dead:
            self._replace(lane)
        self._work.waited(took, waited + took)
        return waited + took

    def _replace(self, lane: int) -> None:
        pid, how = self._pool.ended(lane)
        died = f"DataLoader worker (pid(s) {pid}) exited unexpectedly: DataLoader worker (pid {pid}) {how}"
        try:
            resume = self._work.lost(lane, died)
        except WorkerDied as error:  # who asks again is told again
            raise WorkerDied(str(error) + self._pool.told()) from None
        self._work.slots.forget(lane)
        self._work.counters.restarts += 1
        self._pool.restart(lane, resume)
        self._pool.ring([lane, *self._ledger.wake(self._pool.lanes)])
        why = self._work.blamed(lane, died, resume)
        if why is not None:
            raise WorkerDied(why + self._pool.told())

    def progress(self) -> dict[str, Any]:
        """The state needed to go on from here in another process."""
        return self._work.progress()

    def abandon(self) -> None:
        """Give up the rest of the epoch; slots go back, except those a lane still writes to."""
        self.hands.clear()
        self._work.abandon()
