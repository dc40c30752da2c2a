"""A directory as a tier, and memory above it."""

import os

import pytest

from headrace.cache.directory import DirectoryTier
from headrace.cache.layered import Layered
from headrace.cache.options import Cache, open_tier
from headrace.cache.shm import SharedMemoryTier
from headrace.core.errors import CacheError
from headrace.testing.tiers import TierSuite, got, put


class TestDirectory(TierSuite):
    @pytest.fixture(autouse=True)
    def _placed(self, tmp_path):
        self.path = tmp_path / "cache"

    def open(self):
        return DirectoryTier(self.path, self.limit)


class TestLayered(TierSuite):
    limit = 4 << 20

    @pytest.fixture(autouse=True)
    def _placed(self, tmp_path, name):
        self.path, self.name = tmp_path / "cache", name

    def open(self):
        memory = SharedMemoryTier(self.name, 1 << 20)
        return Layered(memory, DirectoryTier(self.path, self.limit - (1 << 20)))


def test_what_a_dead_writer_left_is_put_right(tmp_path):
    tier = DirectoryTier(tmp_path, 1 << 20)
    child = os.fork()
    if child == 0:
        type(tmp_path).rename = lambda self, target: os.kill(os.getpid(), 9)
        put(tier, 1, bytes(10_000))
    assert os.waitpid(child, 0)[1] == 9
    assert got(tier, 1) == [None]
    assert tier.usage().bytes == 12_288
    tier.close()
    tier = DirectoryTier(tmp_path, 1 << 20)
    assert tier.usage().bytes == 0
    assert not list(tmp_path.rglob("*.part"))
    assert put(tier, 1, bytes(10_000))
    tier.close()


def test_one_who_opens_beside_others_changes_nothing(tmp_path):
    first = DirectoryTier(tmp_path, 1 << 20)
    assert put(first, 1, bytes(5000))
    second = DirectoryTier(tmp_path, 1 << 20)
    assert second.usage() == first.usage()
    first.close()
    second.close()


def test_a_place_that_cannot_be_had_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(CacheError, match="file cannot hold a cache"):
        DirectoryTier(tmp_path / "file", 1 << 20)


def test_a_cache_with_a_disk(tmp_path, name):
    tier = open_tier(Cache(f"shm://{name}", size="1MiB", disk=str(tmp_path / "below"), disk_size="3 MiB"))
    kept = sum(put(tier, sample, bytes([sample]) * 100_000) for sample in range(40))
    assert 30 <= kept <= 40
    assert got(tier, 0, kept - 1) == [bytes([0]) * 100_000, bytes([kept - 1]) * 100_000]
    tier.close()
