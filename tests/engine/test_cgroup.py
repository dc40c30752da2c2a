"""Limits of control groups, read from trees like those that Slurm, systemd, Docker and Kubernetes make."""

from pathlib import Path

import pytest

from headrace.engine.trainer import cgroup

GIB = 1 << 30


class Machine:
    """A made-up ``/proc/self`` and the hierarchies it speaks of."""

    def __init__(self, root: Path) -> None:
        self.root, self.process = root, root / "proc"
        self.process.mkdir()
        self.members: list[str] = []
        self.mounts = ["22 1 0:20 / /proc rw,nosuid - proc proc rw", "malformed"]

    def mount(self, name: str, kind: str, options: str, member: str, within: str = "/", ids: str = "0") -> Path:
        point = self.root / name
        point.mkdir()
        controllers = "" if kind == "cgroup2" else options
        self.members.append(f"{ids}:{controllers}:{member}")
        self.mounts.append(f"30 22 0:26 {within} {point} rw,relatime shared:9 - {kind} {kind} rw,{options}")
        (self.process / "cgroup").write_text("\n".join(self.members))
        (self.process / "mountinfo").write_text("\n".join(self.mounts))
        return point

    def cores(self) -> float | None:
        return cgroup.cores(cgroup.controller("cpu", self.process))

    def free(self) -> int | None:
        return cgroup.free(cgroup.controller("memory", self.process))


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def fill(directory: Path, **files: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(f"{text}\n")


def test_no_groups_at_all(machine):
    assert machine.cores() is None
    assert machine.free() is None
    (machine.process / "cgroup").write_text("0::/\n")
    (machine.process / "mountinfo").write_text("")
    assert machine.cores() is None


def test_a_group_below_the_root(machine):
    """A systemd scope; the root itself has no files of limits."""
    point = machine.mount("unified", "cgroup2", "nsdelegate", "/user.slice/run-1.scope")
    fill(point / "user.slice/run-1.scope", cpu__max="250000 100000", memory__max=str(8 * GIB), memory__current=str(GIB))
    fill(point / "user.slice", cpu__max="max 100000", memory__max="max", memory__current=str(2 * GIB))
    assert machine.cores() == 2.5
    assert machine.free() == 7 * GIB


def test_the_tightest_of_all_that_contain_it(machine):
    """A Kubernetes pod: the limit of the pod, or of all pods, may be below the container's."""
    point = machine.mount("unified", "cgroup2", "rw", "/kubepods/pod7/app")
    fill(point / "kubepods/pod7/app", cpu__max="max 100000", memory__max=str(16 * GIB), memory__current=str(GIB))
    fill(point / "kubepods/pod7", cpu__max="300000 100000", memory__max=str(8 * GIB), memory__current=str(6 * GIB))
    fill(point / "kubepods", cpu__max="800000 100000", memory__max=str(64 * GIB), memory__current=str(20 * GIB))
    assert machine.cores() == 3.0
    assert machine.free() == 2 * GIB


def test_processes(machine):
    assert cgroup.processes(cgroup.controller("pids", machine.process)) is None
    root = machine.mount("unified", "cgroup2", "", "/jobs/7")
    (root / "jobs" / "7").mkdir(parents=True)
    for group, most, now in ((root / "jobs", "100", "90"), (root / "jobs" / "7", "max", "3")):
        (group / "pids.max").write_text(most)
        (group / "pids.current").write_text(now)
    assert cgroup.processes(cgroup.controller("pids", machine.process)) == 10
    (root / "jobs" / "pids.current").write_text("120")
    assert cgroup.processes(cgroup.controller("pids", machine.process)) == 0


def test_page_cache_counts_as_free(machine):
    point = machine.mount("unified", "cgroup2", "rw", "/job")
    cache = f"anon {GIB}\ninactive_file {2 * GIB}\nactive_file {GIB}\nshmem {GIB}\nfile {4 * GIB}"
    fill(point / "job", memory__max=str(6 * GIB), memory__current=str(6 * GIB), memory__stat=cache)
    assert machine.free() == 3 * GIB


def test_a_threshold_that_slows_down_is_a_limit_too(machine):
    point = machine.mount("unified", "cgroup2", "rw", "/job")
    fill(point / "job", memory__max="max", memory__high=str(4 * GIB), memory__current=str(GIB))
    assert machine.free() == 3 * GIB


def test_version_1(machine):
    """Slurm: memory and cores in hierarchies of their own, each with its own path."""
    cpu = machine.mount("cpu,cpuacct", "cgroup", "cpu,cpuacct", "/slurm/uid_1/job_2", ids="4")
    memory = machine.mount("memory", "cgroup", "memory", "/slurm/uid_1/job_2/step_0", ids="5")
    fill(cpu / "slurm/uid_1/job_2", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    fill(cpu / "slurm/uid_1", cpu__cfs_quota_us="450000", cpu__cfs_period_us="100000")
    none = str((1 << 63) - 4096)
    cache = f"inactive_file 1\ntotal_inactive_file {GIB}\ntotal_active_file {GIB}"
    fill(memory / "slurm/uid_1/job_2/step_0", memory__limit_in_bytes=none, memory__usage_in_bytes=str(3 * GIB))
    step = {"memory__limit_in_bytes": str(4 * GIB), "memory__usage_in_bytes": str(3 * GIB), "memory__stat": cache}
    fill(memory / "slurm/uid_1/job_2", **step)
    assert machine.cores() == 4.5
    assert machine.free() == 3 * GIB


def test_both_versions_at_once(machine):
    """A hybrid machine: controllers are where version 1 has them."""
    machine.mount("unified", "cgroup2", "rw", "/session")
    memory = machine.mount("memory", "cgroup", "memory", "/job", ids="3")
    fill(memory / "job", memory__limit_in_bytes=str(2 * GIB), memory__usage_in_bytes=str(GIB))
    assert machine.free() == GIB
    assert machine.cores() is None


def test_a_container_that_sees_the_hosts_paths(machine):
    """Its group is what is mounted, although the path of the group is the host's."""
    point = machine.mount("memory", "cgroup", "memory", "/docker/abc/inner", within="/docker/abc", ids="3")
    fill(point / "inner", memory__limit_in_bytes=str(3 * GIB), memory__usage_in_bytes=str(GIB))
    fill(point, memory__limit_in_bytes=str(8 * GIB), memory__usage_in_bytes=str(7 * GIB))
    assert machine.free() == GIB


@pytest.mark.parametrize("member", ["/../other", "/elsewhere"])
def test_a_group_outside_what_is_mounted(machine, member):
    point = machine.mount("unified", "cgroup2", "rw", member, within="/docker/abc")
    fill(point, cpu__max="200000 100000")
    assert machine.cores() == 2.0


@pytest.mark.parametrize("text", ["", "many", "100000 0", "-1 100000", "0 100000"])
def test_files_that_make_no_sense(machine, text):
    point = machine.mount("unified", "cgroup2", "rw", "/job")
    fill(point / "job", cpu__max=text, memory__max=text, memory__current=text)
    assert machine.cores() is None
    assert machine.free() is None


def test_less_than_a_core_is_one(machine):
    point = machine.mount("unified", "cgroup2", "rw", "/job")
    fill(point / "job", cpu__max="50000 100000")
    assert machine.cores() == 1.0


def test_a_group_that_uses_more_than_it_may(machine):
    point = machine.mount("unified", "cgroup2", "rw", "/job")
    fill(point / "job", memory__max=str(GIB), memory__current=str(2 * GIB))
    assert machine.free() == 0


def test_this_machine():
    for name in ("cpu", "memory"):
        found = cgroup.controller(name)
        assert found is None or all(group.is_dir() for group in found.groups)
