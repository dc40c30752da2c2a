"""Batches taken from a run a little early and sent where they are wanted."""

import time
from collections import deque
from typing import Any

from headrace.devices.accelerator import Carrier
from headrace.engine.memory.pieces import Flat, nbytes, no_slab
from headrace.engine.plugs import EpochRecord
from headrace.engine.step import IterationStep
from headrace.sched.hand import NOT_YET, Hand, Hands

AHEAD = 2
"""Batches that are there or on their way before they are asked for."""
LIGHT = 4
"""And so many more of small ones, once there are fewer: one after the other they cost half of what they cost one at a
time, between which the trainer's own work drives all of this out of the processor's caches."""


GONE = object()
"""Handed over in place of a batch of which no sample is left."""


class Parcel:
    """A batch that is on its way, and what its copy needs until it is there."""

    __slots__ = ("began", "hand", "held", "host", "mark")

    def __init__(self, hand: Hand[Any], host: Any, mark: Any, began: int) -> None:
        """``mark``: reached when it is there."""
        self.hand, self.host, self.mark, self.began = hand, host, mark, began
        self.held = True  # the host's memory is still needed


class Ahead:
    """The run that takes another run's batches ahead, and a run itself. What was taken is in the run's hands until
    it is delivered, and so is still owed until then.

    A hand that was sent holds the batch there, and its parcel.
    """

    def __init__(
        self,
        run: Any,
        carrier: Carrier,
        step: IterationStep,
        flat: Flat = no_slab,
        *,
        trace: EpochRecord | None = None,
        ahead: int = AHEAD,
    ) -> None:
        """``run``: where host batches come from; ``flat``: the slab they lie in; ``ahead``: how many to take early.

        ``step``: in windows of which the carrier is waited for.
        """
        self._step = step
        self._run, self._carrier, self._flat, self._trace, self._ahead = run, carrier, flat, trace, ahead
        self._light = False  # batches are small
        self._parcels: deque[Parcel] = deque()  # of hands not delivered, or copies not done; oldest first
        self.hands: Hands[Any] = deque()
        """None is handed over again without its copy: see ``next``."""

    def progress(self) -> dict[str, Any]:
        """Progress as of the last batch delivered; batches on their way do not count."""
        progress: dict[str, Any] = self._run.progress()
        return progress

    def abandon(self) -> None:
        """Give up the rest of the epoch; host memory is free once its copies are done."""
        try:
            self._carrier.finish()
        finally:
            for parcel in self._parcels:  # whoever still has it, say a traceback, shall not keep what it held
                parcel.host = parcel.mark = None
            self._parcels.clear()
            self._run.abandon()

    def next(self, *, block: bool = True) -> Any:
        """The next batch in its hand, there or on its way. Errors of samples wait for the batches before them."""
        while True:
            hands = self._sent()
            if len(hands) < self._ahead:
                hands = self._fill(hands, block=block)
            if not hands:
                return NOT_YET
            last = hands[-1].load
            # Ctrl-C and SystemExit do not wait for the batches before them.
            hand = hands[-1 if isinstance(last, BaseException) and not isinstance(last, Exception) else 0]
            if isinstance(hand.load, tuple):
                there, parcel = hand.load
                wait = self._carrier.waits_for(parcel.mark)
                if wait is not None:
                    self._step.opened(wait)
                made = self._carrier.hand_over(there, parcel.mark)
                if made is GONE:
                    hand.load = None
                    continue
                hand.load = made if isinstance(made, BaseException) else (made, parcel)
            return hand

    def _sent(self) -> list[Hand[Any]]:
        """The hands that wait to be delivered, all of them on their way."""
        hands = [hand for hand in self._run.hands if hand.load is not None]
        for hand in hands:
            load = hand.load
            if isinstance(load, tuple) and len(load) == 1:
                self._send(hand, load[0])
        return hands

    def _fill(self, hands: list[Hand[Any]], *, block: bool) -> list[Hand[Any]]:
        """Have more on their way than ``hands``, as many as are wanted and ready, up to the first error; all of them.

        ``KeyboardInterrupt`` and the like are errors too, which do not wait for their turn.
        """
        self._release()
        most = self._ahead
        while len(hands) < most and not (hands and isinstance(hands[-1].load, BaseException)):
            try:
                made = self._run.next(block=block and not hands)
            except StopIteration:
                if not hands:
                    raise
                break
            if made is NOT_YET:
                break
            hands = self._sent()
            if self._light and self._ahead > 1:
                most = self._ahead + LIGHT
        return hands

    def _send(self, hand: Hand[Any], host: Any) -> None:
        """Start copying."""
        began = time.monotonic_ns()
        there, mark = self._carrier.copy(host, self._flat)
        parcel = Parcel(hand, host, mark, began)
        self._parcels.append(parcel)
        self._light = self._carrier.is_light(mark)
        hand.load = there, parcel

    def _release(self) -> None:
        """Let go of host batches whose copies are done; they are done in the order in which they were begun."""
        for parcel in self._parcels:
            if parcel.held:
                if not self._carrier.reached(parcel.mark):
                    break
                self._note(parcel)
                parcel.host, parcel.held = None, False
        while self._parcels and not self._parcels[0].held and self._parcels[0].hand.load is None:
            parcel = self._parcels.popleft()
            self._carrier.release(parcel.mark)
            parcel.mark = None

    def _note(self, parcel: Parcel) -> None:
        if self._trace is None:
            return
        took, start = self._carrier.took(parcel.mark), parcel.began
        elapsed = time.monotonic_ns() - start if took is None else took
        self._trace.copied(parcel.hand.delivered, nbytes(parcel.host), start, elapsed)
        for name, spent in self._carrier.spans(parcel.mark):
            self._trace.span(name, start, spent)
            start += spent
