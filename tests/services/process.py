"""A server's process: started in a session of its own, known by pid and start time, stopped and never mistaken."""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.services import HOME, Unavailable

PATIENCE_S = 5.0
"""How long a server that was asked to end may take to do so."""

_children: dict[tuple[int, int], subprocess.Popen[bytes]] = {}
"""By pid and start time, those this process started itself and has to wait for."""


@dataclass(frozen=True)
class Running:
    """A process that was started, as ``run/NAME.json`` remembers it. A pid alone may be somebody else's by now."""

    name: str
    pid: int
    began: int
    """Clock ticks after boot, from the kernel."""
    ports: Mapping[str, int]
    log: str

    @property
    def alive(self) -> bool:
        child = _children.get((self.pid, self.began))
        if child is not None and child.poll() is not None:
            return False
        return self.began != 0 and _began(self.pid) == self.began

    def save(self) -> None:
        path = HOME / "run" / f"{self.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def known(cls, name: str) -> "Running | None":
        """The one that was started under this name and still lives."""
        try:
            found = cls(**json.loads((HOME / "run" / f"{name}.json").read_text()))
        except (OSError, ValueError, TypeError):
            return None
        return found if found.alive else None

    def kill(self) -> None:
        """At once, without a chance to finish anything."""
        self._signal(signal.SIGKILL)
        self._wait_gone(10.0)

    def stop(self) -> None:
        """Asks, waits a while, insists."""
        self._signal(signal.SIGTERM)
        if not self._wait_gone(PATIENCE_S):
            self.kill()
        (HOME / "run" / f"{self.name}.json").unlink(missing_ok=True)

    def _signal(self, number: int) -> None:
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _wait_gone(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.alive:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        child = _children.pop((self.pid, self.began), None)
        if child is not None:
            child.wait()
        return True

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Polls until it is ready. One that ends, or takes longer, is ``Unavailable``, with its last words."""
        deadline = time.monotonic() + seconds
        while not ready():
            if not self.alive:
                raise Unavailable(f"{self.name} ended: {last_words(Path(self.log))}")
            if time.monotonic() > deadline:
                self.stop()
                raise Unavailable(f"{self.name} was not ready after {seconds:.0f} s: {last_words(Path(self.log))}")
            time.sleep(0.05)


def spawn(
    name: str, command: Sequence[str | Path], *, ports: Mapping[str, int], log: Path, env: Mapping[str, str]
) -> Running:
    """Starts it, with its output in ``log``. One of this name that a killed test left running is stopped first."""
    left = Running.known(name)
    if left is not None:
        left.stop()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            env={**os.environ, **env},
            start_new_session=True,
        )
    running = Running(name, child.pid, _began(child.pid), dict(ports), str(log))
    _children[running.pid, running.began] = child
    running.save()
    return running


def tool(name: str) -> str:
    """Where a command is; ``Unavailable`` where it is not."""
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"no {name} on this machine")
    return found


def get(command: Sequence[str | Path], *, seconds: float, env: Mapping[str, str] | None = None) -> None:
    """Runs a registry's client. ``Unavailable`` with the last line it wrote, or that it took too long."""
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            list(command),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            env={**os.environ, **(env or {})},
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{name} took longer than {seconds:.0f} s") from None
    if done.returncode:
        lines = (done.stderr + done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
        raise Unavailable(f"{name}: {lines[-1][:300]}")


def free_port(first: int, hosts: Sequence[str] = ("127.0.0.1",)) -> int:
    """Any of the 500 ports from there on that nobody listens on, on any of the hosts: others look for one too."""
    for port in random.SystemRandom().sample(range(first, first + 500), 500):  # a test's own are the same in all
        if all(_free(host, port) for host in hosts):
            return port
    raise Unavailable(f"no free port from {first} to {first + 499}")


def last_words(log: Path) -> str:
    """The last line of a log that speaks of an error, else the last line."""
    try:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return "no log"
    errors = [line for line in lines if "ERROR" in line or "Exception" in line]
    return (errors or lines or ["nothing in its log"])[-1][:300]


def listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, port)) == 0


def _free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _began(pid: int) -> int:
    """When the process began; 0 for one that is gone. A zombie is: whoever should wait for it may do so late."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])
