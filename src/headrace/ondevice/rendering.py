"""Batches of encoded pictures into batches of the device's: decoded and rendered by a thread, ahead of ``next()``.

The thread spends its time in the decoder and in launches, without the interpreter. What it gives to the device is in
order; ``next()`` makes the trainer's stream wait for an event, and nothing waits for the device but the thread itself.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import torch

from headrace.core.stats import DeviceUse
from headrace.devices.ahead import GONE
from headrace.devices.jobthread import JobThread
from headrace.engine.memory.containers import mapped
from headrace.engine.memory.pieces import Flat
from headrace.engine.trainer.counters import Errors, LoaderCounters
from headrace.ondevice.pixels.bundle import Bundle
from headrace.ondevice.pixels.prepared import Prepared, replaced

RENDERED = 4
"""Batches that the thread has, or has done, before they are asked for. One is begun whenever one is handed out: several
at once cost the trainer less in all, but hold it up for milliseconds, in which the device runs dry."""


class Work:
    """A batch on its way: what is made of it, and what that needs until it is done."""

    __slots__ = (
        *("asked", "bundle", "trainer", "decoding", "done", "error", "failed", "is_ready", "kept", "made", "masks"),
        *("out", "rest", "started", "use", "users", "verdict", "waits"),
    )

    def __init__(self, bundle: Bundle, trainer: Any) -> None:
        """``trainer``: the stream that asked for it, if there are streams."""
        self.bundle: Bundle | None = bundle
        self.trainer = trainer
        self.out: Any = None
        self.masks: Any = None
        self.rest: Any = None
        """Labels and all else of the samples, and their boxes, where the batch is to be."""
        self.is_ready = False
        """Everything was given to the device, or ``error`` says why not."""
        self.waits = threading.Lock()
        """Let go of when the work is ready; an event would be several objects more, for every batch."""
        self.waits.acquire()
        self.error: BaseException | None = None
        self.failed: list[tuple[int, Exception]] = []
        """Pictures that could not be decoded, by their place in the batch."""
        self.verdict: list[BaseException] | None = None
        self.made: Any = None
        """The batch as it is handed out."""
        self.use: DeviceUse | None = None
        self.kept: list[Any] = []
        self.users = [True]
        """Emptied by the first of the two threads that has done with it."""
        self.decoding = 0
        """Nanoseconds that it took; the decoder is waited for."""
        self.asked: Any = None
        self.started: Any = None
        self.done: Any = None


class Renderer(Protocol):
    """Does the pixels of one batch after the other. ``run`` is called by one thread, all else by the trainer."""

    def begin(self, bundle: Bundle) -> Work:
        """A batch that is to be made for whoever asks now."""

    def prepare(self) -> None:
        """Do, in the thread and before the first batch, what takes long and is needed once."""

    def run(self, work: Work) -> None:
        """Make it; what raises is kept in the work, and bad pictures too."""

    def hand_over(self, work: Work) -> None:
        """Make the batch usable by the caller that asked last."""

    def reached(self, work: Work) -> bool:
        """True once the work is done. Does not wait."""

    def took(self, work: Work) -> tuple[int, int] | None:
        """Nanoseconds of decoding and of pixels, of a batch that is done; None where that is not known."""

    def release(self, work: Work) -> None:
        """Forget the work."""

    def finish(self) -> None:
        """Wait for all of it, and let go of what it needs; also when waiting raises."""


class Rendering:
    """Implements ``Carrier``. What it hands over is the batch, an error, or ``GONE`` where no sample of it is left."""

    def __init__(self, dataset: Prepared, renderer: Renderer, errors: Errors, counters: LoaderCounters) -> None:
        """Does nothing yet."""
        self._pixels, self._renderer = dataset.pixels, renderer
        self._errors, self._counters = errors, counters
        self._thread = JobThread("headrace pixels", partial(_work, renderer))

    def start(self) -> None:
        """Begin with what has to be done before the first batch, while workers make that; once all of them are forked:
        nobody inherits a lock that this thread holds.
        """
        self._thread.start()

    def copy(self, batch: Bundle, flat: Flat) -> tuple[None, Work]:
        """See ``Carrier``: begin with it."""
        work = self._renderer.begin(batch)
        self.start()
        self._thread.put(work)
        return None, work

    def is_light(self, mark: Work) -> bool:
        """See ``Carrier``."""
        return False

    def waits_for(self, mark: Work) -> Callable[[], object] | None:
        """See ``Carrier``: for good, since it is ready then."""
        return None if mark.is_ready else mark.waits.acquire

    def hand_over(self, batch: Any, mark: Work) -> Any:
        """See ``Carrier``."""
        if mark.error is not None:
            return mark.error
        if mark.made is None:
            mark.made = self._assembled(mark)
        if mark.made is not GONE and not isinstance(mark.made, BaseException):
            self._renderer.hand_over(mark)
        return mark.made

    def _assembled(self, work: Work) -> Any:
        bundle = work.bundle
        assert bundle is not None
        if work.verdict is None:  # an interrupt may have this done again: what failed is counted once
            if work.use is not None:
                self._counters.device = self._counters.device.plus(work.use)
            work.verdict = []
            for position, error in work.failed:
                self._counters.samples -= 1
                raised = self._errors.judged(bundle.indices[position], error, error)
                work.verdict += [] if raised is None else [raised]
        if work.verdict:
            return work.verdict[0]
        if not work.failed:
            rest, boxes = work.rest
            return self._sample(rest, boxes, work.out, work.masks)
        bad = {position for position, _ in work.failed}
        keep = [position for position in range(len(bundle.indices)) if position not in bad]
        if not keep:
            return GONE
        self._renderer.hand_over(work)  # the trainer's stream is going to read it now
        rest, boxes = work.rest
        some = None if boxes is None else [boxes[position] for position in keep]
        masks = None if work.masks is None else work.masks[keep]
        return self._sample(mapped(rest, lambda tensor: tensor[keep]), some, work.out[keep], masks)

    def _sample(self, rest: Any, boxes: Any, out: torch.Tensor, masks: torch.Tensor | None) -> Any:
        """The batch as ``default_collate`` would give it, each thing where it stands in a sample."""
        pixels = self._pixels
        made = replaced(rest, pixels.picture, out)
        if masks is not None:
            made = replaced(made, pixels.mask, masks)
        return made if boxes is None else replaced(made, pixels.boxes, boxes)

    def reached(self, mark: Work) -> bool:
        """See ``Carrier``."""
        return mark.is_ready and (mark.error is not None or self._renderer.reached(mark))

    def took(self, mark: Work) -> int | None:
        """See ``Carrier``."""
        parts = self.spans(mark)
        return None if not parts else sum(elapsed for _, elapsed in parts)

    def spans(self, mark: Work) -> list[tuple[str, int]]:
        """Operations of the device on a finished batch, with their nanoseconds."""
        found = None if mark.error is not None else self._renderer.took(mark)
        return [] if found is None else [("device decode", found[0]), ("device pixels", found[1])]

    def release(self, mark: Work) -> None:
        """See ``Carrier``."""
        self._renderer.release(mark)
        mark.bundle = mark.made = mark.rest = mark.out = mark.masks = None

    def finish(self) -> None:
        """See ``Carrier``."""
        self._thread.finish()
        self._renderer.finish()


def _work(renderer: Renderer, jobs: Iterator[Work]) -> None:
    with suppress(Exception):  # raised again where the first batch needs it
        renderer.prepare()
    for work in jobs:
        try:
            renderer.run(work)
        except BaseException as error:  # noqa: BLE001  (raised in the trainer, where the batch is asked for)
            work.error = error
        finally:
            work.is_ready = True  # first, so that nobody waits who comes now
            work.waits.release()
        del work
