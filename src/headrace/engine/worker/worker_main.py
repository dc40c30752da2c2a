"""The process that makes samples: how it starts, ends with its parent, and what it does between."""

import gc
import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import worker as torch_worker

from headrace.caching.counts import Counter
from headrace.caching.staged import Staged
from headrace.core.errors import CacheError
from headrace.engine.worker import collation, failure, generators, signals
from headrace.engine.worker.job import Job
from headrace.engine.worker.making import SampleMaker
from headrace.engine.worker.memory import WorkerMemory
from headrace.engine.worker.seeding import seed_worker
from headrace.engine.worker.streaming import StreamMaker
from headrace.fetching.fetched import FetchedDataset
from headrace.observing.observer import Observer
from headrace.staging import stages

BLOCK = 16 << 20
"""Twice this is kept free: a chunk of samples that take a millisecond and half a megabyte each is a third of it."""


def main(job: Job) -> None:
    """Run until told to stop. The parent decides about Ctrl-C; its death is ours."""
    gc.freeze()  # what was inherited is the parent's to collect: doing it here would copy its pages, or touch its GPU
    # Before anything else: until here the handlers are the trainer's, and would run its code in this process.
    signals.disown(job.mask)
    _follow(job.parent)
    _keep_heap()
    # As torch has it in its workers: there is one of them for every core already.
    torch.set_num_threads(1)
    set_name("pt_data_worker")  # as torch's own
    seed_worker(job.base_seed, job.lane)
    task = job.task
    torch_worker._worker_info = torch_worker.WorkerInfo(  # noqa: SLF001  (what get_worker_info() reads)
        id=job.lane, num_workers=job.lanes, seed=job.base_seed + job.lane, dataset=task.dataset
    )
    memory = WorkerMemory(job)
    memory.facts.initialize()
    collation.install(memory.allocate, memory.locate)
    seeds = generators.SeedWatch()
    told = stages.unasked(task.dataset) if task.caching is not None and task.worker_init_fn is not None else None
    refusal = _refusal(job, task.worker_init_fn)
    if task.worker_init_fn is not None and task.seed_samples and seeds.seeded():
        task = replace(task, seed_samples=False)  # the user has seeded this worker: its samples draw from that
        job = replace(job, task=task)
    brought: FetchedDataset | Staged
    if task.caching is None or (refusal := refusal or _changed(job, told)) is not None:
        brought = task.brings(task.dataset, task.arena)
    else:
        counter = Counter.of_worker(task.caching.counts, job.lane)
        keeping: Staged = task.brings_staged(task.dataset, task.caching, counter, None, task.arena)
        if job.late:
            keeping.stay_away()
        brought = keeping
    observer = Observer(task.dataset, task.recording, memory)  # after worker_init_fn, which may set the transforms
    maker: StreamMaker | SampleMaker
    if task.iterable:
        maker = StreamMaker(job, memory, observer, refusal)
    else:
        maker = SampleMaker(job, memory, observer, refusal, brought)
    # Last: whoever is kept waiting until here is told that this worker is starting, or in worker_init_fn.
    memory.facts.work()
    maker.run()


def set_name(name: str) -> None:
    """Set the name that ``ps`` shows for this process."""
    if hasattr(torch.multiprocessing, "_set_thread_name"):
        torch.multiprocessing._set_thread_name(name)  # noqa: SLF001  (by which torch does so too)


def _refusal(job: Job, init: Callable[[int], Any] | None) -> bytes | None:
    """The packed error that says why this worker can make no sample: ``worker_init_fn`` raised."""
    try:
        if init is not None:
            init(job.lane)
    except failure.LEAVING:
        raise
    except BaseException as error:  # noqa: BLE001  (the user's function; raised again in the training process)
        return failure.pack(error, f"in DataLoader worker process {job.lane}", fatal=True)
    return None


def _changed(job: Job, told: str | None) -> bytes | None:
    """The packed error that says why this worker must not use the cache: ``worker_init_fn`` made another dataset of
    the one it was told of.
    """
    if told is None:
        return None
    error = CacheError(
        "worker_init_fn changes what the dataset's samples are, and with cache= all workers must agree about that: "
        "change the dataset before it is given to the loader"
    )
    try:
        stages.check_staged(job.task.dataset)
        if stages.unasked(job.task.dataset) == told:
            return None
    except CacheError as refused:
        error = refused
    return failure.pack(error, f"in DataLoader worker process {job.lane}", fatal=True)


def _keep_heap() -> None:
    """Have the allocator keep what a chunk's samples leave: the next chunk takes it again.

    glibc returns the end of its heap to the kernel whenever more is free there than twice the largest block that was
    ever mapped by itself and freed. That would be at every chunk, or never, as chance lays the heap out, and all pages
    would be faulted in again. This is such a block; none of it is touched. Limits that the user has set stay.
    """
    with suppress(MemoryError):  # of address space, where that is limited
        np.empty(BLOCK, np.uint8)


def _follow(parent: int) -> None:
    """End this process when ``parent`` does, whatever it is busy with."""
    try:
        watched = os.pidfd_open(parent)
    except ProcessLookupError:
        os._exit(1)

    def wait() -> None:
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        poll.poll()
        os._exit(1)

    # Not PR_SET_PDEATHSIG: that comes when the thread ends that called iter(), though its process goes on.
    threading.Thread(target=wait, name="headrace-parent", daemon=True).start()
