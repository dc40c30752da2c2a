"""``headrace.DataLoader``: torch's signature, turned into a run."""

import copy
import os
import warnings
import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, IterDataPipe, MapDataPipe, Sampler

from headrace.cache.options import Cache
from headrace.core.errors import StateMismatch
from headrace.core.options import Loading, OnError, Raise, Scheduling, Skip
from headrace.core.stats import Stats
from headrace.engine.assembly import IterationAssembly
from headrace.engine.consumer import saved
from headrace.engine.consumer.beacon import Beacon
from headrace.engine.consumer.cores import automatic_workers
from headrace.engine.consumer.tally import Tally
from headrace.engine.course import Course
from headrace.engine.farewell import Farewell
from headrace.engine.iteration import Iteration
from headrace.engine.memory.slab import Shelf
from headrace.engine.resources import Resources
from headrace.engine.settings import Settings
from headrace.engine.staging.stages import check_staged
from headrace.engine.worker import generators
from headrace.engine.worker.brought import Rows
from headrace.engine.worker.signals import held
from headrace.engine.worker.stateful import is_stateful
from headrace.integrations import accelerate
from headrace.plan.lookahead import USUAL
from headrace.trace import session
from headrace.trace.file import Recording

T_co = TypeVar("T_co", covariant=True)


class DataLoader(TorchDataLoader, Generic[T_co]):  # type: ignore[type-arg]  # torch 2.14 and later may have two
    """A ``torch.utils.data.DataLoader`` whose batches never wait for a slow sample.

    All of torch's arguments keep their meaning, with two defaults of our own: ``num_workers=None`` starts one worker
    per core this process may use, and ``in_order=None`` gives batches of the samples that finish first when the loader
    itself shuffles and nothing asks for reproducibility, and sampler order otherwise. Beyond torch's:

    ``device``: batches arrive there (``"cuda"``, ``"cuda:1"``), copied ahead on a stream of their own.
    ``on_error``: ``Raise()`` (default) or ``Skip(max_fraction=...)``.
    ``loading``: ``Loading(seeding=..., memory_limit=...)``.
    ``scheduling``: ``Scheduling(hand_off=..., spares=...)``.
    ``cache``: ``Cache(url, size=...)``, which keeps samples for later epochs and other jobs; for datasets in stages.
    ``trace``: a path; what happens to samples and batches is recorded there (see ``headrace.tracing``).

    A loader is used from one thread at a time (but any may close it), may be iterated several times at once, and ends
    its workers with each iteration, with ``close()``, or as a context manager.
    """

    _is_accelerate_prepared = accelerate.Asked()
    timeout = accelerate.Signed()

    def __init__(  # noqa: PLR0913, PLR0917  (torch's signature)
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
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
        on_error: OnError | None = None,
        loading: Loading | None = None,
        scheduling: Scheduling | None = None,
        trace: str | os.PathLike[str] | None = None,
        cache: Cache | None = None,
    ) -> None:
        """Validates, starts nothing, draws nothing."""
        self.trace = session.checked(trace)
        self.device = device
        self.on_error = _chosen("on_error", on_error, (Raise, Skip), Raise())
        self.loading = _chosen("loading", loading, (Loading,), Loading())
        self.scheduling = _chosen("scheduling", scheduling, (Scheduling,), Scheduling())
        self.cache = _chosen("cache", cache, (Cache,), None)
        if self.cache is not None:
            check_staged(dataset)
        self._automatic_workers, self._looks_ahead = num_workers is None, prefetch_factor is None
        self._own_batches = batch_sampler is None
        self._own_order = batch_sampler is None and sampler is None
        self._shuffles = bool(shuffle)
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
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
        self._begin_life()
        self._connect()

    def _begin_life(self) -> None:
        """What is not part of the loader's value: counts, memory, iterations."""
        self._tally = Tally()
        self._shelf = Shelf()
        self._course = Course()
        Farewell(self, partial(_give_back, self._shelf, self._course))
        self._iterator: Any = None
        self._recording: Recording | None = None
        self._beacon: Beacon | None = None
        self._latest: Resources | None = None
        self._owner = os.getpid()
        self._inherited: Any = None
        self._live: list[weakref.ref[Resources]] = []  # replaced, never changed: another thread may close them

    def _connect(self) -> None:
        """Where rows lie behind a network and no cache may have them, connect while the caller builds a model."""
        rows = Rows.of(self.dataset)
        if rows is not None and self.cache is None:
            with held():
                self._course.fetchers.begin(rows.orders(self.loading.prefetch, self.batch_size))

    def __iter__(self) -> Any:
        """Begin an epoch. A process forked from the one that used the loader gets workers and memory of its own."""
        if os.getpid() != self._owner:
            self._owner, self._iterator, self._latest = os.getpid(), None, None
            self._inherited = self._beacon, self._recording  # not ended here: they are the other process's
            self._beacon = self._recording = None
        if isinstance(self.dataset, _PIPES):
            return super().__iter__()  # deprecated in torch; its own machinery shuffles and shards them
        if self.persistent_workers and self.num_workers > 0:
            iteration, self._iterator = self._iterator, None  # one that cannot begin is not tried again
            if iteration is None or iteration.resources.closing:
                iteration = self._new_iteration()
            else:
                iteration.reset()
            self._latest, self._iterator = iteration.resources, iteration
            return iteration
        return self._new_iteration()

    def _new_iteration(self) -> Iteration:
        if not self._automatic_workers:
            self.check_worker_number_rationality()
        self._warn_about_pinning()
        self._recording = session.recording(self.trace)
        if self._beacon is None:
            with held():
                self._beacon = Beacon(self._tally, type(self.dataset).__name__)
        assembly = IterationAssembly(
            self._settings(), self._tally, self._shelf, self._course, self._beacon, self._reported_length()
        )
        self._live = [*(live for live in self._live if live() is not None), weakref.ref(assembly.resources)]
        iteration = Iteration(assembly)
        self._latest = assembly.resources  # until now, the state is that of the epoch before
        return iteration

    def _settings(self) -> Settings:
        return Settings(
            dataset=self.dataset,
            index_sampler=self._index_sampler,
            iterable=isinstance(self.dataset, IterableDataset),
            batched=self._auto_collation,
            own_batches=self._own_batches,
            own_order=self._own_order,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            collate_fn=self.collate_fn,
            workers=self.num_workers,
            adaptive=self._automatic_workers,
            prefetch=USUAL if self.prefetch_factor is None else self.prefetch_factor,
            looks_ahead=self._looks_ahead and self.prefetch_factor in (None, USUAL),
            persistent=self.persistent_workers and self.num_workers > 0,
            in_order=self._keeps_order() if self.in_order is None else self.in_order,
            timeout=vars(self)["timeout"],  # as it was given: read as an attribute it may be signed for accelerate
            worker_init_fn=self.worker_init_fn,
            context=self.multiprocessing_context,
            generator=self.generator,
            pin_memory=self.pin_memory,
            device=self.device,
            on_error=self.on_error,
            loading=self.loading,
            scheduling=self.scheduling,
            recording=self._recording,
            cache=self.cache,
        )

    def _keeps_order(self) -> bool:
        """What ``in_order=None`` means: completion order only where the order was ours to draw, from no fixed seed."""
        ours = self._shuffles and getattr(self.batch_sampler, "sampler", self.sampler) is self.sampler
        asked = self.generator is not None or torch.are_deterministic_algorithms_enabled() or generators.are_seeded()
        return not ours or asked

    def _reported_length(self) -> int | None:
        reported: int | None = self._IterableDataset_len_called
        return reported if isinstance(self.dataset, IterableDataset) else None

    def _warn_about_pinning(self) -> None:
        """What torch says about ``pin_memory`` at the same moment."""
        if not self.pin_memory:
            return
        if self.pin_memory_device:
            warnings.warn(
                "pin_memory_device is deprecated, the current accelerator will be used as the device,"
                f"ignore pin_memory_device='{self.pin_memory_device}'.",
                stacklevel=4,
            )
        if not torch.accelerator.is_available():
            warnings.warn(
                "'pin_memory' argument is set as true but no accelerator is found, "
                "then device pinned memory won't be used.",
                stacklevel=4,
            )

    def state_dict(self) -> dict[str, Any]:
        """Where the newest iteration stands: exact in any order, JSON-serialisable with torch's samplers.

        Samples that were prepared but not delivered count as not delivered. Loaded into a new loader, the next
        iteration delivers exactly the rest of the epoch, whatever its number of workers.
        """
        if self._course.saved is not None:
            return copy.deepcopy(self._course.saved)
        if self._latest is None:
            return {}
        state: dict[str, Any] = {"version": saved.VERSION, "loader": self._settings().facts.plain()}
        state |= saved.plain(copy.deepcopy(self._latest.standing(self.generator)))
        if is_stateful(self.dataset) and not isinstance(self.dataset, IterableDataset):
            state["dataset"] = copy.deepcopy(self.dataset.state_dict())
        return saved.sealed(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where ``state`` was taken, at the next ``iter()``. An empty state starts over.

        Raises ``StateMismatch`` for whatever is not a state of a loader like this one, and is then as it was. The
        state stays loaded until the epoch that goes on from it has delivered a batch.
        """
        if isinstance(self.dataset, _PIPES) and state:
            msg = "load_state_dict(state): data pipes run on torch's own engine, which has no state"
            raise StateMismatch(msg)
        if state == {}:
            self._course.epoch, self._course.saved, self._latest = 0, None, None
            return
        checked = copy.deepcopy(saved.checked(state))
        saved.compare(checked, self._settings().facts)
        self._course.saved = checked

    def stats(self) -> Stats:
        """What was counted since the loader was made."""
        if self._latest is not None:
            self._latest.count()
        return self._tally.snapshot()

    def close(self) -> None:
        """End the workers of persistent and unfinished iterations and give the memory back; idempotent.

        Batches stay valid. The loader can be iterated again. Any thread may call it: whoever asks an iteration that had
        not delivered all of its epoch for more, or waits for it, gets ``LoaderClosed``.
        """
        with held(), ExitStack() as closing:  # whatever raises, the others are closed
            self._iterator = None
            closing.callback(self._course.memberships.close)
            closing.callback(self._course.fetchers.close)
            closing.callback(self._shelf.close)
            for resources in filter(None, [live() for live in self._live]):
                closing.callback(resources.close)
            self._recording = self._beacon = None

    def __enter__(self) -> "DataLoader[T_co]":
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Its arguments; not its counts, workers and memory."""
        return {name: value for name, value in self.__dict__.items() if name not in _LIFE}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A loader that has not been iterated."""
        self.__dict__.update(state)
        self._begin_life()


_PIPES = (IterDataPipe, MapDataPipe)
_LIFE = frozenset(
    {"_tally", "_shelf", "_course", "_iterator", "_recording", "_beacon", "_latest", "_live", "_owner", "_inherited"}
)


def _give_back(shelf: Shelf, course: Course) -> None:
    """When a loader is gone: what it kept from one iteration to the next."""
    with ExitStack() as closing:
        closing.callback(course.memberships.close)
        closing.callback(course.fetchers.close)
        closing.callback(shelf.close)


def _chosen(name: str, value: Any, kinds: tuple[type, ...], default: Any) -> Any:
    """``value`` if it is one of ``kinds``, the default for None."""
    if value is None:
        return default
    if not isinstance(value, kinds):
        names = " or ".join(f"headrace.{kind.__name__}(...)" for kind in kinds)
        msg = f"{name}= takes {names}, not {value!r}"
        raise TypeError(msg)
    return value
