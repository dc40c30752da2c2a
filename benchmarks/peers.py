"""Other libraries that load sample by sample: torchdata.nodes, SPDL, grain.

With threads, which is how each is meant to be used for samples that wait or leave the interpreter
lock; with processes for samples that do not. Where a library has completion order it is used.
grain has none: it restores the order inside a process and takes from its processes in turn.
"""

from __future__ import annotations

import importlib.util
import logging
import multiprocessing
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch.utils.data import Dataset, default_collate

NAMES = {"torchdata.nodes": "torchdata", "SPDL": "spdl", "grain": "grain"}
THREADS, PROCESSES = "threads", "processes"


def installed() -> list[str]:
    """Which of the peers can be imported."""
    return [name for name, module in NAMES.items() if importlib.util.find_spec(module)]


def missing() -> list[str]:
    """Which cannot."""
    return [name for name in NAMES if name not in installed()]


@dataclass(frozen=True)
class Peer:
    """A library with `workers` threads or processes."""

    library: str
    workers: int
    method: str = THREADS

    @contextmanager
    def open(self, dataset: Dataset[Any], *, batch_size: int, **_: Any) -> Iterator[Any]:
        """Something that can be iterated once per epoch; processes outlive the epoch where the library lets them."""
        warnings.filterwarnings("ignore", "'set_vital' is deprecated")  # torchdata 0.11 calls it
        open_ = {
            ("torchdata.nodes", THREADS): _nodes,
            ("torchdata.nodes", PROCESSES): _nodes,
            ("SPDL", THREADS): _spdl_threads,
            ("SPDL", PROCESSES): _spdl_processes,
            ("grain", THREADS): _grain_threads,
            ("grain", PROCESSES): _grain_processes,
        }[self.library, self.method]
        with contextmanager(open_)(dataset, batch_size, self) as epochs:
            yield epochs


def _nodes(dataset: Any, batch_size: int, peer: Peer) -> Iterator[Any]:
    from torchdata import nodes

    samples = nodes.ParallelMapper(
        nodes.IterableWrapper(range(len(dataset))),
        dataset.__getitem__,
        num_workers=peer.workers,
        in_order=False,
        method="thread" if peer.method == THREADS else "process",
        multiprocessing_context=None if peer.method == THREADS else "fork",
    )
    batches = nodes.Mapper(nodes.Batcher(samples, batch_size, drop_last=False), default_collate)
    yield nodes.Loader(nodes.Prefetcher(batches, prefetch_factor=2 * peer.workers))


class _Pipeline:
    """An SPDL pipeline, built anew for each epoch: its threads cost little to start."""

    def __init__(self, load: Any, count: int, batch_size: int, peer: Peer, executor: Any = None) -> None:
        self.load, self.count, self.batch_size, self.peer, self.executor = load, count, batch_size, peer, executor

    def __iter__(self) -> Iterator[Any]:
        from spdl.pipeline import PipelineBuilder

        workers = self.peer.workers
        builder = PipelineBuilder().add_source(range(self.count))
        builder = builder.pipe(self.load, concurrency=workers, executor=self.executor, output_order="completion")
        builder = builder.aggregate(self.batch_size).pipe(default_collate).add_sink(2 * workers)
        # One thread more than samples under way: the one that collates.
        pipeline = builder.build(num_threads=1 if self.executor else workers + 1)
        with pipeline.auto_stop():
            yield from pipeline


def _spdl_threads(dataset: Any, batch_size: int, peer: Peer) -> Iterator[Any]:
    yield _Pipeline(dataset.__getitem__, len(dataset), batch_size, peer)


_inherited: Any = None
"""What forked processes load from: passing the dataset with every index would be charged to the library."""


def _load(index: int) -> Any:
    return _as_arrays(_inherited[index])


def _spdl_processes(dataset: Any, batch_size: int, peer: Peer) -> Iterator[Any]:
    global _inherited  # noqa: PLW0603  (a fork hands it over, and each run is a process of its own)
    _inherited = dataset
    forked = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(peer.workers, mp_context=forked) as executor:
        list(executor.map(int, range(peer.workers)))  # all are forked before SPDL starts its threads
        yield _Pipeline(_load, len(dataset), batch_size, peer, executor)


class _Source(Sequence[Any]):
    """The dataset as grain reads it."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return _as_arrays(self.dataset[int(index)])


def _grain() -> Any:
    logging.getLogger("absl").setLevel(logging.ERROR)  # it warns that there is no jax
    return importlib.import_module("grain")


def _grain_threads(dataset: Any, batch_size: int, peer: Peer) -> Iterator[Any]:
    grain = _grain()
    options = grain.ReadOptions(num_threads=peer.workers, prefetch_buffer_size=500)
    batches = grain.MapDataset.source(_Source(dataset)).to_iter_dataset(options).batch(batch_size)
    yield batches.map(_as_tensors)


def _grain_processes(dataset: Any, batch_size: int, peer: Peer) -> Iterator[Any]:
    """One endless iterator, cut into epochs, for grain starts its processes with each iterator.

    Every process gets each n-th sample and makes whole batches of them, so n divides the batches of an epoch.
    """
    grain = _grain()
    count = -(-len(dataset) // batch_size)
    if len(dataset) % batch_size or count % peer.workers:
        raise ValueError(f"grain's {peer.workers} processes cannot share {len(dataset)} samples in batches equally")
    reading = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2 * batch_size)
    sharing = grain.MultiprocessingOptions(num_workers=peer.workers, per_worker_buffer_size=2)
    samples = grain.MapDataset.source(_Source(dataset)).repeat().to_iter_dataset(reading)
    endless = iter(samples.batch(batch_size).mp_prefetch(sharing).map(_as_tensors))
    try:
        yield _Cut(endless, count)
    finally:
        endless.close()


class _Cut:
    """Epochs of `count` batches out of an endless iterator."""

    def __init__(self, endless: Iterator[Any], count: int) -> None:
        self.endless, self.count = endless, count

    def __iter__(self) -> Iterator[Any]:
        return islice(self.endless, self.count)


def _as_arrays(sample: Any) -> Any:
    return tuple(part.numpy() if isinstance(part, torch.Tensor) else part for part in sample)


def _as_tensors(batch: Any) -> Any:
    return tuple(torch.from_numpy(part) for part in batch)
