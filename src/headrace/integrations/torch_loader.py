"""Tracing torch's own DataLoader, as it is installed: see where the time goes before switching."""

import copy
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, IterDataPipe, MapDataPipe, get_worker_info

from headrace.engine.iteration_state import new_number
from headrace.engine.trainer.counters import LoaderCounters
from headrace.integrations import transfers
from headrace.observing.tracing import RunTrace
from headrace.observing.tracing_observer import TracingObserver
from headrace.sched.hand import Delivered
from headrace.staging.composition import in_bulk
from headrace.trace import session
from headrace.trace.trace_file import Recording


def traced(loader: Any, path: str | os.PathLike[str] | None = None) -> "TracedLoader":
    """``loader``, a ``torch.utils.data.DataLoader``, recording every sample, operation, batch and wait when iterated.

    Without a ``path``, where ``headrace.tracing`` or HEADRACE_TRACE says. Batches, order and random numbers are the
    loader's own.
    """
    if not isinstance(loader, DataLoader):
        raise TypeError(f"traced(loader) takes a torch.utils.data.DataLoader, not {type(loader).__name__}")
    if getattr(loader, "scheduling", None) is not None:
        msg = "traced(loader): this is a headrace.DataLoader, which records by itself: give it trace=, or iterate it "
        raise TypeError(msg + "within headrace.tracing(path)")
    return TracedLoader(loader, None if path is None else session.checked(path, "trace"))


class TracedLoader:
    """Iterates like the loader it was made from, and has its attributes."""

    def __init__(self, loader: Any, path: str | None) -> None:
        """Starts nothing."""
        self._loader, self._path, self._counters = loader, path, LoaderCounters()
        self._recording: Recording | None = None
        self._clone: Any = None  # with persistent workers, the same for all epochs
        self._epoch, self._first = -1, new_number()  # workers that persist count the epochs themselves

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        self._recording = session.recording(self._path)
        if self._recording is None:
            return iter(self._loader)
        return self._epochs(self._recording)

    def _epochs(self, recording: Recording) -> Iterator[Any]:
        loader = self._loader
        self._epoch += 1
        facts = {
            "epoch": self._epoch,
            "workers": loader.num_workers,
            "automatic": False,
            "batch_size": loader.batch_size,
            "prefetch": loader.prefetch_factor or 0,
            "in_order": getattr(loader, "in_order", True),
            "arrangement": "batches",
            "persistent": loader.persistent_workers,
            "device": None,
            "pin_memory": loader.pin_memory,
            "torch": True,
        }
        trace = RunTrace(recording, self._counters, loader.dataset, self._first + self._epoch, facts)
        if self._clone is None:
            self._clone = _prepared(loader, recording)
        _tag(self._clone, trace.number)
        clone, undo = self._clone, None
        if loader.num_workers == 0:
            undo = _install(loader.dataset, recording, trace.number, batched=loader.batch_sampler is not None)
        else:
            self._clone = clone if loader.persistent_workers else None
        try:
            with transfers.watched():
                yield from _delivered(iter(clone), trace)
        finally:
            if undo is not None:
                undo()


def _delivered(iterator: Any, trace: RunTrace) -> Iterator[Any]:
    """The iterator's batches, each noted, with the copies the program makes of it to a device."""
    while True:
        asked = time.monotonic_ns()
        try:
            parcel = next(iterator)
        except StopIteration:
            trace.ended()
            return
        delivered = Delivered(parcel.batch, parcel.samples, 0, getattr(iterator, "_tasks_outstanding", 0))
        trace.delivered(delivered, asked)
        with transfers.noted(partial(trace.copied, delivered)):
            yield parcel.data


class NumberedBatch:
    """A batch on its way to the training process, with the number it has in the trace."""

    def __init__(self, data: Any, batch: int, samples: int) -> None:
        self.data, self.batch, self.samples = data, batch, samples

    def pin_memory(self, *device: Any) -> "NumberedBatch":
        """The batch in pinned memory, for torch's pinning thread."""
        from torch.utils.data._utils.pin_memory import pin_memory  # noqa: PLC0415  (needed in that thread only)

        return NumberedBatch(pin_memory(self.data, *device), self.batch, self.samples)  # type: ignore[no-untyped-call]


class Tagged(list[Any]):
    """The indices of a batch, with the run's and the batch's number."""

    run = batch = 0

    def __iter__(self) -> Iterator[Any]:
        """Begin the batch when its first index is asked for."""
        _begin(self.run, self.batch)
        return super().__iter__()


class Single:
    """Index of a sample where batching is off."""

    def __init__(self, index: Any, run: int, batch: int) -> None:
        self.index, self.run, self.batch = index, run, batch


class _Sampler:
    """The loader's index sampler; what it gives is numbered."""

    def __init__(self, sampler: Any, *, batched: bool) -> None:
        self._sampler, self._batched, self.run = sampler, batched, 0

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        for number, what in enumerate(self._sampler):
            if self._batched:
                tagged = Tagged(what)
                tagged.run, tagged.batch = self.run, number
                yield tagged
            else:
                yield Single(what, self.run, number)


class _Collate:
    """The loader's collate function, in a worker or not."""

    def __init__(self, collate_fn: Callable[[Any], Any], *, batched: bool) -> None:
        self._collate_fn, self._batched = collate_fn, batched

    def __call__(self, samples: Any) -> NumberedBatch:
        many, start = len(samples) if self._batched else 1, time.monotonic_ns()
        data = self._collate_fn(samples)
        if _now.iterable:
            info = get_worker_info()
            _now.batch += 1 if info is None else info.num_workers
        if _now.observer is not None:
            _now.observer.collated(_now.batch, many, start)
        return NumberedBatch(data, _now.batch, many)


class _Init:
    """The loader's worker_init_fn, and after it our eyes."""

    def __init__(self, init: Callable[[int], Any] | None, recording: Recording, *, batched: bool) -> None:
        self._init, self._recording, self._batched, self.run = init, recording, batched, 0

    def __call__(self, worker: int) -> None:
        info = get_worker_info()
        assert info is not None
        if isinstance(info.dataset, Looked):
            object.__setattr__(info, "dataset", info.dataset.dataset)  # torch lets nobody assign it
        if self._init is not None:
            self._init(worker)
        _install(info.dataset, self._recording, self.run, batched=self._batched, worker=worker)


class _Now:
    """The run, batch and observer of what this process is making."""

    observer: TracingObserver | None = None
    run = 0
    batch = -1
    iterable = False
    get: Callable[[Any], Any] | None = None
    """How a sample is made, noted; or how several are, in bulk."""
    begun: Callable[[], None] | None = None
    """An iterable dataset's epoch begins."""


_now = _Now()


def _begin(run: int, batch: int) -> None:
    _now.run, _now.batch = run, batch
    if _now.observer is not None and _now.observer.stream is not None:
        _now.observer.stream.run(run, time.monotonic_ns())


class Looked:
    """Stands for the loader's dataset before torch's own loop, which is all that sees it: every sample is noted."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index] if _now.get is None else _now.get(_one(index))

    def __iter__(self) -> Iterator[Any]:
        if _now.observer is None or _now.begun is None:
            return iter(self.dataset)
        _now.begun()
        return _Items(_now.observer.items(), iter(self.dataset))

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":  # it is being unpickled, and has none yet
            raise AttributeError(name)
        found = getattr(self.dataset, name)
        if name != "__getitems__" or not found or _now.get is None:
            return found
        bulk = _now.get
        return lambda indices: bulk(_plain(indices))


def _install(dataset: Any, recording: Recording, run: int, *, batched: bool, worker: int = -1) -> Callable[[], None]:
    """Look at every sample the dataset gives in this process, until what is returned is called.

    ``run``: the epoch that begins; the number of each following one is by one higher.
    """
    observer = _now.observer = TracingObserver(dataset, recording, worker=worker)
    _now.iterable = isinstance(dataset, IterableDataset)
    epochs = count(run)

    def begun() -> None:
        info = get_worker_info()
        # Workers make batches in turn: each begins one round before its first, and _Collate adds a round per batch.
        _begin(next(epochs), -1 if info is None else info.id - info.num_workers)

    if _now.iterable:
        _now.begun = begun
    elif batched and (bulk := in_bulk(dataset)) is not None:
        _now.get = observer.bulk(bulk)
    else:
        _now.get = observer.samples(observer.getter())

    def undo() -> None:
        observer.undo()
        _now.observer = _now.get = _now.begun = None

    return undo


class _Items:
    """An iterator whose items are looked at."""

    def __init__(self, item: Callable[[Iterator[Any]], Any], source: Iterator[Any]) -> None:
        self._item, self._source = item, source

    def __iter__(self) -> "_Items":
        return self

    def __next__(self) -> Any:
        return self._item(self._source)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


def _plain(indices: Any) -> Any:
    return list(indices) if isinstance(indices, Tagged) else indices


def _one(index: Any) -> Any:
    if isinstance(index, Single):
        _begin(index.run, index.batch)
        return index.index
    return index


def _prepared(loader: Any, recording: Recording) -> Any:
    """The loader again, with eyes; the user's own is left alone."""
    clone = copy.copy(loader)
    iterable = isinstance(loader.dataset, IterableDataset)
    batched = loader.batch_size is not None if iterable else loader.batch_sampler is not None
    own = vars(clone)  # torch forbids assigning some of these
    piped = isinstance(loader.dataset, (IterDataPipe, MapDataPipe))  # in which torch looks for seeds and shards
    if not iterable and (batched or not piped):
        which = "sampler" if loader.batch_sampler is None else "batch_sampler"
        own[which] = _Sampler(getattr(loader, which), batched=loader.batch_sampler is not None)
    if not piped:
        own["dataset"] = Looked(loader.dataset)
    own["collate_fn"] = _Collate(loader.collate_fn, batched=batched)
    own["worker_init_fn"] = _Init(loader.worker_init_fn, recording, batched=batched)
    own["_iterator"] = None  # the user's own, with persistent workers that know nothing of all this
    return clone


def _tag(clone: Any, run: int) -> None:
    """The next epoch is that run."""
    clone.worker_init_fn.run = run
    for sampler in (vars(clone)["sampler"], vars(clone)["batch_sampler"]):
        if isinstance(sampler, _Sampler):
            sampler.run = run
