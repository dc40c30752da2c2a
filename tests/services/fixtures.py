"""Session fixtures: a server is started by the first test that asks for it, and stopped after the last.

With ``--services`` all servers are started at the beginning, beside the tests that need none.
"""

import asyncio
import contextlib
import os
import ssl
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from tests.services import Unavailable, cassandra, cql
from tests.services.process import Running, free_port
from tests.services.sharing import Used, stop
from tests.services.tls import Material, Pair, material
from tests.services.toxiproxy import Proxy

NOT_HAD = "is not available:"
_missing: dict[str, str] = {}
"""Why a service could not be had: asked once, answered for every test."""


def had(name: str, get: Callable[[], object]) -> object:
    """What ``get`` gives; a skipped test where it cannot be had, a failed one in continuous integration."""
    if name not in _missing:
        try:
            return get()
        except Unavailable as error:
            _missing[name] = str(error)
    reason = f"{name} {NOT_HAD} {_missing[name]}"
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("headrace")
    group.addoption("--services", action="store_true", help="start every server at once, beside tests that need none")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--services") and not config.getoption("collectonly") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Holder())


class Holder:
    """Has a process hold the servers from the session's beginning until those who run tests have ended."""

    def pytest_sessionstart(self) -> None:
        command = [sys.executable, "-m", "tests.services", "hold"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def pytest_unconfigure(self) -> None:
        with self._process:  # which closes its input, and waits
            pass


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says what was not tried."""
    reasons = (str(report.longrepr) for report in terminalreporter.stats.get("skipped", []))
    missed = sum(NOT_HAD in reason for reason in reasons)
    if missed:
        terminalreporter.write_line(f"{missed} tests were skipped for want of a server", yellow=True)


@contextlib.contextmanager
def service(name: str) -> Iterator[Running]:
    """A service for the session, shared with everybody who uses it."""
    used = had(name, lambda: Used(name))
    try:
        yield used.running
    finally:
        used.release()


@pytest.fixture(scope="session")
def tls() -> Material:
    return material()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Running]:
    with service("redis") as running:
        yield running


@pytest.fixture(scope="session")
def toxiproxy_server() -> Iterator[Running]:
    with service("toxiproxy") as running:
        yield running


@pytest.fixture
def proxied(toxiproxy_server: Running) -> Iterator[Callable[[str], Proxy]]:
    """Makes proxies before servers ("host:port"), and takes them away after the test."""
    made: list[Proxy] = []

    def make(upstream: str) -> Proxy:
        made.append(Proxy.make(toxiproxy_server.ports["api"], f"t{uuid.uuid4().hex[:8]}", upstream))
        return made[-1]

    yield make
    for proxy in made:
        proxy.remove()


@dataclass
class CassandraServer:
    """A server and how to get in."""

    hosts: list[str]
    port: int
    user: str | None = cassandra.USER
    password: str | None = cassandra.PASSWORD

    @property
    def address(self) -> str:
        return ",".join(f"{host}:{self.port}" for host in self.hosts)

    def url(self, keyspace: str, *, table: str = "samples", at: str | None = None, **options: object) -> str:
        login = "" if self.user is None else f"{self.user}:{self.password}@"
        query = "&".join(
            f"{name}={value}" for name, value in {"timeout": 10, "connections": 1, "io_threads": 1, **options}.items()
        )
        return f"cassandra://{login}{at or self.address}/{keyspace}/{table}?{query}"

    @contextlib.contextmanager
    def keyspace(self) -> Iterator[str]:
        """A name nobody else has; whatever is made under it is dropped at the end."""
        name = f"k{uuid.uuid4().hex[:12]}"
        yield name
        self.execute(f"DROP KEYSPACE IF EXISTS {name}")

    def execute(self, *statements: str) -> list[list[object]]:
        """The rows that the last of them gives."""
        return cql.execute(self.url("any", timeout=30), *statements)


@pytest.fixture(scope="session")
def cassandra_server() -> Iterator[CassandraServer]:
    """One node: passwords, plain and TLS on one port."""
    with service("cassandra") as running:
        server = CassandraServer(["127.0.0.1"], running.ports["cql"])
        yield server


@pytest.fixture
def keyspace(cassandra_server: CassandraServer) -> Iterator[str]:
    with cassandra_server.keyspace() as name:
        yield name


def _started(nodes: list[cassandra.Node]) -> list[Running]:
    running = [node.start() for node in nodes]
    try:
        for node, process in zip(nodes, running, strict=True):
            node.wait_ready(process)
    except Unavailable:
        for process in running:
            process.stop()
        raise
    return running


@dataclass
class CassandraCluster(CassandraServer):
    """Several nodes that can be killed and started again."""

    nodes: list[cassandra.Node] = field(default_factory=list)
    running: list[Running] = field(default_factory=list)

    def kill(self, number: int) -> None:
        self.running[number].kill()

    def start(self, number: int) -> None:
        self.running[number] = self.nodes[number].start()
        self.nodes[number].wait_ready(self.running[number])


@contextlib.contextmanager
def _cluster(nodes: list[cassandra.Node], *login: str | None) -> Iterator[CassandraCluster]:
    running = had("cassandra", lambda: _started(nodes))
    cluster = CassandraCluster([node.host for node in nodes], nodes[0].port, *login, nodes=nodes, running=running)
    try:
        yield cluster
    finally:
        for process in cluster.running:
            process.kill()
        for node in nodes:
            stop(node.name)


@pytest.fixture(scope="module")
def cassandra_pair() -> Iterator[CassandraCluster]:
    """Two nodes, on 127.0.0.1 and .2, that want a certificate from their clients and know no passwords."""
    with _cluster(cassandra.cluster(2, mutual=True), None, None) as pair:
        yield pair


@pytest.fixture(scope="module")
def cassandra_cluster() -> Iterator[CassandraCluster]:
    """Three nodes, on 127.0.0.1, .2 and .3."""
    with _cluster(cassandra.cluster(3), cassandra.USER, cassandra.PASSWORD) as cluster:
        cluster.execute()  # the driver opens what it keeps for the life of a process
        yield cluster


@contextlib.contextmanager
def tls_front(pair: Pair, upstream: tuple[str, int]) -> Iterator[int]:
    """A port that speaks TLS with that certificate and passes on in plain what it hears: a server with a bad one."""
    port, loop = free_port(18700), asyncio.new_event_loop()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    server = loop.run_until_complete(
        asyncio.start_server(lambda reader, writer: _pass_on(reader, writer, upstream), "127.0.0.1", port, ssl=context)
    )
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield port
    finally:

        async def end() -> None:
            server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: tuple[str, int]) -> None:
    try:
        far_reader, far_writer = await asyncio.open_connection(*upstream)
        try:
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        finally:
            far_writer.close()
    except (OSError, ssl.SSLError):
        pass
    finally:
        writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(65536):
        writer.write(chunk)
        await writer.drain()
    writer.close()
