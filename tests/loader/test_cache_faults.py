"""A cache that runs out of memory, or whose users die: every sample comes once per epoch, as it should be."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

import headrace
from headrace.cache.backends import local_tables, redis_server
from tests.cache import servers
from tests.cache.servers import PASSWORD, USER
from tests.loader.test_cache import EVERYTHING, SAMPLES, Stages, cache, loader_of, name, numbers

__all__ = ["name"]
LARGE = 20_000
"""Numbers in a sample: 160 KB, so that few of them fill a page of shared memory."""


@pytest.mark.parametrize("order", [{"in_order": False}, {"in_order": True}])
def test_the_host_s_shared_memory_is_full(name, monkeypatch, order):
    """The kernel gives memory for some entries and then no more, long before the cache is as large as it may be."""
    written, given = local_tables.LocalBackend.aside, []

    def aside(backend, entry, content):
        given.append(entry)
        return written(backend, entry, content) if len(given) <= 5 else None

    monkeypatch.setattr(local_tables.LocalBackend, "aside", aside)  # workers are forked, and each has its own five
    with loader_of(Stages(size=LARGE), cache(name, size="64MiB", split=(0, 100, 0)), **order) as loader:
        for _ in range(3):
            assert sorted(numbers(loader)) == EVERYTHING
        use = loader.stats().cache
    assert 0 < use.decoded < 2 * SAMPLES, "some fit, and not all"


def test_a_server_is_out_of_memory(tmp_path):
    with servers.one(tmp_path, "--maxmemory", "6mb", "--maxmemory-policy", "noeviction") as server:
        where = headrace.Cache(f"redis://{USER}:{PASSWORD}@127.0.0.1:{server.port}", size="64MiB", split=(0, 100, 0))
        with loader_of(Stages(size=LARGE), where) as loader:
            for _ in range(3):
                assert sorted(numbers(loader)) == EVERYTHING


def test_a_server_evicts_what_it_likes(tmp_path):
    """Its own eviction may take entries, and what the ledger keeps there too."""
    with servers.one(tmp_path, "--maxmemory", "6mb", "--maxmemory-policy", "allkeys-random") as server:
        where = headrace.Cache(f"redis://{USER}:{PASSWORD}@127.0.0.1:{server.port}", size="64MiB", split=(0, 100, 0))
        with loader_of(Stages(size=LARGE), where) as loader:
            for _ in range(3):
                assert sorted(numbers(loader)) == EVERYTHING


JOB = """
import sys
import headrace
from headrace.cache.backends import local_tables, redis_server
from tests.loader.test_cache import Stages, loader_of
with loader_of(Stages(), headrace.Cache(sys.argv[1], size="8MiB", split=(0, 100, 0)), num_workers=1) as loader:
    while True:
        for batch in loader:
            print("batch", flush=True)
"""


def test_a_job_on_another_host_is_killed(tmp_path):
    with servers.one(tmp_path) as server:
        url = f"redis://{USER}:{PASSWORD}@127.0.0.1:{server.port}"
        with subprocess.Popen(
            [sys.executable, "-c", JOB, url], stdout=subprocess.PIPE, start_new_session=True
        ) as doomed:
            assert doomed.stdout is not None
            assert doomed.stdout.readline() == b"batch\n"
            with loader_of(Stages(), headrace.Cache(url, size="8MiB", split=(0, 100, 0))) as loader:
                epoch = iter(loader)
                found = numbers([next(epoch)])
                os.killpg(doomed.pid, signal.SIGKILL)
                assert sorted(found + numbers(epoch)) == EVERYTHING
                assert sorted(numbers(loader)) == EVERYTHING


def test_a_server_that_hangs_is_waited_for_once_and_used_again(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(redis_server, "REPLY", 0.2)
    monkeypatch.setattr(redis_server, "FIRST", 0.1)
    with servers.one(tmp_path) as server:
        where = headrace.Cache(f"redis://{USER}:{PASSWORD}@127.0.0.1:{server.port}", size="8MiB", split=(0, 100, 0))
        with loader_of(Stages(), where, num_workers=0) as loader:
            assert sorted(numbers(loader)) == EVERYTHING
            epoch = iter(loader)
            found = numbers([next(epoch)])
            os.kill(server.pid, signal.SIGSTOP)
            try:
                found += numbers(next(epoch) for _ in range(5))
            finally:
                os.kill(server.pid, signal.SIGCONT)
            assert sorted(found + numbers(epoch)) == EVERYTHING
            while loader.stats().cache.decoded < 2 * SAMPLES:  # it is tried again after a while
                assert sorted(numbers(loader)) == EVERYTHING
    said = [record for record in caplog.records if "going on without it" in record.getMessage()]
    assert len(said) == len({record.getMessage() for record in said}), "each thing once"


JOBS = """
import sys
from tests.loader.test_cache import EVERYTHING, Stages, cache, loader_of, numbers
with loader_of(Stages(), cache(sys.argv[1]), num_workers=0) as loader:
    print("up", flush=True)
    while True:
        assert sorted(numbers(loader)) == EVERYTHING
"""


def test_jobs_that_are_stopped_stop_nobody(name):
    """At any moment, also inside the lock."""
    rng = random.Random(3)
    with subprocess.Popen([sys.executable, "-c", JOBS, name], stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"up\n"
        try:
            with loader_of(Stages(), cache(name), num_workers=1) as loader:
                for _ in range(6):
                    os.kill(other.pid, signal.SIGSTOP)
                    assert sorted(numbers(loader)) == EVERYTHING
                    os.kill(other.pid, signal.SIGCONT)
                    time.sleep(rng.random() / 20)  # so that it is somewhere else
            assert other.poll() is None
        finally:
            other.kill()
