"""The beginning of an epoch: its number, seed, order, the state that it goes on from; and the groups drawn from
that.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from headrace.engine.iteration_state import IterationState
from headrace.engine.ordering.order import Order
from headrace.engine.ordering.random_sources import unpack_random
from headrace.engine.ordering.saved import pending
from headrace.engine.ordering.state_signature import compare
from headrace.engine.settings import Settings
from headrace.engine.worker.randomness.generators import unpacked
from headrace.engine.worker.stateful import load
from headrace.sched.groups import Groups
from headrace.sched.resume import Resume
from headrace.sched.source import Source


@dataclass(frozen=True, slots=True)
class EpochBeginning:
    """The beginning of one epoch."""

    epoch: int
    seed: int
    order: Order | None
    """None where the dataset is iterable."""
    saved: dict[str, Any] | None = None
    """The state, where it goes on from the middle."""

    @property
    def streams(self) -> list[Resume]:
        """The position that each worker's stream had reached; empty at an epoch's beginning."""
        return [
            Resume(
                stream["batches"],
                stream.get("state"),
                ended=stream["ended"],
                began=None if stream.get("began") is None else unpacked(stream["began"]),
                random=None if stream.get("random") is None else unpacked(stream["random"]),
            )
            for stream in (self.saved["streams"] if self.saved else [])
        ]


def numbered(resources: IterationState) -> dict[str, Any] | None:
    """Number the epoch that begins now, in ``resources``, and count the batches it had.

    Gives the state that it goes on from, or comes after, if any.
    """
    resources.epoch, saved = resources.kept.begin_epoch()
    resources.goes_on_from = saved
    for part in resources.parts:
        part.resume(saved)
    resources.hand, resources.batches = None, saved["yielded"] if saved and not saved["finished"] else 0
    return saved


def drawn(resources: IterationState, saved: dict[str, Any] | None) -> EpochBeginning:
    """The beginning of the numbered epoch. An epoch that cannot begin has drawn nothing. ``saved``: see
    ``numbered``.
    """
    settings = resources.settings
    if saved:
        compare(settings.facts, saved)  # again: the dataset or the number of workers may have changed since
    going_on = saved if saved and not saved["finished"] else None
    with _kept(settings.generator or torch.default_generator):
        if saved and "generator" in saved and settings.generator is not None:
            settings.generator.set_state(unpack_random(saved["generator"]))
        # The seed comes after a new order, as in torch; before one that goes on, since what was drawn is drawn again
        # from where the generator stood after the seed.
        order = (
            None if settings.iterable or going_on is not None else Order(settings.index_sampler, step=resources.step)
        )
        seed = _seed(settings, resources.base_seed, saved)
        if going_on is not None and not settings.iterable:
            order = Order(settings.index_sampler, going_on["order"], pending(going_on, drawn=True), resources.step)
        if saved and "dataset" in saved and not settings.iterable:
            load(settings.dataset, saved["dataset"], "dataset")
            resources.end_workers()  # they have the dataset as it was
    resources.base_seed = seed
    return EpochBeginning(resources.epoch, seed, order, going_on)


@contextmanager
def _kept(generator: torch.Generator) -> Iterator[None]:
    """A block that, if it fails, leaves the generator in the state it had before."""
    state = generator.get_state()
    try:
        yield
    except BaseException:
        generator.set_state(state)
        raise


def _seed(settings: Settings, drawn: int | None, saved: dict[str, Any] | None) -> int:
    """The epoch's seed: one draw per iteration, as torch makes it; a resumed epoch then uses its old seed.

    Persistent workers have one seed for all their epochs, so one that follows a finished epoch draws none.
    """
    finished = saved is not None and saved["finished"]
    kept = None if saved is None or (finished and not settings.persistent) else int(saved["base_seed"])
    if drawn is None and not (finished and kept is not None):
        drawn = int(torch.empty((), dtype=torch.int64).random_(generator=settings.generator).item())
    seed = drawn if kept is None else kept
    assert seed is not None
    return seed


def groups(resources: IterationState, beginning: EpochBeginning) -> Source:
    """The groups that the state owes, then those that the order gives: as the features give them.

    Comes before the workers: they are told what makes their samples.
    """
    settings, saved, order = resources.settings, beginning.saved, beginning.order
    assert order is not None
    owed, regrouped = pending(saved) if saved else [], settings.batch_size if settings.own_batches else None
    source: Source = Groups(order, owed, regrouped, batched=settings.batched)
    for part in resources.parts:
        source = part.source(source, (beginning.seed, beginning.epoch), saved)
    return source
