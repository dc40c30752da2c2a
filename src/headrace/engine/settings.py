"""A loader's arguments: what they must be, as an iteration finds them, and what follows from them."""

import multiprocessing
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any

import torch
from torch.utils.data import IterableDataset

from headrace.core.options import Loading, OnError, Scheduling
from headrace.engine.members import bulk_of
from headrace.engine.memory.reservation import Extent
from headrace.engine.ordering.state_signature import length, of_loader
from headrace.engine.trainer.cores import most_lanes
from headrace.engine.worker.randomness import generators
from headrace.plan.lookahead import USUAL
from headrace.sched.epochs.trainer_commands import Arrangement
from headrace.sched.ledger_story import RECORDS


@dataclass(frozen=True, slots=True)
class Settings:
    """A loader's arguments, as they are when an iteration begins."""

    given: Any
    """The dataset as the user gave it, or a ``Subset`` for one that is a part."""
    dataset: Any
    """The same, or prepared for a feature."""
    index_sampler: Any
    iterable: bool
    batched: bool
    own_batches: bool
    """Batches are cut by ``batch_size``; False when the user's batch sampler composes them."""
    batch_size: int | None
    drop_last: bool
    collate_fn: Callable[[Any], Any]
    workers: int
    adaptive: bool
    """The number of workers is a start, and follows demand."""
    prefetch: int
    """Batches per worker that are made ahead."""
    looks_ahead: bool
    """That is a start, and follows what slow samples hold up."""
    persistent: bool
    in_order: bool
    timeout: float
    worker_init_fn: Callable[[int], Any] | None
    context: BaseContext
    generator: torch.Generator | None
    pin_memory: bool
    device: Any
    on_device: bool
    """Samples are brought encoded, and ``collate_fn`` makes bundles of them."""
    on_error: OnError
    loading: Loading
    scheduling: Scheduling
    traced: bool
    """What happens to samples and batches is recorded."""
    cached: bool
    """Samples may come from a cache."""
    singly: bool
    """Samples are made one by one, whatever the dataset offers."""
    reported: int | None
    """What an iterable dataset said of its length, if it was asked."""

    @property
    def arrangement(self) -> Arrangement:
        """The way samples become batches."""
        if self.in_order:
            return Arrangement.STRICT
        return Arrangement.FREE if self.batched and self.own_batches and not self.bulk else Arrangement.BATCHES

    @property
    def bulk(self) -> bool:
        """Samples are made a batch at a time."""
        return not self.singly and bulk_of(self.dataset) is not None

    @property
    def extent(self) -> Extent:
        """The most work that there can be at once."""
        working = most_lanes() if self.adaptive else self.workers
        most = max(working, self.workers)
        rows = None
        if self.own_batches or self.iterable:
            # A batch sampler may be told another size after the loader was made; it is the one that is asked.
            rows = max(self.batch_size or 1, getattr(self.index_sampler, "batch_size", None) or 1)
        told = RECORDS if self.scheduling.story else 0
        return Extent(most + self.scheduling.spares_for(most), self.prefetch * most, rows, told)

    @property
    def samples(self) -> int | None:
        """The number of samples in an epoch, if that is known."""
        batches = length(self.index_sampler)
        inner = getattr(self.index_sampler, "sampler", None)
        return length(inner) if self.batched and batches is not None else batches

    @property
    def facts(self) -> dict[str, Any]:
        """The facts about the loader that are part of its states."""
        return of_loader(
            self.dataset, self.index_sampler, self.batch_size, iterable=self.iterable, workers=self.workers
        )


@dataclass(frozen=True, slots=True)
class Leeway:
    """The choices that were left to a loader when it was made: torch fills them in, and its attributes do not tell
    afterwards.
    """

    workers: bool
    """How many there are."""
    lookahead: bool
    """How many batches are made ahead."""
    batches: bool
    """Which samples make one: the user gave no batch sampler."""
    shuffles: bool
    """That he asked for ``shuffle``."""


def chosen(name: str, value: Any, kinds: tuple[type, ...], default: Any) -> Any:
    """``value`` if it is one of ``kinds``, the default for None."""
    if value is None:
        return default
    if not isinstance(value, kinds):
        names = " or ".join(f"headrace.{kind.__name__}(...)" for kind in kinds)
        raise TypeError(f"{name}= takes {names}, not {value!r}")
    return value


def loading(value: Loading | None, dataset: Any) -> Loading:
    """The option ``loading=``, checked against the dataset."""
    found: Loading = chosen("loading", value, (Loading,), Loading())
    if found.repeats and not isinstance(dataset, IterableDataset):
        msg = f"loading=Loading(repeats=True) speaks of an iterable dataset, and {type(dataset).__name__} is none"
        raise ValueError(msg)
    return found


def settings(loader: Any, leeway: Leeway) -> Settings:
    """The settings that a loader's attributes give now, without its features."""
    iterable = isinstance(loader.dataset, IterableDataset)
    return Settings(
        given=loader.dataset,
        dataset=loader.dataset,
        index_sampler=loader._index_sampler,  # noqa: SLF001  (what torch's own iterators draw from)
        iterable=iterable,
        batched=loader._auto_collation,  # noqa: SLF001  (as they ask)
        own_batches=leeway.batches,
        batch_size=loader.batch_size,
        drop_last=loader.drop_last,
        collate_fn=loader.collate_fn,
        workers=loader.num_workers,
        adaptive=leeway.workers,
        prefetch=USUAL if loader.prefetch_factor is None else loader.prefetch_factor,
        looks_ahead=leeway.lookahead and loader.prefetch_factor in (None, USUAL),
        persistent=loader.persistent_workers and loader.num_workers > 0,
        in_order=_keeps_order(loader, leeway) if loader.in_order is None else loader.in_order,
        timeout=vars(loader)["timeout"],  # as it was given: read as an attribute it may be signed for accelerate
        worker_init_fn=loader.worker_init_fn,
        context=_context(loader, leeway),
        generator=loader.generator,
        pin_memory=loader.pin_memory,
        device=loader.device,
        on_device=False,
        on_error=loader.on_error,
        loading=loader.loading,
        scheduling=loader.scheduling,
        traced=False,
        cached=False,
        singly=False,
        reported=loader._IterableDataset_len_called if iterable else None,  # noqa: SLF001  (as they warn by)
    )


def _context(loader: Any, leeway: Leeway) -> BaseContext:
    """The way workers are started: as was asked, or as this Python does; workers that nobody asked for are forked.

    Forked workers need nothing of the program, no more than torch's loader without workers: neither a main guard nor a
    dataset that can be pickled.
    """
    if loader.multiprocessing_context is not None:
        return loader.multiprocessing_context  # type: ignore[no-any-return]
    asked = multiprocessing.get_start_method(allow_none=True)  # asking otherwise would settle it
    usual = "fork" if leeway.workers else multiprocessing.get_all_start_methods()[0]
    return multiprocessing.get_context(asked or usual)


def _keeps_order(loader: Any, leeway: Leeway) -> bool:
    """The meaning of ``in_order=None``: completion order only if the order was ours to draw, from no fixed seed."""
    ours = leeway.shuffles and getattr(loader.batch_sampler, "sampler", loader.sampler) is loader.sampler
    asked = loader.generator is not None or torch.are_deterministic_algorithms_enabled() or generators.are_seeded()
    return not ours or asked


def warn_about_pinning(pin_memory_device: str) -> None:
    """Warn as torch does about ``pin_memory=True`` at ``iter()``. For what that calls: the user's line is named."""
    if pin_memory_device:
        warnings.warn(
            "pin_memory_device is deprecated, the current accelerator will be used as the device,"
            f"ignore pin_memory_device='{pin_memory_device}'.",
            stacklevel=4,
        )
    if not torch.accelerator.is_available():
        warnings.warn(
            "'pin_memory' argument is set as true but no accelerator is found, "
            "then device pinned memory won't be used.",
            stacklevel=4,
        )
