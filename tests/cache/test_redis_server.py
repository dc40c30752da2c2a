"""A server, or a cluster, that does not answer."""

import pytest

from headrace.cache.backends import redis_server
from headrace.cache.backends.redis_server import RedisServer
from headrace.core.errors import CacheError

redis = pytest.importorskip("redis")
AWAY = redis.exceptions.RedisClusterException("Redis Cluster cannot be connected.")


class Single:
    """The first look at a server, which says that it is one of a cluster."""

    def info(self, _):
        return {"cluster_enabled": 1}

    def close(self):
        pass


class Cluster:
    """Its client, which asks all servers when it is made."""

    def __init__(self, failing):
        self.failing = failing

    def from_url(self, *_, **__):
        if self.failing:
            self.failing -= 1
            raise AWAY
        return self


@pytest.fixture
def cluster(monkeypatch):
    found = Cluster(0)
    monkeypatch.setattr(redis.Redis, "from_url", lambda *_, **__: Single())
    monkeypatch.setattr(redis.cluster, "RedisCluster", found)
    return found


def test_a_cluster_that_cannot_be_reached_is_a_caches_error(cluster, monkeypatch):
    monkeypatch.setattr(redis_server, "CONNECT", 0.0)
    cluster.failing = 1 << 30
    with pytest.raises(CacheError, match="cannot be connected"):
        RedisServer("redis://127.0.0.1:1", "cache")


def test_one_whose_servers_are_busy_is_asked_again(cluster):
    cluster.failing = 3
    assert RedisServer("redis://127.0.0.1:1", "cache").clustered


def test_one_that_goes_away_later_is_left_alone(cluster):
    server = RedisServer("redis://127.0.0.1:1", "cache")

    def away():
        raise AWAY

    assert server.tried(away, "nothing") == "nothing"
    assert server.rests
