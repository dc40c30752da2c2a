"""Loaders beside each other, copies of them, and processes that are forked in mid-epoch and end as processes do."""

import copy
import gc
import multiprocessing
import pickle
import resource
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import pytest

import headrace
from tests.loader.data import Pairs
from tests.parity.support import ROOT, children
from tests.selection import scaled

SAMPLES = 60
KINDS: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "in order": {"num_workers": 2, "in_order": True},
    "as ready": {"num_workers": 2, "in_order": False, "shuffle": True},
    "persistent": {"num_workers": 2, "in_order": False, "shuffle": True, "persistent_workers": True},
}
each_kind = pytest.mark.parametrize("kind", KINDS)
ALL = list(range(SAMPLES))


def made(kind: str, **more: Any) -> headrace.DataLoader:
    return headrace.DataLoader(Pairs(SAMPLES), **{"batch_size": 4} | KINDS[kind] | more)


def numbers(batches: Any) -> list[int]:
    return sorted(number for batch in batches for number in batch[0].tolist())


@each_kind
def test_two_in_one_loop(kind: str) -> None:
    with made(kind) as one, made("in order", batch_size=3) as other:
        for _ in range(3):
            left, right = zip(*zip(one, other, strict=False), strict=True)
            assert numbers(left) == ALL
            assert len(set(numbers(right))) == 3 * len(left)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "persistent"])
def test_twice_in_one_loop(kind: str) -> None:
    with made(kind) as loader:
        left, right = zip(*zip(loader, loader, strict=True), strict=True)
        assert numbers(left) == numbers(right) == ALL


@each_kind
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_in_mid_epoch(kind: str, copied: Any) -> None:
    """It begins at the beginning, and what becomes of it is nothing to the other one."""
    with made(kind) as loader:
        iterator = iter(loader)
        found = [next(iterator) for _ in range(3)]
        with copied(loader) as other:
            assert other.state_dict() == {}
            assert numbers(other) == ALL
            left = iter(other)
            next(left)
        del left, other
        assert numbers(chain(found, iterator)) == ALL


@pytest.mark.scaled
def test_loops_that_are_left_early_leave_nothing() -> None:
    """Neither processes nor descriptors, nor memory: mappings are counted, which is what a slab would add."""

    process = psutil.Process()

    def held() -> tuple[int, int]:
        return process.num_fds(), len(children())

    def mappings() -> int:
        return len(Path("/proc/self/maps").read_text().splitlines())

    with made("persistent") as loader, made("inline") as inline, made("as ready", num_workers=1) as forking:
        seen = set()
        for number in range(scaled(120, 480)):
            for loading in (loader, inline, *([forking] if number % 20 == 0 else [])):
                for batch, _ in enumerate(loading):
                    if batch == number % 4:
                        break
            if number > 40:
                seen.add(held())
            if number == 40:
                before = mappings()
        assert len(seen) == 1
        assert mappings() <= before + 8


def end(*_: object) -> None:
    """A process that has nothing to do."""


@each_kind
def test_a_process_of_multiprocessing_in_mid_epoch(kind: str) -> None:
    with made(kind) as loader:
        iterator = iter(loader)
        found = [next(iterator) for _ in range(2)]
        for _ in range(3):
            process = multiprocessing.get_context("fork").Process(target=end, args=(loader,))
            process.start()
            process.join()
            assert process.exitcode == 0
            process.close()
            found.append(next(iterator))
        assert loader.stats().restarts == 0
        assert numbers(chain(found, iterator)) == ALL


PROGRAM = """
import os, sys
import headrace
from tests.loader.test_shared_use import ALL, made, numbers
for kind in sys.argv[1:]:
    loader = made(kind)
    iterator = iter(loader)
    found = [next(iterator) for _ in range(3)]
    pids = loader._latest.pool.pids() if loader.num_workers else []
    pid = os.fork()
    if pid == 0:
        sys.exit(7)  # as Python ends, with all that is done then
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert (loader._latest.pool.pids() if loader.num_workers else []) == pids
    found += iterator
    assert numbers(found) == ALL
    assert loader.stats().restarts == 0
print("all")
"""


@pytest.mark.slow
def test_a_forked_process_that_ends_as_python_ends() -> None:
    """Nothing that belongs to the other one is ended, or removed, with it."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, *KINDS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("all\n", "", 0)


@pytest.mark.parametrize("kind", ["in order", "persistent"])
def test_too_few_descriptors(kind: str) -> None:
    """An error that says so, nothing is kept of what could be had, and it works once there are enough."""
    before, (soft, hard) = children(), resource.getrlimit(resource.RLIMIT_NOFILE)
    refused = 0
    with made(kind) as loader:
        assert numbers(loader) == ALL
        loader.close()
        gc.collect()
        held = psutil.Process().num_fds()
        for more in range(1, 40):
            resource.setrlimit(resource.RLIMIT_NOFILE, (held + more, hard))
            try:
                assert numbers(loader) == ALL
                break
            except headrace.LimitReached as error:
                message = str(error)
                refused += 1
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert "ulimit -n" in message
            loader.close()
            gc.collect()
            assert psutil.Process().num_fds() <= held
            assert children() == before
        assert refused > 10
        assert numbers(loader) == ALL
