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

from headrace.core.errors import HeadraceError
from headrace.engine.worker import collation, failure
from headrace.engine.worker.making import SampleMaker
from headrace.engine.worker.memory import WorkerMemory
from headrace.engine.worker.randomness import generators
from headrace.engine.worker.randomness.seeding import seed_worker
from headrace.engine.worker.startup import signals
from headrace.engine.worker.startup.job import Job
from headrace.engine.worker.streaming import StreamMaker

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
    seen = None if task.worker_init_fn is None else task.making.look(task.dataset)
    refusal = _refusal(job, task.worker_init_fn)
    if task.worker_init_fn is not None and task.seed_samples and seeds.seeded():
        task = replace(task, seed_samples=False)  # the user has seeded this worker: its samples draw from that
        job = replace(job, task=task)
    maker = task.making.plain(task.dataset)
    if refusal is None:
        try:
            maker = task.making.maker(task.dataset, job.lane, seen, late=job.late)
        except HeadraceError as error:
            refusal = failure.pack(error, f"in DataLoader worker process {job.lane}", fatal=True)
    observer = task.observing.observer(task.dataset, memory)  # after worker_init_fn, which may set the transforms
    loop: StreamMaker | SampleMaker
    if task.iterable:
        loop = StreamMaker(job, memory, observer, refusal)
    else:
        loop = SampleMaker(job, memory, observer, refusal, maker)
    # Last: whoever is kept waiting until here is told that this worker is starting, or in worker_init_fn.
    memory.facts.work()
    loop.run()


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
