"""Which job a process belongs to, as launchers tell it."""

import os
from pathlib import Path

import pytest

from headrace.cache import job_identity
from headrace.cache.job_identity import launched

STATIC = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
ALONE = STATIC | {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}
NODES = STATIC | {"MASTER_ADDR": "node1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "prterun-node1-4711@1",
}
MPICH = {"PMI_SIZE": "4", "MPI_LOCALNRANKS": "4", "PMI_FD": "9"}
SLURM = {"SLURM_NTASKS": "8", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "WORLD_SIZE": "8"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((ALONE | {"RANK": "0"}, "a", 1), (ALONE | {"RANK": "3"}, "a", 1)),
        ((NODES | {"RANK": "0"}, "a", 1), (NODES | {"RANK": "7"}, "b", 2)),
        ((SLURM | {"SLURM_PROCID": "0"}, "a", 1), (SLURM | {"SLURM_PROCID": "5"}, "b", 9)),
        (({"WORLD_SIZE": "2", **STATIC}, "a", 1), ({"WORLD_SIZE": "2", **STATIC}, "a", 1)),
        ((OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "0"}, "a", 1), (OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "7"}, "b", 2)),
        ((OPEN_MPI | {"SLURM_JOB_ID": "7"}, "a", 1), (OPEN_MPI | {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}, "b", 2)),
        ((OPEN_MPI | {"WORLD_SIZE": "8"}, "a", 1), (OPEN_MPI | {"WORLD_SIZE": "8"}, "b", 2)),
        ((MPICH | {"PMI_RANK": "0"}, "a", 1), (MPICH | {"PMI_RANK": "3", "PMI_FD": "11"}, "a", 1)),
        (
            (MPICH | {"MPI_LOCALNRANKS": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}, "a", 1),
            (MPICH | {"MPI_LOCALNRANKS": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}, "b", 2),
        ),
    ],
    ids=[
        "torchrun",
        "torchrun on two hosts",
        "slurm",
        "by hand",
        "Open MPI on two hosts",
        "Open MPI within Slurm",
        "Open MPI with torch's own variables",
        "MPICH",
        "MPICH on two hosts, with torch's address",
    ],
)
def test_ranks_of_one_launch_are_one_job(one, other):
    assert launched(*one) == launched(*other) is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((ALONE, "a", os.getpid()), (ALONE, "b", os.getpid())),
        ((ALONE, "a", os.getpid()), (ALONE, "a", os.getppid())),
        ((SLURM, "a", 1), (SLURM | {"SLURM_JOB_ID": "78"}, "a", 1)),
        ((SLURM, "a", 1), (SLURM | {"SLURM_STEP_ID": "1"}, "a", 1)),
        ((NODES, "a", 1), (NODES | {"MASTER_PORT": "29501"}, "a", 1)),
        ((NODES, "a", 1), (NODES | {"RAY_JOB_ID": "2"}, "a", 1)),
        ((OPEN_MPI, "a", 1), (OPEN_MPI | {"PMIX_NAMESPACE": "prterun-node1-4712@1"}, "a", 1)),
        (
            (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "8", "PMIX_SERVER_URI2": "tcp4://127.0.0.1:40001"}, "a", 1),
            (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "8", "PMIX_SERVER_URI2": "tcp4://127.0.0.1:40002"}, "a", 1),
        ),
        ((MPICH, "a", os.getpid()), (MPICH, "a", os.getppid())),
        ((MPICH, "a", os.getpid()), (MPICH, "b", os.getpid())),
    ],
    ids=[
        "on another host",
        "one after the other",
        "another of an array",
        "another step",
        "another port",
        "Ray",
        "Open MPI",
        "Open MPI on one host, one after the other",
        "MPICH, one after the other",
        "MPICH on another host",
    ],
)
def test_other_launches_are_other_jobs(one, other):
    assert launched(*one) != launched(*other)


def test_a_launcher_may_have_a_name_that_ends_within_a_letter():
    own = Path("/proc/self/comm").read_bytes()
    Path("/proc/self/comm").write_bytes("тренировка".encode()[:15])
    try:
        assert launched(ALONE, "a", os.getpid()) is not None
    finally:
        Path("/proc/self/comm").write_bytes(own)


def test_a_process_alone_is_a_job_of_its_own(monkeypatch):
    for name in job_identity.WORLDS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(job_identity, "_resumed", (0, ""))
    assert launched({}, "a", 1) is None
    assert launched({"WORLD_SIZE": "nonsense"}, "a", 1) is None
    assert launched(MPICH | {"MPI_LOCALNRANKS": "2"}, "a", 1) is None, "nothing says that those elsewhere are of it"
    mine = job_identity.job()
    assert job_identity.job() == mine
    assert len(mine) == 16
    monkeypatch.setattr(job_identity, "_own", (os.getpid() + 1, mine))
    assert job_identity.job() != mine, "a fork is another job"


def test_a_process_goes_on_with_the_job_of_a_state(monkeypatch):
    monkeypatch.setattr(job_identity, "_resumed", (0, ""))
    job_identity.resume("f" * 16)
    assert job_identity.job() == "f" * 16
    assert job_identity.launch() != "f" * 16
    monkeypatch.setattr(job_identity, "_resumed", (0, ""))
