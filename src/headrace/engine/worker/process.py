"""The process that makes samples: how it starts, ends with its parent, and what it does between."""

import gc
import os
import select
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data._utils import worker as torch_worker

from headrace.engine.worker import collation, failure, generators, signals
from headrace.engine.worker.desk import Desk
from headrace.engine.worker.job import Job
from headrace.engine.worker.making import SampleMaker
from headrace.engine.worker.observer import Observer
from headrace.engine.worker.seeding import seed_worker
from headrace.engine.worker.streaming import StreamMaker
from headrace.sched import words as W


def main(job: Job) -> None:
    """Run until told to stop. The parent decides about Ctrl-C; its death is ours."""
    gc.freeze()  # what was inherited is the parent's to collect: doing it here would copy its pages, or touch its GPU
    signals.disown(job.mask)
    _follow(job.parent)
    torch.set_num_threads(1)
    if hasattr(torch.multiprocessing, "_set_thread_name"):
        torch.multiprocessing._set_thread_name("pt_data_worker")  # noqa: SLF001  (as torch's own workers are named)
    seed_worker(job.base_seed, job.lane)
    task = job.task
    torch_worker._worker_info = torch_worker.WorkerInfo(  # noqa: SLF001  (what get_worker_info() reads)
        id=job.lane, num_workers=job.lanes, seed=job.base_seed + job.lane, dataset=task.dataset
    )
    desk = Desk(job)
    desk.words[desk.lane + W.L_STAGE] = W.INITIALIZING
    collation.install(desk.allocate)
    seeds = generators.Watch()
    refusal = _refusal(job, task.worker_init_fn)
    if task.worker_init_fn is not None and task.seed_samples and seeds.seeded():
        task = replace(task, seed_samples=False)  # the user has seeded this worker: its samples draw from that
        job = replace(job, task=task)
    observer = Observer(task.dataset, task.recording, desk)  # after worker_init_fn, which may set the transforms
    maker: StreamMaker | SampleMaker
    maker = StreamMaker(job, desk, observer, refusal) if task.iterable else SampleMaker(job, desk, observer, refusal)
    desk.words[desk.lane + W.L_STAGE] = W.AT_WORK
    maker.run()


def _refusal(job: Job, init: Callable[[int], Any] | None) -> bytes | None:
    """Why this worker can make no sample: ``worker_init_fn`` raised."""
    try:
        if init is not None:
            init(job.lane)
    except failure.LEAVING:
        raise
    except BaseException as error:  # noqa: BLE001  (the user's function; raised again in the training process)
        return failure.pack(error, f"in DataLoader worker process {job.lane}", fatal=True)
    return None


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

    threading.Thread(target=wait, name="headrace-parent", daemon=True).start()
