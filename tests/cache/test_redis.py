"""The tier on real servers: one with a user, one with TLS, a cluster, and one that goes and comes back."""

import logging
import secrets
import subprocess
import sys

import pytest

from headrace.cache import redis_server
from headrace.cache.redis import RedisTier
from headrace.core.errors import CacheError
from headrace.testing.tiers import TierSuite, got, key, put
from tests.cache import servers
from tests.cache.servers import PASSWORD, USER

LIMIT = 4 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with servers.one(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    with servers.cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def url(server, password=PASSWORD):
    return f"redis://{USER}:{password}@127.0.0.1:{server.port}"


@pytest.fixture
def tier(server):
    found = RedisTier(url(server), LIMIT, secrets.token_hex(4))
    yield found
    found.clear()
    found.close()


class TestServer(TierSuite):
    @pytest.fixture(autouse=True)
    def _reached(self, server):
        self.url, self.namespace = url(server), secrets.token_hex(4)
        yield
        with self.opened() as tier:
            tier.clear()

    def open(self):
        return RedisTier(self.url, self.limit, self.namespace)


class TestCluster(TierSuite):
    @pytest.fixture(autouse=True)
    def _reached(self, nodes):
        self.url, self.namespace = f"redis://127.0.0.1:{nodes[0].port}", secrets.token_hex(4)
        yield
        with self.opened() as tier:
            tier.clear()

    def open(self):
        return RedisTier(self.url, self.limit, self.namespace)


def test_a_cluster_s_entries_lie_on_all_servers(nodes):
    tier = RedisTier(f"redis://127.0.0.1:{nodes[0].port}", LIMIT, "spread")
    assert all(put(tier, sample, bytes(1000)) for sample in range(60))
    counts = [len(servers.keys(node.port, "hr:spread:*")) for node in nodes]
    tier.clear()
    tier.close()
    assert sum(counts) == 60
    assert min(counts) > 5


@pytest.mark.parametrize("clustered", [False, True])
def test_a_place_taken_by_who_died_is_found(clustered, server, nodes):
    """The count says it is there, and it is not: a writer died in between, or the server dropped it."""
    address = f"redis://127.0.0.1:{nodes[0].port}" if clustered else url(server)
    tier = RedisTier(address, LIMIT, secrets.token_hex(4))
    assert put(tier, 1, b"a" * 1000)
    tier.server.client.delete(tier._value(key(1)))
    assert got(tier, 1) == [None]
    assert put(tier, 1, b"b" * 500)
    assert got(tier, 1) == [b"b" * 500]
    assert tier.usage().bytes == 500
    tier.clear()
    assert tier.usage().bytes == 0
    tier.close()


def test_caches_on_one_server_are_kept_apart(server, tier):
    other = RedisTier(url(server), LIMIT, secrets.token_hex(4))
    assert put(tier, 1, b"mine" * 10)
    assert got(other, 1) == [None]
    other.clear()
    assert got(tier, 1) == [b"mine" * 10]
    other.close()


def test_many_are_fetched_in_pipelines_of_about_a_megabyte(tier, monkeypatch):
    assert all(put(tier, sample, bytes(150_000)) for sample in range(24))
    got(tier, *range(24))
    asked = []
    fetched = tier._fetched
    monkeypatch.setattr(tier, "_fetched", lambda keys: asked.append(len(keys)) or fetched(keys))
    tier._typical = 150_000.0
    assert None not in got(tier, *range(24))
    assert asked == [6, 6, 6, 6]


def test_a_lost_server_is_a_miss_and_is_found_again(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(redis_server, "RETRY", 0.0)
    with servers.one(tmp_path) as server:
        tier = RedisTier(url(server), LIMIT)
        assert put(tier, 1, b"x" * 1000)
        server.kill()
        with caplog.at_level(logging.WARNING, "headrace.cache"):
            assert got(tier, 1, 2) == [None, None]
        assert not put(tier, 2, b"y" * 1000)
        tier.delete([key(1)])
        assert list(tier.listed()) == []
        assert tier.usage().entries == 0
        assert PASSWORD not in caplog.text
        assert "going on without it" in caplog.text
        server.start()
        assert got(tier, 1) == [None]
        assert put(tier, 2, b"y" * 1000)
        assert got(tier, 2) == [b"y" * 1000]
        tier.close()


def test_a_server_that_cannot_be_reached_is_left_alone_for_a_while(tmp_path):
    with servers.one(tmp_path) as server:
        tier = RedisTier(url(server), LIMIT)
        server.kill()
        assert got(tier, 1) == [None]
        server.start()
        assert not put(tier, 1, b"x" * 100)
        tier.server._down_until = 0.0
        assert put(tier, 1, b"x" * 100)
        tier.close()


def test_a_server_without_memory_refuses(tmp_path):
    with servers.one(tmp_path, "--maxmemory", "3mb") as server:
        tier = RedisTier(url(server), 64 << 20)
        kept = sum(put(tier, sample, bytes(200_000)) for sample in range(30))
        assert 0 < kept < 30
        assert got(tier, 0) == [bytes(200_000)]
        tier.close()


def test_tls(tmp_path, tls):
    port = servers.free_ports(2)[1]
    with servers.one(tmp_path, *servers.secure(port)):
        secure = f"rediss://{USER}:{PASSWORD}@127.0.0.1:{port}"
        tier = RedisTier(f"{secure}?ssl_ca_certs={tls.ca}", LIMIT)
        assert put(tier, 1, b"secret" * 100)
        assert got(tier, 1) == [b"secret" * 100]
        tier.close()
        for wrong in (secure, f"{secure}?ssl_ca_certs={tls.other_ca}"):
            with pytest.raises(CacheError, match="certificate") as caught:
                RedisTier(wrong, LIMIT)
            assert PASSWORD not in str(caught.value)


class TestErrors:
    def test_a_wrong_password(self, server):
        with pytest.raises(CacheError, match="invalid username-password") as caught:
            RedisTier(url(server, "wrong-Wort"), LIMIT)
        assert "wrong-Wort" not in str(caught.value)
        assert f"127.0.0.1:{server.port}" in str(caught.value)

    def test_nobody_there(self):
        (port,) = servers.free_ports(1)
        with pytest.raises(CacheError, match=f"redis://127.0.0.1:{port} cannot be used"):
            RedisTier(f"redis://u:{PASSWORD}@127.0.0.1:{port}", LIMIT)

    @pytest.mark.parametrize("wrong", ["redis://", "http://host", "redis", "redis:///0", "redis://u:hid/den@host"])
    def test_a_wrong_url(self, wrong):
        with pytest.raises(CacheError, match="URL of a cache on Redis") as caught:
            RedisTier(wrong, LIMIT)
        assert "hid" not in str(caught.value)

    def test_a_wrong_option(self, server):
        with pytest.raises(CacheError, match="colour"):
            RedisTier(f"{url(server)}?colour=red", LIMIT)

    def test_what_it_prints_of_itself_has_no_password(self, tier):
        assert PASSWORD not in repr(tier)
        assert "redis://127.0.0.1" in repr(tier)

    def test_without_the_driver(self):
        program = (
            "import sys; sys.modules['redis'] = None\n"
            "from headrace.cache.redis import RedisTier\n"
            "try: RedisTier('redis://127.0.0.1', 1)\n"
            "except Exception as error: print(type(error).__name__, error)"
        )
        shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        assert shown == "CacheError a cache on Redis needs its driver: pip install 'headrace[redis]'\n"
