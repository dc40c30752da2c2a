"""The job that a process belongs to: the same for all ranks that a launcher started, and for all loaders of a
process.
"""

import hashlib
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from headrace.core.procfs import stat_of

WORLDS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
OPEN_MPI = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri")
"""Names of a job, and where its launcher is reached: the same for all its ranks, on all hosts."""
ON_HOST = ("PMIX_SERVER_URI2", "PMIX_SERVER_URI21", "PMIX_SERVER_URI41")
"""Where the ranks of a host reach its daemon, at a port that another launch does not have."""
_LOCAL = ("127.", "localhost", "::1")
_own: tuple[int, str] = (0, "")
_resumed: tuple[int, str] = (0, "")


def job() -> str:
    """The job of this process, 16 hexadecimal digits: that of a state it has resumed, or else ``launch``."""
    return _resumed[1] if _resumed[0] == os.getpid() else launch()


def resume(job: str) -> None:
    """Have this process go on with a job that was begun in another."""
    global _resumed  # noqa: PLW0603  (a process has one job, whoever asks)
    _resumed = os.getpid(), job


def launch() -> str:
    """The job of all processes that a launcher started together. One that none started has one of its own."""
    global _own  # noqa: PLW0603  (as above)
    found = launched(os.environ, boot(), os.getppid())
    if found is not None:
        return found
    if _own[0] != os.getpid():
        _own = os.getpid(), secrets.token_hex(8)
    return _own[1]


def launched(environment: Mapping[str, str], host: str, parent: int) -> str | None:
    """The identity of a distributed job, from what its ranks have in common, as launchers tell them; None: this one
    is alone.

    ``host``: the same for all processes of a host, until it is started again. ``parent``: the process that started this
    one.
    """
    ranks = (_number(environment, name) for name in WORLDS)
    world = next((number for number in ranks if number), 0)
    if world < 2:
        return None
    if "TORCHELASTIC_RUN_ID" not in environment and (told := _mpi(environment, host, parent)):
        return _digest(told)
    address = environment.get("MASTER_ADDR", "")
    told = [environment.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "RAY_JOB_ID")]
    told += [environment.get(name, "") for name in ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID")]
    together = _number(environment, "LOCAL_WORLD_SIZE") == world
    slurm = bool(environment.get("SLURM_JOB_ID"))
    if not address and not slurm:
        return None
    if together or address.startswith(_LOCAL):
        told.append(host)  # a second one on another host may have the same address, port and name
    if together and "TORCHELASTIC_RUN_ID" in environment:
        told.append(f"{parent}@{_started(parent)}")
    told.append("" if address.startswith(_LOCAL) else address)
    return _digest(told)


def _mpi(environment: Mapping[str, str], host: str, parent: int) -> list[str]:
    """The facts that all ranks of one ``mpirun`` share; empty where there are none, or it started no ranks."""
    size = _number(environment, "OMPI_COMM_WORLD_SIZE")
    if size > 1:  # Slurm's variables, if there are any, differ between Open MPI's first host and the others
        named = [environment.get(name, "") for name in OPEN_MPI]
        if any(named):
            together = _number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE") == size
            return [*named, *([host, *(environment.get(name, "") for name in ON_HOST)] if together else [])]
    size = _number(environment, "PMI_SIZE")
    if size > 1 and _number(environment, "MPI_LOCALNRANKS") == size:  # MPICH's launcher gives its jobs no names
        return [host, f"{parent}@{_started(parent)}"]
    return []


def _digest(told: Sequence[str]) -> str:
    return hashlib.blake2b("|".join(told).encode(), digest_size=8).hexdigest()


def _number(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment.get(name, "0"))
    except ValueError:
        return 0


def boot() -> str:
    """An identity of the host, the same for all its processes until it is started again."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _started(process: int) -> str:
    """The time when a process was started, so that its number alone does not count."""
    with suppress(OSError, IndexError):
        return stat_of(process)[19]
    return ""
