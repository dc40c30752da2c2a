"""``headrace cache``: lists, describes and empties."""

import json

import pytest

from headrace.cache import shm
from headrace.cache.redis import RedisTier
from headrace.cache.shm import SharedMemoryTier
from headrace.cli.__main__ import main
from headrace.testing.tiers import put
from tests.cache import servers
from tests.cache.conftest import name  # noqa: F401  (a fixture)


@pytest.fixture
def cache(name):  # noqa: F811  (the fixture)
    tier = SharedMemoryTier(name, 2 << 20)
    assert put(tier, 1, bytes(5000))
    assert put(tier, 2, bytes(700), form=1)
    yield name
    tier.close()


def said(capsys, *arguments):
    assert main(["cache", *arguments]) == 0
    return capsys.readouterr().out


def test_info(cache, capsys):
    found = json.loads(said(capsys, "info", f"shm://{cache}", "--json"))
    assert (found["entries"], found["processes"]) == (2, 0)
    assert found["forms"]["decoded"] == {"entries": 1, "bytes": 5000}
    assert found["forms"]["encoded"] == {"entries": 1, "bytes": 700}
    assert found["bytes"] <= found["limit"] <= 2 << 20
    assert "4.88 KiB" in said(capsys, "info", f"shm://{cache}")


def test_ls(cache, capsys):
    found = json.loads(said(capsys, "ls", "--json"))
    assert f"shm://{cache}" in [each["url"] for each in found]
    assert f"shm://{cache}" in said(capsys, "ls")


def test_clear_gives_the_memory_back(cache, capsys):
    assert "is empty" in said(capsys, "clear", f"shm://{cache}")
    assert not shm.path_of(cache).exists()
    assert main(["cache", "info", f"shm://{cache}"]) == 2
    assert "there is no cache" in capsys.readouterr().err


def test_on_a_server(tmp_path, capsys):
    with servers.one(tmp_path) as server:
        url = f"redis://{servers.USER}:{servers.PASSWORD}@127.0.0.1:{server.port}"
        tier = RedisTier(url, 1 << 20, "mine")
        assert put(tier, 1, bytes(3000))
        shown = said(capsys, "info", url, "--namespace", "mine", "--json")
        assert json.loads(shown)["forms"]["decoded"]["bytes"] == 3000
        assert servers.PASSWORD not in shown
        assert servers.PASSWORD not in said(capsys, "clear", url, "--namespace", "mine")
        assert tier.usage().entries == 0
        tier.close()


@pytest.mark.parametrize("url", ["shm://no-such-cache-here", "shm://a/b", "http://x", "redis://127.0.0.1:1"])
def test_mistakes_are_one_line(url, capsys):
    assert main(["cache", "info", url]) == 2
    error = capsys.readouterr().err
    assert error.startswith("headrace cache: ")
    assert error.count("\n") == 1
