"""A cache that runs out of memory, or whose users die: every sample comes once per epoch, as it should be."""

import errno
import os
import signal
import subprocess
import sys

import pytest

import headrace
from tests.cache import servers
from tests.cache.servers import PASSWORD, USER
from tests.loader.test_cache import EVERYTHING, SAMPLES, Stages, cache, loader_of, name, numbers

__all__ = ["name"]
LARGE = 20_000
"""Numbers in a sample: 160 KB, so that few of them fill a page of shared memory."""


@pytest.mark.parametrize("order", [{"in_order": False}, {"in_order": True}])
def test_the_host_s_shared_memory_is_full(name, monkeypatch, order):
    """The kernel gives some pages and then no more, long before the cache is as large as it may be."""
    granted, given = os.posix_fallocate, []

    def allocate(descriptor, offset, size):
        if len(given) >= 5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        given.append(size)
        granted(descriptor, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", allocate)  # workers are forked, and each has its own five
    with loader_of(Stages(size=LARGE), cache(name, size="64MiB"), **order) as loader:
        for _ in range(3):
            assert sorted(numbers(loader)) == EVERYTHING
        use = loader.stats().cache
    assert 0 < use.decoded < 2 * SAMPLES, "some fit, and not all"


def test_a_server_is_out_of_memory(tmp_path):
    with servers.one(tmp_path, "--maxmemory", "6mb", "--maxmemory-policy", "noeviction") as server:
        where = headrace.Cache(f"redis://{USER}:{PASSWORD}@127.0.0.1:{server.port}", size="64MiB")
        with loader_of(Stages(size=LARGE), where) as loader:
            for _ in range(3):
                assert sorted(numbers(loader)) == EVERYTHING


def test_a_server_evicts_what_it_likes(tmp_path):
    """Its own eviction may take entries, and what the ledger keeps there too."""
    with servers.one(tmp_path, "--maxmemory", "6mb", "--maxmemory-policy", "allkeys-random") as server:
        where = headrace.Cache(f"redis://{USER}:{PASSWORD}@127.0.0.1:{server.port}", size="64MiB")
        with loader_of(Stages(size=LARGE), where) as loader:
            for _ in range(3):
                assert sorted(numbers(loader)) == EVERYTHING


JOB = """
import sys
import headrace
from tests.loader.test_cache import Stages, loader_of
with loader_of(Stages(), headrace.Cache(sys.argv[1], size="8MiB"), num_workers=1) as loader:
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
            with loader_of(Stages(), headrace.Cache(url, size="8MiB")) as loader:
                epoch = iter(loader)
                found = numbers([next(epoch)])
                os.killpg(doomed.pid, signal.SIGKILL)
                assert sorted(found + numbers(epoch)) == EVERYTHING
                assert sorted(numbers(loader)) == EVERYTHING
