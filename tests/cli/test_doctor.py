"""``headrace doctor``: a machine or a program with one fault is told of that fault."""

import json
import os
import re
import sys
import textwrap
from dataclasses import replace

import pytest

from headrace.cli.__main__ import main
from headrace.running.feed import named
from headrace.running.machine import GIB, Machine, concerns

WELL = Machine(
    cores=8, quota=8.0, idle=8.0, memory=16 * GIB, shm=8 * GIB, files=65536, processes=None, gpus=0, cuda=False
)  # fmt: skip

FAULTS = {
    "waiting": (
        """
        import time, torch
        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 400
            def __getitem__(self, index):
                time.sleep(0.02)
                return index
        """,
        "input",
        "num_workers=",
        1,
    ),
    "computing": (
        """
        import time, torch
        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 400
            def __getitem__(self, index):
                until = time.thread_time() + 0.01
                while time.thread_time() < until:
                    pass
                return index
        """,
        "input",
        "operation ",
        len(os.sched_getaffinity(0)),
    ),
}


def test_a_machine_that_lacks_nothing_is_told_nothing():
    assert concerns(WELL) == ()
    assert concerns(replace(WELL, gpus=2, cuda=True)) == ()


@pytest.mark.parametrize(
    ("fault", "setting", "figure"),
    [
        ({"quota": 2.0}, "OMP_NUM_THREADS=2", "2.0 of the 8 cores"),
        ({"idle": 1.5}, "other programs", "1.5 cores idle of the 8"),
        ({"idle": -0.1}, "other programs", "0.0 cores idle of the 8"),
        ({"memory": GIB}, "num_workers", "1.07 GB of memory are left"),
        ({"shm": 64 << 20}, "--shm-size=8g", "67.1 MB left"),
        ({"shm": None}, "--shm-size=8g", "is not there"),
        ({"files": 256}, "ulimit -n 65536", "256 files"),
        ({"processes": 20}, "pids limit", "20 more"),
        ({"gpus": 2}, "torch with CUDA", "2 GPUs"),
    ],
)
def test_each_shortage_is_told_with_what_to_set(fault, setting, figure):
    (advice,) = concerns(replace(WELL, **fault))
    assert advice.setting == setting
    assert figure in advice.text


def test_programs_on_cores_that_are_not_ours_are_no_shortage():
    assert concerns(replace(WELL, cores=4, quota=4.0, idle=4.0)) == ()


def test_the_machine_is_looked_at(capsys):
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["machine"]["cores"] == len(os.sched_getaffinity(0))
    assert 0 < facts["machine"]["quota"] <= facts["machine"]["cores"]


@pytest.mark.soak
@pytest.mark.parametrize("fault", FAULTS)
def test_what_limits_a_dataset_is_found(tmp_path, monkeypatch, capfd, fault):
    program, bottleneck, setting, workers = FAULTS[fault]
    (tmp_path / "faulty.py").write_text(textwrap.dedent(program))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    code = main(
        [
            "doctor",
            "--json",
            "--dataset",
            "faulty:Data",
            "--seconds",
            "8",
            "--batch-size",
            "4",
            "--workers",
            str(workers),
        ]
    )
    out, err = capfd.readouterr()
    assert code == 0, err
    facts = json.loads(out)
    assert facts["bottleneck"] == bottleneck
    assert any(advice["setting"].startswith(setting) for advice in facts["advice"]), facts["advice"]
    assert facts["comparison"]["torch"]["batches"] > 1
    assert facts["comparison"]["automatic"]["workers"] >= 1


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere:Data", "nowhere:Data: No module named 'nowhere'"),
        ("textwrap:Data", "textwrap:Data: module 'textwrap' has no attribute 'Data'"),
        ("builtins:list", "builtins:list: the dataset is empty"),
    ],
)
def test_a_dataset_that_is_none_is_told_in_a_line(monkeypatch, name, says):
    monkeypatch.setattr(sys, "path", sys.path[:])
    with pytest.raises(SystemExit, match=re.escape(says)):
        named(name)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--seconds", "0"], "must be positive"),
        (["--seconds", "nan"], "must be positive"),
        (["--dataset", "data"], "write it as module:name"),
        (["--dataset", "a:b", "--", "true"], "a program or --dataset, not both"),
        (["--", "/nowhere/at/all"], "cannot run /nowhere/at/all"),
    ],
)
def test_mistakes_are_told_in_a_line(capfd, arguments, says):
    assert main(["doctor", *arguments]) == 2
    assert says in capfd.readouterr().err


def test_a_program_that_fails_gives_its_exit_code(capfd):
    assert main(["doctor", "--", "sh", "-c", "exit 7"]) == 7
    assert "with torch's loader the program ended with exit code 7" in capfd.readouterr().err
