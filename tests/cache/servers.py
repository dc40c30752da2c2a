"""Real Redis servers of a test's own, on free ports of 127.0.0.1: with a user, with TLS, as a cluster, to be killed."""

import contextlib
import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.fixtures import had
from tests.services.redis import Program, fetch
from tests.services.tls import material

USER, PASSWORD = "headrace", "s3cret-Wort"
RULES = f"user {USER} on >{PASSWORD} ~hr:* &hr:* +@read +@write +@connection +@scripting -@dangerous +info +cluster"


class Server:
    """One process. ``options`` are the server's own."""

    def __init__(self, folder: Path, port: int, *options: str) -> None:
        self.folder, self.port, self.options = folder, port, options
        folder.mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None
        self.secure_port = 0

    def start(self) -> None:
        program = needed()
        common = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(self.folder)]
        command = [str(program.path), "--port", str(self.port), *common, *self.options]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **program.env})
        deadline = time.monotonic() + 240
        while not self._answers():
            assert self._process.poll() is None, (self.folder / "log").read_text()[-500:]
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as link:
            link.sendall(b"PING\r\n")
            return link.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        return False

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def needed() -> Program:
    """The server's executable; a skipped test where it cannot be had."""
    found = had("redis", fetch)
    assert isinstance(found, Program)
    return found


def _cli(*arguments: str) -> str:
    program = needed()
    beside = program.path.with_name("redis-cli")
    command = str(beside) if beside.exists() else shutil.which("redis-cli")
    if command is None:
        pytest.skip("no redis-cli on this machine")
    environment = {**os.environ, **program.env}
    done = subprocess.run(
        [command, *arguments], capture_output=True, text=True, timeout=240, check=False, env=environment
    )
    return done.stdout


def keys(port: int, pattern: str) -> list[str]:
    """Those of one server."""
    return _cli("-p", str(port), "--scan", "--pattern", pattern).split()


def free_ports(count: int) -> list[int]:
    """Where a cluster's second ports, 10,000 higher, are below those that the kernel gives out. Any of them: others
    look for some at this moment, and a test's own random numbers are the same in all of them.
    """
    found: list[int] = []
    for port in random.SystemRandom().sample(range(21_000, 22_700), 1_700):
        with socket.socket() as one, socket.socket() as other:
            try:
                one.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    pytest.fail("no free port")


@contextlib.contextmanager
def one(folder: Path, *options: str) -> Iterator[Server]:
    """A server with a user who may do what a cache needs, and nobody else."""
    folder.mkdir(parents=True, exist_ok=True)
    users = folder / "users.acl"
    users.write_text(f"user default off\n{RULES}\n")
    server = Server(folder, free_ports(1)[0], "--aclfile", str(users), *options)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@contextlib.contextmanager
def cluster(folder: Path, *, tls: bool = False) -> Iterator[list[Server]]:
    """Three servers without users; with ``tls`` they speak it among each other, and with clients on ``secure_port``."""
    options = ["--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-node-timeout", "5000"]
    ports = free_ports(6)
    servers = []
    for port, other in zip(ports[:3], ports[3:], strict=True):
        more = [*secure(other), "--tls-cluster", "yes"] if tls else []
        servers.append(Server(folder / str(port), port, *options, *more))
        servers[-1].secure_port = other
    try:
        for server in servers:
            server.start()
        addresses = [f"127.0.0.1:{server.secure_port if tls else server.port}" for server in servers]
        spoken = ["--tls", "--cacert", str(material().ca)] if tls else []
        _cli(*spoken, "--cluster", "create", *addresses, "--cluster-yes")
        deadline = time.monotonic() + 240
        while not all(_joined(server.port) for server in servers):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield servers
    finally:
        for server in servers:
            server.kill()


def _joined(port: int) -> bool:
    return "cluster_state:ok" in _cli("-p", str(port), "cluster", "info")


def secure(port: int) -> list[str]:
    """Options for a port that speaks TLS, with the certificate of the tests' own authority."""
    files = material()
    options = {"tls-port": port, "tls-cert-file": files.server.cert, "tls-key-file": files.server.key}
    options |= {"tls-ca-cert-file": files.ca, "tls-auth-clients": "no"}
    return [str(part) for name, value in options.items() for part in (f"--{name}", value)]
