"""Other libraries that give the first samples to finish, with threads: torchdata.nodes, SPDL, grain."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset, default_collate

NAMES = {"torchdata.nodes": "torchdata", "SPDL": "spdl", "grain": "grain"}


def installed() -> list[str]:
    """Which of the peers can be imported."""
    return [name for name, module in NAMES.items() if importlib.util.find_spec(module)]


def missing() -> list[str]:
    """Which cannot."""
    return [name for name in NAMES if name not in installed()]


@dataclass(frozen=True)
class Threads:
    """A peer with `workers` threads, sample by sample; in completion order where it has one."""

    library: str
    workers: int

    @contextmanager
    def open(self, dataset: Dataset[Any], *, batch_size: int, **_: Any) -> Iterator[Any]:
        """Something that can be iterated once per epoch."""
        make = {"torchdata.nodes": _nodes, "SPDL": _spdl, "grain": _grain}[self.library]
        yield make(dataset, batch_size, self.workers)


def _nodes(dataset: Any, batch_size: int, workers: int) -> Any:
    from torchdata import nodes

    samples = nodes.ParallelMapper(
        nodes.IterableWrapper(range(len(dataset))),
        dataset.__getitem__,
        num_workers=workers,
        in_order=False,
        method="thread",
    )
    batches = nodes.Mapper(nodes.Batcher(samples, batch_size, drop_last=False), default_collate)
    return nodes.Loader(nodes.Prefetcher(batches, prefetch_factor=2 * workers))


def _spdl(dataset: Any, batch_size: int, workers: int) -> Any:
    from spdl.pipeline import PipelineBuilder

    class Epochs:
        def __iter__(self) -> Iterator[Any]:
            builder = PipelineBuilder().add_source(range(len(dataset)))
            builder = builder.pipe(dataset.__getitem__, concurrency=workers, output_order="completion")
            builder = builder.aggregate(batch_size).pipe(default_collate).add_sink(2 * workers)
            pipeline = builder.build(num_threads=workers + 1)
            with pipeline.auto_stop():
                yield from pipeline

    return Epochs()


def _grain(dataset: Any, batch_size: int, workers: int) -> Any:
    import grain

    class Source(Sequence[int]):
        def __len__(self) -> int:
            return len(dataset)

        def __getitem__(self, index: Any) -> Any:
            sample, number = dataset[int(index)]
            return sample.numpy(), number

    options = grain.ReadOptions(num_threads=workers, prefetch_buffer_size=500)
    return grain.MapDataset.source(Source()).to_iter_dataset(options).batch(batch_size)
