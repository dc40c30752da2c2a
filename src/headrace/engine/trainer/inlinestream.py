"""An epoch over an iterable dataset in this process."""

import copy
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import takewhile
from typing import Any

from headrace.engine.step import IterationStep
from headrace.engine.trainer.counters import Errors
from headrace.engine.trainer.inline import collated
from headrace.engine.worker.observer import Observer
from headrace.engine.worker.stream import Stream
from headrace.sched.hand import Delivered, Hand, Hands
from headrace.sched.resume import Resume


class InlineStream:
    """An iterable dataset, one batch per ``next``."""

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[Any], Any],
        *,
        batch_size: int | None,
        drop_last: bool,
        resumed: Resume,
        errors: Errors,
        observer: Observer | None,
        step: IterationStep,
    ) -> None:
        """``resumed``: what the stream starts from. ``step``: in windows of which the user's code runs."""
        self._step = step
        self._errors, self._dataset = errors, dataset
        self._observer, self._number = observer, -1
        item = next if observer is None else observer.items()
        self._collate_fn = collate_fn if batch_size is not None else lambda items: collate_fn(items[0])
        self._begin: Callable[[Resume], Stream] = lambda resume: Stream(
            dataset, batch_size, drop_last=drop_last, keep_partial=errors.skips, resume=resume, item=item
        )
        self._stream, self._reading = step.opened(self._begin, resumed), False
        # What was delivered, and how the stream stood then.
        self._delivered = replace(resumed, state=copy.deepcopy(self._stream.state()))
        self.hands: Hands[Resume] = deque()

    def abandon(self) -> None:
        """Give up the rest: nothing is ahead here."""
        if self._observer is not None:
            self._observer.undo()

    def progress(self) -> dict[str, Any]:
        """The progress of the stream as delivered."""
        now = self._delivered
        for hand in takewhile(lambda hand: hand.load is None, list(self.hands)):
            now = hand.then
        # This process's generators are the user's.
        return {"streams": [replace(now, began=None, random=None).told()], "turn": 0}

    def next(self, *, block: bool = True) -> Hand[Resume]:
        """The next batch; exceptions are the user's own."""
        while self.hands and self.hands[0].load is None:
            self._delivered = self.hands[0].then
            self.hands.popleft()
        if self._reading and self._can_read_again():
            self._stream = self._step.opened(self._begin, self._given)
        self._reading = True
        items, attempts = self._items()
        if items is None:
            self._reading = False
            raise StopIteration
        state = copy.deepcopy(self._stream.state())
        then = Resume(self._given.batches + attempts, state, self._stream.ended)
        hand = Hand(items, then, Delivered()) if isinstance(items, BaseException) else self._made(items, then)
        self.hands.append(hand)
        self._reading = False
        return hand

    @property
    def _given(self) -> Resume:
        """The progress of the stream after the last batch that was handed out."""
        return self.hands[-1].then if self.hands else self._delivered

    def _can_read_again(self) -> bool:
        """True if the stream can be read again after an interrupt. Where it stood when that came is unknown; one
        that cannot begin anew goes on as it is.
        """
        return self._given.state is not None or iter(self._dataset) is not self._stream.iterator

    def _made(self, items: list[Any], then: Resume) -> Hand[Resume]:
        delivered = Delivered(self._number + 1, len(items))
        try:
            batch = self._step.opened(collated, self._collate_fn, items, self._observer, delivered)
        except Exception as error:
            if self._step.interrupted:
                raise  # by a handler: what was read is read again
            return Hand(error, then, Delivered())  # the user's function: the batch is given up, as torch does
        self._number += 1
        self._errors.passed(len(items))
        return Hand((batch,), then, delivered)

    def _items(self) -> tuple[list[Any] | BaseException | None, int]:
        """The next batch's items, an error to raise, or None at the end; and how often the stream was asked."""
        attempts = 1
        while True:
            try:
                return self._step.opened(self._stream.items), attempts
            except Exception as error:
                if self._step.interrupted:
                    raise
                # Raised again unless the user wants failures skipped.
                number = self._given.batches + attempts - 1
                raised = self._errors.judged(f"item of batch {number}", error, error)
                if raised is not None:
                    return raised, attempts
                attempts += 1
