"""A thread of the trainer's that does one job after the other, beside the training step."""

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Generic, TypeVar

Job = TypeVar("Job")


class JobThread(Generic[Job]):
    """Started when it is needed, ended with the epoch, and started again. Used from the trainer's thread only."""

    def __init__(self, name: str, work: Callable[[Iterator[Job]], None]) -> None:
        """``work`` is the thread: it is given the jobs, in their order, as long as there are any to come.

        It must keep none of them while it waits for the next: a job's batch is the trainer's to keep.
        """
        self._name, self._work = name, work
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []  # one; two if an interrupt came while it was started

    def start(self) -> None:
        """Start it, unless it runs."""
        if any(thread.ident is not None for thread in self._threads):
            return
        jobs = iter(self._jobs.get, None)
        thread = threading.Thread(target=self._work, args=(jobs,), name=self._name, daemon=True)
        self._threads.append(thread)  # before it runs: whatever interrupts this, ``finish`` ends it
        thread.start()

    def put(self, job: Job) -> None:
        """Add a job."""
        self._jobs.put(job)

    def finish(self) -> None:
        """Wait until all jobs are done and the thread has ended."""
        jobs, threads = self._jobs, self._threads
        self._jobs, self._threads = SimpleQueue(), []
        for _ in threads:
            jobs.put(None)
        for thread in threads:
            if thread.ident is not None:
                thread.join()
