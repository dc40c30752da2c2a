"""The native twin touches no memory but the ledger's, and does no undefined arithmetic, whatever it is asked."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLAGS = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")


def _run(tmp_path: Path, seconds: int) -> tuple[int, int]:
    """How many runs and calls there were."""
    runtime = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=False).stdout
    if not Path(runtime.strip()).is_absolute():
        pytest.skip("gcc has no address sanitizer here")
    made = tmp_path / "native.abi3.so"
    assert runpy.run_path(str(ROOT / "hatch_build.py"))["compiled"](made, *FLAGS)
    environment = os.environ | {
        "LD_PRELOAD": runtime.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python keeps much until it exits
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",  # so that every allocation has its own bounds
    }
    command = [sys.executable, "-m", "tests.sched.sanitized", str(made), str(seconds)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    said = re.fullmatch(r"(\d+) runs, (\d+) calls\n", done.stdout)
    assert said, done.stdout
    return int(said[1]), int(said[2])


@pytest.mark.skipif(sys.platform != "linux", reason="needs LD_PRELOAD")
def test_for_a_moment(tmp_path: Path) -> None:
    runs, calls = _run(tmp_path, 1)
    assert runs > 0
    assert calls > 0


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="needs LD_PRELOAD")
def test_for_a_minute(tmp_path: Path) -> None:
    runs, calls = _run(tmp_path, 60)
    assert runs > 0
    assert calls > 0
