"""Whatever happens to its connections, the Cassandra driver neither stops nor ends the process of a user."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from headrace import store
from headrace.core.errors import StoreUnavailable
from headrace.store import Blocking
from headrace.testing.stores import fill, sample_records
from tests.services.relay import Breakage, Fault, relayed
from tests.store.driver_probe import PROGRAMS

pytestmark = pytest.mark.service

HARD_SECONDS = 90.0
"""After which a process hangs: every wait in it is over long before."""
AT_ONCE = 6
STEPS = 26
"""Answers of a server until keys are listed, and some more."""


@pytest.fixture(scope="module")
def filled(cassandra_server):
    """The keyspace of twenty samples."""
    with cassandra_server.keyspace() as name:
        fill(store.open_writable(cassandra_server.url(name)), sample_records())
        yield name


def survives(server, keyspace, program, breakage):
    """Runs a program behind a relay that breaks; returns what it said."""
    with relayed(("127.0.0.1", server.port), breakage) as relay:
        url = server.url(keyspace, at=f"127.0.0.1:{relay.port}", timeout=1)
        command = [sys.executable, "-m", "tests.store.driver_probe", program, url]
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=HARD_SECONDS, cwd=Path(__file__).parents[2]
        )
    assert done.returncode == 0, (breakage, program, done)
    assert done.stderr == "", (breakage, program)
    told, driver = done.stdout.splitlines()
    assert driver == "driver False", "the driver was loaded by the user's process"
    return told


def chosen(seed, count):
    """A sample of every program, fault and step."""
    draw = random.Random(seed)
    steps = [number * STEPS // count for number in range(count)]
    draw.shuffle(steps)
    return [
        (draw.choice(list(PROGRAMS)), Breakage(draw.choice(list(Fault)), step, draw.choice([None, None, 1, 3])))
        for step in steps
    ]


class TestBrokenConnections:
    @pytest.mark.parametrize("program", PROGRAMS)
    def test_nothing_broken(self, cassandra_server, filled, program):
        told = survives(cassandra_server, filled, program, Breakage(Fault.CUT, 1 << 30))
        assert told.startswith(("done", "error MissingKey"))

    def test_at_some_steps(self, cassandra_server, filled):
        self.all_survive(cassandra_server, filled, chosen(1, STEPS // 2))

    @pytest.mark.soak
    @pytest.mark.timeout(4 * 3600)
    def test_at_every_step_again_and_again(self, cassandra_server, filled):
        self.all_survive(cassandra_server, filled, chosen(int(time.time()), 400))

    def all_survive(self, server, keyspace, cases):
        """Several at once: they wait, most of the time."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda case: survives(server, keyspace, *case), cases))


class TestDeaths:
    def drivers(self):
        return [child for child in psutil.Process().children() if "driver_process" in " ".join(child.cmdline())]

    def test_a_process_that_is_killed_is_replaced(self, cassandra_server, filled):
        local = Blocking(store.open_store(cassandra_server.url(filled)))
        try:
            key = sample_records()[0].key
            first = local.get(key)
            (driver,) = self.drivers()
            driver.kill()
            assert local.get(key) == first
            (other,) = self.drivers()
            assert other.pid != driver.pid
        finally:
            local.close()
        assert self.drivers() == []

    def test_one_that_is_killed_during_a_request_is_replaced(self, cassandra_server, filled):
        async def read():
            session = await store.open_store(cassandra_server.url(filled)).connect()
            try:
                (driver,) = self.drivers()
                driver.suspend()
                coming = asyncio.create_task(session.get(sample_records()[0].key))
                await asyncio.sleep(0)  # it is sent
                driver.kill()
                return await coming
            finally:
                await session.close()

        assert asyncio.run(read()).label == 0

    def test_one_that_cannot_live_is_named(self, monkeypatch):
        monkeypatch.setattr(
            "headrace.store.driver_process.driver_handle._PROGRAM",
            "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
        )
        with pytest.raises(StoreUnavailable, match="died 3 times, the last time with exit code -11"):
            store.open_store("cassandra://127.0.0.1:1/k/t").keys()

    def test_it_ends_with_whoever_started_it(self, cassandra_server, filled):
        program = (
            "import sys, time; from headrace import store; from headrace.store import Blocking\n"
            f"local = Blocking(store.open_store({cassandra_server.url(filled)!r}))\n"
            f"local.get({sample_records()[0].key!r}); print('there', flush=True); time.sleep(600)"
        )
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"there\n"
            (driver,) = psutil.Process(process.pid).children()
            os.kill(process.pid, signal.SIGKILL)
        driver.wait(240)
