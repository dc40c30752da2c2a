"""What a process may use of a machine that it shares with other ranks."""

import os
import time
from pathlib import Path

import pytest

from headrace.core import launchers
from headrace.engine.trainer import cgroup, cores


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Eight cores, no quota; a clock and CPU times that stand still until they are moved."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(cgroup, "cores", lambda _: None)
    for name in (*launchers.RANKS, *launchers.TASKS, "SLURM_CPUS_PER_TASK", "SLURM_NODEID"):
        monkeypatch.delenv(name, raising=False)
    state = {"clock": 100.0, "ran": 0.0, "waited": 0.0}
    monkeypatch.setattr(time, "monotonic", lambda: state["clock"])
    monkeypatch.setattr(cores, "_seconds", lambda pids: (state["ran"], state["waited"]))
    return state


@pytest.mark.parametrize(
    ("ranks", "workers", "most"),
    [("1", 8, 128), ("2", 4, 64), ("8", 1, 16), ("99", 1, 8), ("x", 8, 128), ("0", 8, 128)],
)
def test_ranks_share_the_cores(machine, monkeypatch, ranks, workers, most):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert cores.automatic_workers() == workers
    assert cores.most_lanes() == most


@pytest.mark.parametrize(
    ("told", "ranks", "workers"),
    [
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 4, 2),
        ({"MPI_LOCALNRANKS": "2"}, 2, 4),
        ({"SLURM_NTASKS_PER_NODE": "4"}, 4, 2),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x3),4", "SLURM_NODEID": "3"}, 4, 2),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x3),4", "SLURM_NODEID": "2"}, 2, 4),
        ({"SLURM_NTASKS_PER_NODE": "2", "SLURM_CPUS_PER_TASK": "3"}, 2, 3),
        ({"SLURM_CPUS_PER_TASK": "6"}, 1, 6),
        ({"SLURM_CPUS_PER_TASK": "64"}, 1, 8),  # bound to eight of the host's
        ({"LOCAL_WORLD_SIZE": "2", "SLURM_CPUS_PER_TASK": "6"}, 2, 3),  # torchrun within a task
        ({"LOCAL_WORLD_SIZE": "4", "SLURM_NTASKS_PER_NODE": "4", "SLURM_CPUS_PER_TASK": "2"}, 4, 2),
        ({"SLURM_NTASKS_PER_NODE": "many", "SLURM_CPUS_PER_TASK": "some", "SLURM_NODEID": "x"}, 1, 8),
    ],
)
def test_every_launcher_is_heard(machine, monkeypatch, told, ranks, workers):
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert cores.ranks() == ranks
    assert cores.automatic_workers() == workers


@pytest.mark.parametrize("name", ["LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE"])
def test_eight_ranks_together_take_a_quarter_of_the_memory(machine, monkeypatch, name):
    monkeypatch.setattr(cores, "free_memory", lambda: 64 << 30)
    assert cores.memory_for_batches() == 16 << 30
    monkeypatch.setenv(name, "8")
    assert cores.memory_for_batches() == 2 << 30


def test_two_cores_may_have_as_many_lanes_as_pay(machine, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert cores.automatic_workers() == 2
    assert cores.most_lanes() >= 48


def test_what_limits_leave(monkeypatch):
    before = cores.free_descriptors()
    with open(os.devnull):  # noqa: PTH123
        assert cores.free_descriptors() == before - 1
    monkeypatch.setattr(cgroup, "processes", lambda _: 7)
    assert cores.free_processes() == 7
    monkeypatch.setattr(cgroup, "processes", lambda _: None)
    assert cores.free_processes() > 1 << 40


def test_a_quota_is_shared_too(machine, monkeypatch):
    monkeypatch.setattr(cgroup, "cores", lambda _: 6.0)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert cores.automatic_workers() == 3


def test_use_is_counted_from_one_question_to_the_next(machine):
    use = cores.CoreUse([1])
    machine["clock"] += 2.0
    machine["ran"] += 8.0
    machine["waited"] += 3.0
    assert use.ask([1]) == (2.0, 8.0, 3.0)
    machine["clock"] += 1.0
    assert use.ask([1]) == (1.0, 0.0, 0.0)


def test_a_process_that_is_gone_counts_nothing():
    mine = cores._seconds([os.getpid()])
    assert mine[0] > 0
    assert cores._seconds([]) == (0.0, 0.0)
    assert cores._seconds([2**22 + 1]) == (0.0, 0.0)


def test_a_process_counts_whose_name_ends_within_a_letter():
    own = Path("/proc/self/comm").read_bytes()
    Path("/proc/self/comm").write_bytes("тренировка".encode()[:15])
    try:
        assert cores._seconds([os.getpid()])[0] > 0
    finally:
        Path("/proc/self/comm").write_bytes(own)


def test_free_memory_is_the_tighter_of_machine_and_groups(monkeypatch):
    monkeypatch.setattr(cgroup, "free", lambda _: None)
    machine = cores.free_memory()
    assert machine > 0
    monkeypatch.setattr(cgroup, "free", lambda _: 4096)
    assert cores.free_memory() == 4096
    monkeypatch.setattr(cgroup, "free", lambda _: 1 << 60)
    assert cores.free_memory() < 1 << 60
