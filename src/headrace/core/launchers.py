"""Information that launchers give a process about the others on its host. Pure."""

import re
from collections.abc import Mapping

RANKS = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
"""How many processes of a training are on this host: torchrun's and accelerate's word, Open MPI's, MPICH's."""
TASKS = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE")
"""How many tasks Slurm runs on each host, as ``8`` or ``8(x2),4``: of a step of srun, of the whole job."""
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def local_ranks(environment: Mapping[str, str]) -> int:
    """Processes of this training on this host, which share its cores and memory; 1 where no launcher says."""
    told = [environment.get(name, "") for name in RANKS]
    return next((int(number) for number in told if number.isdecimal() and int(number)), slurm_tasks(environment))


def slurm_tasks(environment: Mapping[str, str]) -> int:
    """Slurm's tasks on this host, each with its own part of the cores; 1 without Slurm."""
    node = environment.get("SLURM_NODEID", "0")
    for name in TASKS:
        parts = [_TASKS.fullmatch(part) for part in environment.get(name, "").split(",")]
        counts = [int(part[1]) for part in parts if part is not None for _ in range(min(int(part[2] or 1), 1 << 16))]
        if counts:
            return max(1, counts[min(int(node) if node.isdecimal() else 0, len(counts) - 1)])
    return 1


def cores(environment: Mapping[str, str], there: float) -> float:
    """The part of the cores that this process may run on.

    Slurm says how many each of its tasks has: processes of one task share those.
    """
    ranks, given = local_ranks(environment), environment.get("SLURM_CPUS_PER_TASK", "")
    if given.isdecimal() and int(given):
        return min(there, int(given)) / max(1.0, ranks / slurm_tasks(environment))
    return there / ranks
