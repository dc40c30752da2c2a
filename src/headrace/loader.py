"""``headrace.DataLoader``: torch's signature, turned into a run."""

import copy
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, IterDataPipe, MapDataPipe, Sampler

from headrace import assembly
from headrace.assembly import Features
from headrace.core.errors import StateMismatch
from headrace.core.options import Loading, OnError, Raise, Ranks, Scheduling, Skip
from headrace.core.stats import Stats
from headrace.core.story import StoryEvent
from headrace.engine import settings
from headrace.engine.iteration import Iteration
from headrace.engine.iteration_state import IterationState
from headrace.engine.loader_resources import LoaderResources
from headrace.engine.ordering import saved, state_signature
from headrace.engine.ordering.own_order import own_order
from headrace.engine.settings import Settings
from headrace.engine.step import held
from headrace.engine.trainer.cores import automatic_workers
from headrace.engine.worker.stateful import is_stateful
from headrace.integrations import accelerate, lightning, ray_train
from headrace.integrations.signature import Signed

if TYPE_CHECKING:
    from headrace.assembly import Cache, OnDevice, Ray

T_co = TypeVar("T_co", covariant=True)


class DataLoader(TorchDataLoader, Generic[T_co]):  # type: ignore[type-arg]  # torch 2.14 and later may have two
    """A ``torch.utils.data.DataLoader`` whose batches never wait for a slow sample.

    All of torch's arguments keep their meaning, with two defaults of our own: ``num_workers=None`` starts one worker
    per core this process may use, and ``in_order=None`` gives batches of the samples that finish first when the loader
    itself shuffles and nothing asks for reproducibility, and sampler order otherwise. Beyond torch's:

    ``device``: batches arrive there (``"cuda"``, ``"cuda:1"``), copied ahead on a stream of their own.
    ``on_device``: with ``device``, decoding and transforms of pictures run there: ``True`` or ``OnDevice(...)``.
    ``on_error``: ``Raise()`` (default) or ``Skip(max_fraction=...)``.
    ``loading``: ``Loading(seeding=..., memory_limit=...)``.
    ``scheduling``: ``Scheduling(hand_off=..., spares=..., story=...)``.
    ``cache``: ``Cache(url, size=...)``, which keeps samples for later epochs and other jobs; for datasets in stages.
    ``ranks``: ``Ranks(...)``: the loader divides each epoch between ranks, and its states between any number of them.
    ``remote``: ``Ray(cpus=...)``: what this host cannot make in time is made by other hosts' CPUs.
    ``trace``: a path; what happens to samples and batches is recorded there (see ``headrace.tracing``).

    A loader is used from one thread at a time (but any may close it), may be iterated several times at once, and ends
    its workers with each iteration, with ``close()``, or as a context manager.
    """

    _is_accelerate_prepared = accelerate.Asked()
    timeout = Signed(accelerate.taught, ray_train.taught)

    def __init__(  # noqa: PLR0913, PLR0917  (torch's signature)
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | Literal["global"] | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool | None = None,
        device: torch.device | str | None = None,
        on_device: "bool | OnDevice" = False,
        on_error: OnError | None = None,
        loading: Loading | None = None,
        scheduling: Scheduling | None = None,
        trace: str | os.PathLike[str] | None = None,
        cache: "Cache | None" = None,
        ranks: Ranks | None = None,
        remote: "Ray | None" = None,
    ) -> None:
        """Validates, starts nothing, draws nothing."""
        self.trace = assembly.trace_path(trace)
        self.device = device
        self.on_error = settings.chosen("on_error", on_error, (Raise, Skip), Raise())
        self.loading = settings.loading(loading, dataset)
        self.scheduling = settings.chosen("scheduling", scheduling, (Scheduling,), Scheduling())
        self.cache = assembly.cache_options(cache, dataset)
        self.ranks = settings.chosen("ranks", ranks, (Ranks,), None)
        order = None
        if sampler is None and batch_sampler is None:
            memory = self.loading.prefetch.memory
            order = assembly.planned_order(dataset, shuffle, self.ranks, memory=memory, generator=generator)
        elif self.ranks is not None:
            raise ValueError("DataLoader(ranks=...) divides an order of the loader's own: leave sampler out")
        self.remote = assembly.ray_options(remote)
        self._state: Any = None
        self._leeway = settings.Leeway(
            workers=num_workers is None,
            lookahead=prefetch_factor is None,
            batches=batch_sampler is None,
            shuffles=bool(shuffle),
        )
        super().__init__(
            dataset,
            batch_size,
            bool(shuffle) if order is None and shuffle is not None else None,
            sampler if order is None else order,
            batch_sampler,
            automatic_workers() if num_workers is None else num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order is not False,
        )
        # As asked for, so that a loader rebuilt from its attributes chooses for itself again.
        if not isinstance(dataset, _PIPES):
            self.in_order: bool | None = in_order  # type: ignore[assignment]
        self.on_device = assembly.on_device_options(self, on_device)
        self._begin()
        self._features.connect(self)

    def _begin(self) -> None:
        """Set up what is not part of the loader's value: counts, memory, iterations."""
        self._kept = LoaderResources(self)
        self._features = self._kept.features = Features(self, self._kept.counters)
        self._iterator: Any = None
        self._latest: IterationState | None = None

    def __iter__(self) -> Any:
        """Begin an epoch. A process forked from the one that used the loader gets workers and memory of its own."""
        if self._kept.is_inherited:
            self._iterator = self._latest = None
            self._kept.begin_here()
        if isinstance(self.dataset, _PIPES):
            return super().__iter__()  # deprecated in torch; its own machinery shuffles and shards them
        if self.persistent_workers and self.num_workers > 0:
            iteration, self._iterator = self._iterator, None  # one that cannot begin is not tried again
            state = None if self.cache is None else assembly.revision(self.dataset)
            if iteration is not None and state != self._state:
                iteration.close()  # its workers keep, and look for, what the store had before it was written to
            self._state = state
            if iteration is None or iteration.resources.closing:
                iteration = self._new_iteration()
            else:
                iteration.reset()
            self._iterator = iteration
            return self._newest(iteration)
        return self._new_iteration()

    def _new_iteration(self) -> Iteration:
        if not self._leeway.workers:
            self.check_worker_number_rationality()
        if self.pin_memory:
            settings.warn_about_pinning(self.pin_memory_device)
        self._features.record(self.trace)
        plug = partial(self._features.parts, cache=self.cache)
        return self._newest(Iteration(IterationState(self._settings(), self._kept, plug)))

    def _newest(self, iteration: Iteration) -> Iteration:
        """Make this iteration the newest. Until now, the state is that of the epoch before, or the one that was
        loaded.
        """
        self._latest = iteration.resources
        iteration.resources.take_over()
        return iteration

    def _settings(self) -> Settings:
        return self._features.settings(self, settings.settings(self, self._leeway))

    def state_dict(self) -> dict[str, Any]:
        """The position of the newest iteration: exact in any order, JSON-serialisable with torch's samplers.

        Samples that were prepared but not delivered count as not delivered. Loaded into a new loader, the next
        iteration delivers exactly the rest of the epoch, whatever its number of workers.
        """
        if self._kept.saved is not None:
            return copy.deepcopy(self._kept.saved)
        if self._latest is None:
            return {}
        state: dict[str, Any] = {"version": saved.VERSION, "loader": self._settings().facts}
        with self._latest.quiet():
            standing = copy.deepcopy(self._latest.standing(self.generator))
        state |= saved.plain(standing)
        if is_stateful(self.dataset) and not isinstance(self.dataset, IterableDataset):
            state["dataset"] = copy.deepcopy(self.dataset.state_dict())
        return saved.sealed(state)

    def load_state_dict(self, state: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        """Take up where ``state`` was taken, at the next ``iter()``. An empty state starts over.

        With ``ranks=``, it may be the states of all ranks of one moment, of any number of them and in any order: every
        rank that goes on, of any number, is given the same ones.

        Raises ``StateMismatch`` for whatever is not a state of a loader like this one, and is then as it was. The
        state stays loaded until the epoch that goes on from it has delivered a batch.
        """
        if isinstance(self.dataset, _PIPES) and state:
            raise StateMismatch("load_state_dict(state): data pipes run on torch's own engine, which has no state")
        if state == {}:
            self._kept.epoch, self._kept.saved, self._latest = 0, None, None
            return
        order = own_order(self._index_sampler)
        checked = assembly.taken_up(self._index_sampler, state)
        state_signature.compare(self._settings().facts, checked)
        saved.check_exchanged(checked)
        if lightning.is_asking() and self._auto_collation and saved.is_over(checked, self._index_sampler):
            checked = saved.sealed({**checked, "finished": True})
        if order is not None and checked["finished"]:
            order.set_epoch(checked["epoch"] + 1)
        self._kept.saved = checked

    def stats(self) -> Stats:
        """The counts since the loader was made."""
        self._count()
        found, order = self._kept.counters.snapshot(), own_order(self._index_sampler)
        if order is None:
            return found
        return replace(found, network=replace(found.network, order=order.words))

    def story(self, index: Any = None) -> list[StoryEvent]:
        """The events of the sample of this index, and why they happened, oldest first; without an index, all that
        is remembered.

        Each prints as a line. Kept with ``scheduling=Scheduling(story=True)`` and workers.
        """
        if not self.scheduling.story:
            raise ValueError(
                "loader.story(): none is kept; make the loader with scheduling=headrace.Scheduling(story=True)"
            )
        self._count()
        log = self._kept.counters.story
        return log.all() if index is None else log.about(index)

    def _count(self) -> None:
        """Bring what workers know into the counters, while the memory it stands in stays."""
        if self._latest is not None:
            with self._latest.quiet():
                self._latest.count()

    def close(self) -> None:
        """End the workers of persistent and unfinished iterations and give the memory back; idempotent.

        Batches stay valid. The loader can be iterated again. Any thread may call it: whoever asks an iteration that had
        not delivered all of its epoch for more, or waits for it, gets ``LoaderClosed``.
        """
        with held():
            self._iterator = None
            self._kept.close()

    def __enter__(self) -> "DataLoader[T_co]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """The loader's arguments; not its counts, workers and memory."""
        return {name: value for name, value in self.__dict__.items() if name not in _NOT_VALUE}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A loader that has not been iterated."""
        self.__dict__.update(state)
        self._begin()


_PIPES = (IterDataPipe, MapDataPipe)
_NOT_VALUE = frozenset({"_kept", "_features", "_iterator", "_latest"})
