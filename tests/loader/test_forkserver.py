"""Workers of a fork server, the default from Python 3.14 on: they inherit nothing, and the server is their parent."""

import multiprocessing
import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import headrace
from headrace.cache.backends import shm
from headrace.engine.worker.startup import worker_main as worker
from headrace.trace.reader import read
from tests.loader.data import Numbers, Pairs
from tests.loader.support import PATIENCE
from tests.names import new_name


class Stalls:
    """A hook that takes its time at one index, until a file is there."""

    def __init__(self, at: int, until: Path) -> None:
        self.at, self.until = at, until

    def __call__(self, index: int) -> None:
        while index == self.at and not self.until.exists():
            time.sleep(0.001)


class Kept(torch.utils.data.Dataset):
    """Forty numbers, in stages."""

    def __len__(self):
        return 40

    def fetch(self, index):
        return str(index).encode()

    def decode(self, encoded):
        return int(encoded)

    def augment(self, decoded):
        return decoded

    def __getitem__(self, index):
        return self.augment(self.decode(self.fetch(index)))


def loader_of(dataset, batch_size=5, **options):
    options = {"num_workers": 2, "timeout": PATIENCE} | options
    return headrace.DataLoader(dataset, batch_size, multiprocessing_context="forkserver", **options)


def indices(batches):
    return [index for batch in batches for index in batch[0].tolist()]


@pytest.fixture
def unstarted():
    """A fork server that nobody has started yet."""
    multiprocessing.forkserver._forkserver._stop()


def test_it_has_imported_what_every_worker_would(unstarted):
    assert indices(loader_of(Pairs(10))) == list(range(10))
    server = multiprocessing.forkserver._forkserver
    assert server._preload_modules == ["__main__", worker.__name__]
    assert "libtorch" in Path(f"/proc/{server._forkserver_pid}/maps").read_text()


def test_workers_that_are_killed_are_replaced():
    loader = loader_of(Pairs(60))
    iterator = iter(loader)
    found = indices([next(iterator)])
    for pid in loader._latest.pool.pids():
        os.kill(pid, signal.SIGKILL)
    assert found + indices(iterator) == list(range(60))
    assert loader.stats().restarts >= 1


def test_a_spare_stands_in_for_a_worker_with_a_slow_sample(tmp_path):
    dataset = Pairs(400, hook=Stalls(40, tmp_path / "go"), seconds=0.001)
    loader = loader_of(dataset, 4, num_workers=1, in_order=False, scheduling=headrace.Scheduling(spares=1))
    iterator = iter(loader)
    found = []
    while len(found) < 60:
        found += indices([next(iterator)])
    (tmp_path / "go").touch()
    assert sorted(found + indices(iterator)) == list(range(400))
    assert loader.stats().hand_offs >= 1


@pytest.mark.parametrize("in_order", [True, False])
def test_an_epoch_is_resumed(in_order):
    first = loader_of(Pairs(40), shuffle=True, in_order=in_order)
    iterator = iter(first)
    found = indices(next(iterator) for _ in range(3))
    resumed = loader_of(Pairs(40), shuffle=True, in_order=in_order)
    resumed.load_state_dict(first.state_dict())
    del iterator
    assert sorted(found + indices(resumed)) == list(range(40))


def test_a_stream_comes_whole():
    with loader_of(Numbers(30), persistent_workers=True) as loader:
        for _ in range(2):
            assert sorted(number for batch in loader for number in batch.tolist()) == list(range(30))


def test_a_cache_and_a_trace_reach_the_workers(tmp_path):
    name = new_name()
    try:
        where = headrace.Cache(f"shm://{name}", size="8MiB", split=(0, 100, 0))
        with loader_of(Kept(), shuffle=True, in_order=False, cache=where, trace=tmp_path / "trace") as loader:
            for _ in range(2):
                assert sorted(number for batch in loader for number in batch.tolist()) == list(range(40))
            assert loader.stats().cache.decoded == 40
        assert read(tmp_path / "trace").samples["elapsed"].size == 80
    finally:
        shm.remove(name)


UNGUARDED = """
import sys
import torch
import headrace

def main():
    class Local(torch.utils.data.Dataset):
        def __len__(self):
            return 8
        def __getitem__(self, index):
            return index
    loader = headrace.DataLoader(Local(), 4)
    print(sorted(number for batch in loader for number in batch.tolist()), loader.stats().workers)

main()
"""


def test_workers_that_nobody_asked_for_need_nothing_of_the_program(tmp_path):
    """It has no main guard, and its dataset cannot be pickled: with torch's loader, no workers by default, it runs."""
    (tmp_path / "train.py").write_text(UNGUARDED)
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[0, 1, 2, 3, 4, 5, 6, 7]")


def test_they_are_started_as_the_process_starts_its_own(monkeypatch):
    for asked in ("spawn", "forkserver"):
        monkeypatch.setattr(multiprocessing, "get_start_method", lambda *, allow_none, asked=asked: asked)
        assert headrace.DataLoader(Pairs(8))._settings().context.get_start_method() == asked
