"""The parts that features have in an iteration: what the core asks of them, and all that it knows of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.engine.memory.slab import Pins, Slab
from headrace.engine.settings import Settings
from headrace.engine.step import IterationStep
from headrace.engine.trainer.counters import LoaderCounters
from headrace.engine.worker.maker import Making
from headrace.engine.worker.observer import Observer, Observing
from headrace.sched.hand import Delivered, EpochRun
from headrace.sched.source import Source


class EpochRecord(Protocol):
    """A trace of one epoch, as the trainer writes it."""

    def delivered(self, batch: Delivered, start: int) -> None:
        """The trainer asked at ``start`` and has the batch now."""

    def copied(self, batch: Delivered, size: int, start: int, elapsed: int) -> None:
        """The batch was copied to a device."""

    def span(self, name: str, start: int, elapsed: int) -> None:
        """The device was at this for so long."""

    def ended(self) -> None:
        """No batch is left."""

    def observer(self, dataset: Any) -> Observer:
        """The observer of samples that the trainer makes itself."""


@dataclass(frozen=True, slots=True)
class PartFacts:
    """The facts of an iteration that its parts may keep: not the iteration, which has them."""

    settings: Settings
    counters: LoaderCounters
    """The loader's."""
    step: IterationStep


class Part:
    """A feature's part in one iteration. A feature overrides what it takes part in; here nothing is done.

    All but ``dismiss`` is called within the iteration's step. Parts are asked in the order in which they are given,
    and ended from the last to the first, after the workers.
    """

    pins: Pins | None = None
    """Registers the memory of batches with a device."""

    def resume(self, saved: dict[str, Any] | None) -> None:
        """An epoch begins, which goes on from ``saved`` or comes after it."""

    def source(self, source: Source, seeds: tuple[int, int], saved: dict[str, Any] | None) -> Source:
        """The groups of an epoch, from the part before this one. ``seeds``: the loader's, and the epoch.

        ``saved``: the state that it goes on from. Comes before ``making``.
        """
        return source

    def making(self, making: Making) -> Making:
        """The orders by which samples are made, from the part after this one, which is nearer to the dataset."""
        return making

    def observing(self, observing: Observing) -> Observing:
        """The orders by which samples are looked at."""
        return observing

    def operations(self) -> list[str]:
        """The names of the operations that workers account for."""
        return []

    def record(self, number: int, facts: dict[str, Any]) -> EpochRecord | None:
        """A record of the epoch that begins, of which ``facts`` are known. ``number``: of no other run."""
        return None

    def run(self, run: EpochRun, record: EpochRecord | None, slab: Slab | None) -> EpochRun:
        """The run of an epoch, its batches sent where they are wanted. ``slab``: where workers make them."""
        return run

    def start(self) -> None:
        """The epoch's run is there, and its workers are at work."""

    def state(self) -> dict[str, Any]:
        """The feature's facts for the state of a finished epoch."""
        return {}

    def count(self) -> None:
        """Bring what is known into the loader's counters."""

    def dismiss(self) -> None:
        """Have whoever waits here come back soon; from any thread."""

    def end(self, *, broken: bool) -> None:
        """Give back what the part holds; idempotent. ``broken``: nothing of it is to be used again."""


Plug = Callable[[PartFacts], Sequence[Part]]
"""Gives the parts that a loader's features have in an iteration."""
