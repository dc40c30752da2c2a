"""The cluster of the tests: a process that holds it, started here and told what to do."""

import importlib.util
import json
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.services import Unavailable

START_SECONDS, ORDER_SECONDS = 120, 60


@dataclass
class RunningCluster:
    """Where it is, and the process that holds it."""

    address: str
    process: "subprocess.Popen[str]"

    def order(self, what: str, name: str) -> None:
        """``remove`` a node. Waits until that is done."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what} {name}\n")
        self.process.stdin.flush()
        _line(self.process, ORDER_SECONDS)


def _line(process: "subprocess.Popen[str]", seconds: float) -> str:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    return process.stdout.readline() if ready else ""


@contextmanager
def cluster() -> Iterator[RunningCluster]:
    """Three nodes on this machine. Raises ``Unavailable`` where Ray is not installed or does not start."""
    if importlib.util.find_spec("ray") is None:
        raise Unavailable("ray is not installed for this Python")
    folder = tempfile.mkdtemp(prefix="hrray")  # a short path: sockets lie in it
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.remote.cluster", folder],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        told = _line(process, START_SECONDS)
        if not told:
            raise Unavailable(f"no cluster came up within {START_SECONDS} s")
        yield RunningCluster(json.loads(told)["address"], process)
    finally:
        with process:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(ORDER_SECONDS)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
