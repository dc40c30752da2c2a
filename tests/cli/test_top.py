"""``headrace top`` sees the loaders of other processes, and they do not notice."""

import json
import os
import subprocess
import sys

import pytest
import torch

import headrace
from headrace.cli.__main__ import main
from headrace.cli.top import hit_share, rates
from headrace.core.stats import RemoteUse
from headrace.engine.trainer.counters import LoaderCounters
from headrace.engine.trainer.page import CacheFigures, FiguresPage, loaders
from headrace.sched.hand import Delivered
from tests.cache.conftest import name  # noqa: F401  (a fixture)

PROGRAM = """
import multiprocessing, sys, torch, headrace

multiprocessing.set_start_method("fork")  # the class is typed in: nobody else finds it

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return index

loader = headrace.DataLoader(Numbers(), 8, num_workers=int(sys.argv[1]))
batches = iter(loader)
for _ in range(3):
    next(batches)
print("ready", flush=True)
sys.stdin.read()
"""


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return index


@pytest.fixture(scope="module", params=[0, 2], ids=["here", "workers"])
def running(request):
    command = [sys.executable, "-c", PROGRAM, str(request.param)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        yield process, request.param
        process.stdin.close()
        process.wait()


def seen(process):
    return [each for each in loaders() if each.process == process]


def test_a_loader_of_another_process_is_seen(running):
    process, workers = running
    (each,) = seen(process.pid)
    assert (each.name, each.epoch, each.batches, each.samples) == ("Numbers", 0, 3, 24)
    assert (each.workers, each.finished) == (workers, False)


def test_the_command_prints_it(running, capsys):
    process, _ = running
    assert main(["top", "--once", "--interval", "0.01", "--json", "--process", str(process.pid)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["samples"] == 24
    assert json.loads(line)["samples_per_second"] == 0
    assert main(["top", "--once", "--interval", "0.01", "--process", str(process.pid)]) == 0
    assert "Numbers 1" in capsys.readouterr().out


def test_loaders_of_one_process_are_told_apart_and_vanish_when_closed():
    first, second = (headrace.DataLoader(Numbers(), 8, num_workers=0) for _ in range(2))
    list(first)
    next(iter(second))
    states = {each.number: each.finished for each in seen(os.getpid())}
    assert sorted(states.values()) == [False, True]
    first.close()
    assert len(seen(os.getpid())) == 1
    del second
    assert seen(os.getpid()) == []


def test_nothing_to_see_is_said(capsys):
    assert main(["top", "--once", "--interval", "0.01", "--process", "1"]) == 0
    assert "no loader" in capsys.readouterr().out


@pytest.mark.parametrize("interval", ["0", "soon", "nan"])
def test_a_senseless_interval_is_refused(capsys, interval):
    with pytest.raises(SystemExit) as ended:
        main(["top", "--interval", interval])
    assert ended.value.code == 2
    assert f"between 0.01 and 3600 seconds, not {interval}" in capsys.readouterr().err


def test_rates_come_from_two_looks():
    loader = headrace.DataLoader(Numbers(), 8, num_workers=0)
    batches = iter(loader)
    next(batches)
    (before,) = seen(os.getpid())
    next(batches)
    next(batches)
    (now,) = seen(os.getpid())
    assert rates(before, now, 2.0).samples == 8
    assert rates(before, now, 2.0).batches == 1
    assert rates(now, now, 1.0).samples == 0
    assert rates(None, now, 0.0).samples > 0


CACHED = """
import sys
import headrace
from tests.loader.test_cache import Stages, cache, loader_of

loader = loader_of(Stages(), cache(sys.argv[1], split=(0, 100, 0)), num_workers=0)
for _ in range(2):
    list(loader)
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_cache_is_seen(name, capsys, monkeypatch):  # noqa: F811  (the fixture)
    monkeypatch.setenv("COLUMNS", "200")
    command = [sys.executable, "-c", CACHED, name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        (each,) = seen(process.pid)
        use = each.cache
        assert (use.decoded, use.misses, use.exchanged >= 0, use.split) == (120, 120, True, (0, 100, 0))
        assert use.bytes > 0
        assert main(["top", "--once", "--interval", "0.01", "--json", "--process", str(process.pid)]) == 0
        assert json.loads(capsys.readouterr().out)["cache"]["decoded"] == 120
        assert main(["top", "--once", "--interval", "0.01", "--process", str(process.pid)]) == 0
        shown = capsys.readouterr().out
        assert "0-100-0" in shown
        assert "misses" in shown
        process.stdin.close()
        process.wait()


def test_other_hosts_are_seen_by_node(capsys):
    counters = LoaderCounters()
    page = FiguresPage(counters, "Numbers")
    nodes = tuple((f"10.0.0.{number}", 7) for number in range(200))
    counters.remote = RemoteUse(samples=1400, given_back=3, lanes=16, nodes=nodes)
    page.show(0, Delivered(), 1)
    (each,) = [found for found in seen(os.getpid()) if found.elsewhere is not None]
    assert (each.elsewhere.samples, each.elsewhere.given_back, each.elsewhere.lanes) == (1400, 3, 16)
    assert each.elsewhere.nodes[:2] == nodes[:2]
    assert len(each.elsewhere.nodes) > 100  # as many as fit
    assert main(["top", "--once", "--interval", "0.01", "--process", str(os.getpid())]) == 0
    assert "10.0.0.0: 7" in capsys.readouterr().out
    page.close()


def test_without_a_cache_nothing_is_said_of_one(running, capsys):
    process, _ = running
    assert main(["top", "--once", "--interval", "0.01", "--process", str(process.pid)]) == 0
    assert "misses" not in capsys.readouterr().out
    assert seen(process.pid)[0].cache is None


def test_the_share_of_hits_is_that_between_two_looks():
    before, now = CacheFigures(0, 10, 0, 30, 0, 0, 0, (0, 100, 0)), CacheFigures(5, 30, 5, 40, 0, 0, 0, (0, 100, 0))
    assert hit_share(None, before) == 0.25
    assert hit_share(before, now) == 0.75
    assert hit_share(now, now) is None


def test_what_ended_is_not_seen(running):
    """The last of them, since they share it."""
    process, _ = running
    process.stdin.close()
    process.wait()
    assert seen(process.pid) == []
