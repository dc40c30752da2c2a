"""``headrace run``: an unmodified program gets our loader, in all its processes, and what cannot be replaced stays."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest

from headrace.cli.__main__ import main
from headrace.cli.run import show
from headrace.cli.screen import screen
from headrace.engine.trainer.cores import automatic_workers
from headrace.running import comparison, meter, program
from headrace.running.comparison import BothLoaders, LoaderFigures, compare
from headrace.running.orders import CommonEnd, RunOrders
from headrace.trace.reader import read

PROGRAM = """
import abc, json, multiprocessing, pickle, sys
import torch
import torch.utils.data.dataloader
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return index

class Moved(DataLoader):
    def __iter__(self):
        for batch in super().__iter__():
            yield batch + 100

class Abstract(DataLoader, abc.ABC):
    pass

class Typed(DataLoader[int]):
    pass

class Own(DataLoader[int]):
    def _get_iterator(self):
        return iter([torch.tensor([7])])

class NeverMade(DataLoader):
    def _get_iterator(self):
        raise NotImplementedError

def is_ours(loader):
    return hasattr(loader, "scheduling")

def child(queue):
    queue.put(is_ours(DataLoader(Numbers(), 8, num_workers=0)))

if __name__ == "__main__":
    plain, moved, own = DataLoader(Numbers(), 8, shuffle=True, num_workers=2), Moved(Numbers(), 8), Own(Numbers(), 8)
    Own(Numbers(), 8)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    facts = {
        "ours": [is_ours(loader) for loader in (plain, moved, Abstract(Numbers()), Typed(Numbers()), own)],
        "instances": [isinstance(loader, DataLoader) for loader in (plain, moved, own)],
        "subclasses": [issubclass(kind, DataLoader) for kind in (Moved, Own)],
        "unrelated": isinstance(own, Moved),
        "one name": torch.utils.data.dataloader.DataLoader is DataLoader,
        "pickled": is_ours(pickle.loads(pickle.dumps(plain))),
        "samples": sorted(int(i) for batch in plain for i in batch),
        "moved": sorted(int(i) for batch in moved for i in batch),
        "own": [batch.tolist() for batch in own],
        "spawned": queue.get(timeout=240),
        "arguments": sys.argv[1:],
        "path": [entry for entry in sys.path if "running" in entry],
    }
    process.join()
    print(json.dumps(facts))
    sys.exit(3)
"""

EPOCHS = """
import time, torch
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.001)
        return index

if __name__ == "__main__":
    for epoch in range(20):
        for batch in torch.utils.data.DataLoader(Slow(), 4, num_workers=1):
            pass
"""


ABRUPT = """
import os, signal, torch
def seen(forked):
    list(torch.utils.data.DataLoader(range(8), 4))
    if not forked:
        os._exit(0)
    os.waitpid(forked, 0)

if "fork" not in "END":
    list(torch.utils.data.DataLoader(range(8), 4))
END
"""


@pytest.fixture
def ran(tmp_path, monkeypatch, capfd):
    """Runs the command on a program in a folder of its own; the exit code and what was printed."""

    def ran(program, *arguments):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        (tmp_path / "train.py").write_text(program)
        code = main(["run", *arguments])
        return code, *capfd.readouterr()

    return ran


def test_a_program_gets_our_loader_wherever_it_makes_one(ran):
    code, out, err = ran(PROGRAM, "--", sys.executable, "train.py", "--epochs", "3")
    assert code == 3, err  # the program's own
    assert json.loads(out) == {
        "ours": [True, True, True, True, False],
        "instances": [True, True, True],
        "subclasses": [True, True],
        "unrelated": False,
        "one name": True,
        "pickled": True,
        "samples": list(range(40)),
        "moved": list(range(100, 140)),
        "own": [[7]],
        "spawned": True,
        "arguments": ["--epochs", "3"],
        "path": [],
    }
    assert err.count("left alone: ") == err.count("left alone: __main__.Own (overrides _get_iterator)") == 1
    assert "2 loaders in 1 process: headrace" in err


@pytest.mark.parametrize(
    ("end", "code", "says"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "1 loader in 1 process: headrace"),
        ("os.kill(os.getpid(), signal.SIGTERM)", 143, "1 loader in 1 process: headrace"),
        ("seen(os.fork())", 0, "2 loaders in 2 processes: headrace"),
    ],
    ids=["killed", "terminated", "forked"],
)
def test_loaders_of_processes_that_end_abruptly_are_counted(ran, end, code, says):
    found, _, err = ran(ABRUPT.replace("END", end), "--", sys.executable, "train.py")
    assert found == code
    assert says in err


def test_both_loaders_are_compared_over_as_many_batches(ran, monkeypatch):
    monkeypatch.setattr(comparison, "in_turn", lambda loaders: loaders)
    code, out, err = ran(EPOCHS, "--json", "--compare", "20", "--", sys.executable, "train.py")
    assert code == 0, err
    facts = json.loads(out)
    for loader in ("torch", "headrace"):
        assert facts[loader]["batches"] == 20
        assert facts[loader]["workers"] == 1
        assert facts[loader]["cpu"] > 0
        assert 0 <= facts[loader]["wait"] <= 1
    assert 0 <= facts["others"] <= os.cpu_count()
    assert facts["gain"] == pytest.approx(facts["headrace"]["rate"] / facts["torch"]["rate"])


def test_torchs_own_loader_is_recorded(ran, tmp_path):
    arguments = ("--loader", "torch", "--json", "--", sys.executable, "train.py")
    code, out, err = ran(EPOCHS.replace("range(20)", "range(2)"), *arguments)
    assert code == 0, err
    assert len(read(tmp_path / "torch.trace").samples) == 128
    assert json.loads(out)["processes"][0]["loaders"] == 2


FIGURES = LoaderFigures(batches=100, first=0.2, rate=10.0, wait=0.5, cpu=0.01, spread=1.01, workers=2)


@pytest.mark.parametrize(
    ("torch", "ours", "says"),
    [
        ({}, {"rate": 20.0, "wait": 0.1}, "2.00 times as fast: the program waited 50% of the time with torch's"),
        ({"spread": 2.5}, {"rate": 20.0}, "but runs of one loader differ by 2.50"),
        ({"wait": 0.01}, {"wait": 0.0}, "nothing is gained: the program waited 1% of the time with torch's"),
        ({"wait": 0.9}, {"wait": 0.9}, "both are bound by the same thing"),
        ({}, {"rate": 5.0}, "2.00 times as slow: the program waited"),
        ({"spread": 2.5}, {"rate": 5.0}, "2.00 times as slow, but runs of one loader differ by 2.50"),
    ],
)
def test_the_verdict_says_what_was_measured(torch, ours, says):
    assert says in BothLoaders(replace(FIGURES, **torch), replace(FIGURES, **ours)).verdict


def test_workers_of_its_own_choice_are_what_counts_where_they_gain():
    slow, quick = replace(FIGURES, rate=10.1), replace(FIGURES, rate=36.0, wait=0.05, workers=12)
    found = BothLoaders(FIGURES, slow, automatic=quick)
    assert found.gain == 3.6
    assert found.verdict.startswith("with num_workers=None (it came to 12): 3.60 times as fast")
    found = BothLoaders(FIGURES, slow, automatic=replace(slow, rate=10.2))
    assert (found.best, found.verdict.startswith("nothing is gained")) == (slow, True)


WAITS = """
import time, torch
class Waits(torch.utils.data.Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        time.sleep(0.02)
        return index
if __name__ == "__main__":
    for batch in torch.utils.data.DataLoader(Waits(), 8, num_workers=0):
        pass
"""


def test_our_loader_chooses_its_workers_where_that_is_ordered(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "train.py").write_text(WAITS)
    program = [sys.executable, str(tmp_path / "train.py")]
    found = compare(program, {"batches": 6}, lambda line: None, loaders=("torch", "headrace", "automatic"))
    assert (found.torch.workers, found.headrace.workers) == (0, 1)  # in this process: counted as one
    assert found.automatic.workers >= automatic_workers()


def test_times_that_were_measured_beside_other_programs_are_said_to_be_so(capsys):
    for others, said in ((0.1, False), (1.3, True)):
        show(BothLoaders(FIGURES, FIGURES, others=others), screen())
        assert ("Other programs used 1.3 cores meanwhile" in capsys.readouterr().out) is said


def test_other_programs_are_what_the_machine_did_and_we_did_not(monkeypatch):
    busy, own, clock = [(10.0, 2), (16.0, 2)], [1.0, 3.0], [0.0, 4.0]
    monkeypatch.setattr(meter, "machine", lambda: busy.pop(0))
    monkeypatch.setattr(meter, "cpu_time", lambda: own.pop(0))
    monkeypatch.setattr(meter, "time", SimpleNamespace(perf_counter=lambda: clock.pop(0)))
    assert meter.Neighbours().cores() == 1.0  # six core seconds in four, of which two are ours


ENDED = """
import signal, sys, time, torch
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
list(torch.utils.data.DataLoader(range(8), 4))
print("ready", flush=True)
while True: time.sleep(0.01)
"""


def test_a_program_is_told_to_end_where_the_command_is(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(ENDED)
    (folder := tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    command = [sys.executable, "-m", "headrace", "run", "--", sys.executable, str(tmp_path / "train.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        _, err = process.communicate()
    assert (process.returncode, "1 loader in 1 process" in err) == (5, True)
    assert list(folder.iterdir()) == []


RANKS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for batch in torch.utils.data.DataLoader(range(10**9), 4, num_workers=0):
    dist.all_reduce(batch)
"""


def test_ranks_that_wait_for_each_other_end_after_the_same_batch(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "train.py").write_text(RANKS)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(tmp_path / "train.py")]
    with TemporaryDirectory(dir=tmp_path) as folder:
        done = program.run(torchrun, RunOrders(folder, "headrace", measure=True, seconds=0.05), None, quiet=True)
    assert done.code == 0
    assert [report.rank for report in done.reports] == [0, 1]
    assert len({report.batches for report in done.reports}) == 1


def test_the_first_rank_whose_time_is_over_says_when_all_end(tmp_path):
    one, other = CommonEnd(str(tmp_path)), CommonEnd(str(tmp_path))
    assert not one.is_after(100)
    one.agree(7)
    other.agree(9)
    assert (other.is_after(7), other.is_after(8), one.is_after(9)) == (False, True, True)
    assert [path.name for path in tmp_path.iterdir()] == ["end"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "nothing to run"),
        (["--compare", "-1", "--", "true"], "--compare takes a number of batches"),
        (["--compare", "5", "--trace", "a", "--", "true"], "leave --loader and --trace out"),
        (["--trace", "/nowhere/at/all", "--", "true"], "there is no such folder"),
        (["--trace", "/", "--", "true"], "--trace /: this is a folder"),
        (["--trace", __file__, "--", "true"], "there is a file that is not a trace"),
        (["--trace", "/dev/null", "--", "true"], "there is a file that is not a trace"),
        (["--", "/nowhere/at/all"], "cannot run /nowhere/at/all: No such file"),
        (["--compare", "3", "--", "true"], "fewer than two batches"),
    ],
)
def test_mistakes_are_told_in_a_line(capfd, arguments, says):
    assert main(["run", *arguments]) == 2
    assert says in capfd.readouterr().err


@pytest.mark.parametrize("arguments", [["--trace", "a.trace"], ["--loader", "torch"]])
def test_a_folder_that_takes_no_trace_is_told_before_the_program_runs(ran, monkeypatch, arguments):
    monkeypatch.setattr("headrace.cli.run.os.access", lambda *_: False)  # root may write wherever that is possible
    code, out, err = ran("print('began')", *arguments, "--", sys.executable, "train.py")
    assert code == 2
    assert "nothing can be written in that folder" in err
    assert "began" not in out


def test_a_program_without_loaders_is_told_so(capfd):
    assert main(["run", "--", "true"]) == 0
    assert "no DataLoader of torch's was iterated" in capfd.readouterr().err
    assert main(["run", "--", "sh", "-c", "exit 5"]) == 5
    assert "the program ended with exit code 5 before it iterated a DataLoader" in capfd.readouterr().err
