"""The cluster of the tests: a process that holds it, started here and told what to do."""

import importlib.util
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psutil

from tests.services import Unavailable

START_SECONDS, ORDER_SECONDS = 120, 60
SETTINGS = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # or 127.0.0.1 is exchanged for the host's own address
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # whatever lies in the user's home
    "RAY_worker_niceness": "0",  # else nothing is made there while other programs keep all cores busy
}
"""Environment variables for whoever has to do with the cluster."""
PLAN = {"head": {"cpus": 2}, "left": {"cpus": 8}, "right": {"cpus": 8}}
"""Three nodes."""


@dataclass
class RunningCluster:
    """Where it is, and the process that holds it."""

    process: "subprocess.Popen[str]"
    told: dict[str, Any]

    @property
    def address(self) -> str:
        return str(self.told["address"])

    def order(self, what: str, name: str) -> None:
        """``remove`` or ``add`` a node. Waits until that is done."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what} {name}\n")
        self.process.stdin.flush()
        self.told = json.loads(_line(self.process, ORDER_SECONDS))

    def raylet(self, name: str) -> psutil.Process:
        """The process that is a node, to Ray."""
        return psutil.Process(self.told["raylets"][name])

    def gcs(self) -> psutil.Process:
        """The process that knows the cluster."""
        return psutil.Process(self.told["gcs"])

    def named(self, name: str) -> list[psutil.Process]:
        """Processes of this name on all nodes."""
        found = psutil.Process(self.process.pid).children(recursive=True)
        return [process for process in found if _name(process) == name]

    def lanes(self) -> list[psutil.Process]:
        """Processes that make samples, on all nodes."""
        return self.named("headrace-lane")


def _name(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return str(process.name())
    return ""


def _line(process: "subprocess.Popen[str]", seconds: float) -> str:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    return process.stdout.readline() if ready else ""


@contextmanager
def cluster(
    plan: Mapping[str, Mapping[str, Any]] = PLAN, environment: Mapping[str, str] = {}
) -> Iterator[RunningCluster]:
    """Nodes on this machine, see ``tests.remote.cluster``. Raises ``Unavailable`` where Ray is not installed or does
    not start.
    """
    if importlib.util.find_spec("ray") is None:
        raise Unavailable("ray is not installed for this Python")
    folder = tempfile.mkdtemp(prefix="hrray")  # a short path: sockets lie in it
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.remote.cluster", folder, json.dumps(plan)],
        env={**os.environ, **SETTINGS, **environment},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        told = _line(process, START_SECONDS)
        if not told:
            raise Unavailable(f"no cluster came up within {START_SECONDS} s")
        yield RunningCluster(process, json.loads(told))
    finally:
        with process:
            left = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(ORDER_SECONDS)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
        for each in left:  # agents outlive what they belong to, where that was killed
            with suppress(psutil.NoSuchProcess):
                each.kill()
        shutil.rmtree(folder, ignore_errors=True)
