"""One test that hangs costs that test, whatever it holds."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
PROGRAM = """
import ctypes, subprocess, sys, pytest
from pathlib import Path

@pytest.mark.parametrize("number", range(3))
def test_before(number): pass

@pytest.mark.timeout(5)
def test_hangs_with_the_interpreter_lock():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path("pid").write_text(str(child.pid))
    ctypes.PyDLL(None).pause()

@pytest.mark.parametrize("number", range(3))
def test_after(number): pass

def test_crashes(): ctypes.string_at(0)

def test_last(): pass
"""


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    plugins = [f"-p{name}" for name in ("tests.selection", "tests.watch", "tests.distribution", "no:cacheprovider")]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "-pno:timeout", f"--rootdir={folder}", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def test_a_test_that_hangs_or_crashes_costs_only_itself(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(PROGRAM)
    (tmp_path / "test_other.py").write_text("def test_elsewhere(): pass")
    done = run(tmp_path, "-n", "2", "-rf")
    assert "2 failed, 8 passed" in done.stdout.splitlines()[-1], done.stdout + done.stderr
    assert "test_hangs_with_the_interpreter_lock took longer than 5 s" in done.stdout
    assert "in test_hangs_with_the_interpreter_lock" in done.stdout, "where it hung"
    assert "in test_crashes" in done.stdout
    with contextlib.suppress(psutil.NoSuchProcess):  # what it started went with it, as soon as it has ended itself
        psutil.Process(int((tmp_path / "pid").read_text())).wait(60)


def test_one_process_says_what_hung_and_ends(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(PROGRAM)
    done = run(tmp_path)
    assert done.returncode < 0
    assert "test_hangs_with_the_interpreter_lock took longer than 5 s" in done.stderr
    assert "in test_hangs_with_the_interpreter_lock" in done.stderr


def test_what_still_runs_when_the_time_is_over_has_not_failed(tmp_path: Path) -> None:
    """In several processes at the same moment, which others take the place of."""
    tests = [f"def test_long_{number}(): ctypes.PyDLL(None).pause()" for number in range(3)]
    tests += [f"def test_next_{number}(): pass" for number in range(9)]
    (tmp_path / "test_long.py").write_text(
        "\n\n".join(["import ctypes, pytest", "pytestmark = pytest.mark.soak", *tests, ""])
    )
    done = run(tmp_path, "-n", "3", "-rs", "--soak", "--minutes", "0.15")
    assert "12 skipped" in done.stdout.splitlines()[-1], done.stdout + done.stderr
    assert done.returncode == 0
