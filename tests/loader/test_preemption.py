"""A job that is told to stop at any moment, and started again: over all its lives it trains on each sample once."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.loader.training import EPOCHS, SAMPLES, STOPPED, train
from tests.parity.support import ROOT, wait_until
from tests.selection import scaled

KINDS: dict[str, dict[str, Any]] = {
    "in this process": {"num_workers": 0},
    "in this process, shuffled": {"num_workers": 0, "shuffle": True},
    "in order": {"num_workers": 3, "in_order": True, "shuffle": True},
    "as ready": {"num_workers": 3, "in_order": False, "shuffle": True},
    "in order, persistent": {"num_workers": 3, "in_order": True, "persistent_workers": True},
    "as ready, persistent": {"num_workers": 3, "in_order": False, "shuffle": True, "persistent_workers": True},
}
IN_SOAK = {"as ready", "in order, persistent"}  # each part of them is in another kind
each_kind = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.soak) if kind in IN_SOAK else kind for kind in KINDS]
)


def trained(folder: Path) -> list[tuple[int, int]]:
    """(epoch, sample) of all that were."""
    lines = [[int(number) for number in line.split()] for line in (folder / "trained").read_text().splitlines()]
    return [(epoch, sample) for epoch, *samples in lines for sample in samples]


ALL = [(epoch, sample) for epoch in range(EPOCHS) for sample in range(SAMPLES)]


def life(folder: Path, options: dict[str, Any]) -> int:
    """A process that trains; forked, since importing torch takes a hundred times as long as the epoch."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(100)
            train(folder, options)
            code = 0
        except SystemExit as left:
            code = left.code
        except BaseException:  # noqa: BLE001  (of a process that ends now)
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


@each_kind
@pytest.mark.stress
@pytest.mark.scaled
def test_told_to_stop_at_any_moment(kind: str, tmp_path: Path) -> None:
    rng, stops = random.Random(kind), 0
    for number in range(scaled(2, 20)):
        folder, code, lives = tmp_path / str(number), STOPPED, 0
        folder.mkdir()
        while code == STOPPED:
            lives += 1
            (folder / "began").unlink(missing_ok=True)
            pid = life(folder, KINDS[kind])
            assert wait_until((folder / "began").exists)
            time.sleep(rng.random() * 0.06 * lives)  # any moment, but it comes to an end
            os.kill(pid, signal.SIGTERM)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        stops += lives - 1
        assert code == 0
        found = trained(folder)
        assert len(found) == len(set(found)), "twice"
        assert sorted(found) == ALL
    assert stops


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [*(pytest.param(kind, marks=pytest.mark.soak) for kind in ("in this process", "as ready")), "as ready, persistent"],
)
def test_a_script_that_is_told_to_stop(kind: str, tmp_path: Path) -> None:
    """A real one, which ends as Python ends: nothing of it is left, and it says nothing."""
    command = [sys.executable, "-m", "tests.loader.training", str(tmp_path), json.dumps(KINDS[kind])]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as script:
        assert wait_until(lambda: (tmp_path / "trained").exists() and len(trained(tmp_path)) > 8)
        processes = psutil.Process(script.pid).children(recursive=True)
        script.send_signal(signal.SIGTERM)
        out, errors = script.communicate(timeout=240)
    assert (script.returncode, out, errors) == (STOPPED, b"", b"")
    assert not psutil.wait_procs(processes, 20)[1]
    again = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=240, check=True)
    assert (again.stdout, again.stderr) == (b"done\n", b"")
    assert sorted(trained(tmp_path)) == ALL
