"""Resources that a machine gives a loader, and those that are short. Reading is apart from judging."""

import os
import resource
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.engine.trainer import cgroup
from headrace.engine.trainer.cores import free_memory, machine, own_cores
from headrace.running.meter import Neighbours
from headrace.trace.analysis.advice import Advice
from headrace.trace.analysis.number_format import size

GIB = 1 << 30
SHM = Path("/dev/shm")  # noqa: S108  (looked at, not written to)
LOOK = 0.5
"""Seconds for which other programs are looked at."""
FILES = 4096
"""Open files below which torch's default way of sharing batches runs into the limit."""


@dataclass(frozen=True)
class Machine:
    """Facts."""

    cores: int
    """That the scheduler would let this process run on."""
    quota: float
    """That its control groups let it use; the same where there is no limit."""
    idle: float
    """That no other program kept busy, of all that there are."""
    memory: int
    """Bytes that can still be used."""
    shm: int | None
    """Bytes free in /dev/shm; None where there is none."""
    files: int
    """Files a process may have open."""
    processes: int | None
    """Processes and threads the control group may still start; None where there is no limit."""
    gpus: int
    """Devices of NVIDIA's driver."""
    cuda: bool
    """Whether torch can use one."""

    @classmethod
    def here(cls) -> "Machine":
        """Looks for half a second, and imports torch."""
        import torch  # noqa: PLC0415  (only where CUDA is asked about)

        neighbours = Neighbours()
        time.sleep(LOOK)
        return cls(
            cores=len(os.sched_getaffinity(0)),
            quota=own_cores(),
            idle=machine()[1] - neighbours.cores(),
            memory=free_memory(),
            shm=shutil.disk_usage(SHM).free if SHM.is_dir() else None,
            files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            processes=cgroup.processes(cgroup.controller("pids")),
            gpus=len(list(Path("/proc/driver/nvidia/gpus").glob("*"))),
            cuda=torch.cuda.is_available(),
        )


def concerns(machine: Machine) -> tuple[Advice, ...]:
    """Resources that are short, with what to set; empty where all is well."""
    return tuple(_concerns(machine))


def _concerns(machine: Machine) -> Iterator[Advice]:
    if machine.quota <= 0.9 * machine.cores:
        yield Advice(
            f"OMP_NUM_THREADS={max(1, int(machine.quota))}",
            f"The control group allows {machine.quota:.1f} of the {machine.cores} cores that programs see. Libraries "
            "start threads for all of them, which then wait for each other; headrace counts what is allowed.",
        )
    if machine.idle < 0.9 * machine.quota:
        yield Advice(
            "other programs",
            f"They leave {max(machine.idle, 0.0):.1f} cores idle of the {machine.quota:g} that a program may use here. "
            "Loaders get less than on a machine of their own, and times that are measured now are not to be trusted.",
        )
    if machine.memory < 2 * GIB:
        text = f"{size(machine.memory)} of memory are left, within the limits of the control group."
        yield Advice("num_workers", text + " Every worker takes some: fewer of them, or smaller batches.")
    if machine.shm is None or machine.shm < GIB:
        there = "is not there" if machine.shm is None else f"has {size(machine.shm)} left"
        yield Advice(
            "--shm-size=8g",
            f"{SHM} {there}: torch's loader moves batches through it, and a full one ends workers with a bus error. "
            "headrace's loader does not use it; a cache shm://... does. (The setting is Docker's.)",
        )
    if machine.files < FILES:
        text = f"A process may open {machine.files} files. torch's loader takes one for every tensor on its way."
        yield Advice("ulimit -n 65536", text)
    if machine.processes is not None and machine.processes < 16 * machine.cores:
        yield Advice("pids limit", f"The control group allows {machine.processes} more processes and threads.")
    if machine.gpus and not machine.cuda:
        yield Advice("torch with CUDA", f"There are {machine.gpus} GPUs, and this torch cannot use them.")
