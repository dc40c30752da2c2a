"""``headrace cache``: lists, describes and empties."""

import json

import numpy as np
import pytest

from headrace.cache import arena_file, shm
from headrace.cache.division import Division, Rank, Sums
from headrace.cache.local_book import LocalBook
from headrace.cache.policies import Need
from headrace.cache.redis import RedisTier
from headrace.cache.redis_book import RedisBook
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


SCOPES = ("a" * 32, "b" * 32, "c" * 32)


def divide(book):
    """As a job that measures and plans."""
    book.begin(0)
    book.agree(None, 1000)
    book.measure(Sums(fetch=8_000_000, fetched=2))
    book.report(Rank(3, 100.0, 50.0))
    before = book.facts().division
    assert book.divide(Division(before.number + 1, (30, 70, 0), False, before.parts, 900, 400, 1))
    return book


def check_division(each, shown):
    assert (each["samples"], each["ranks"], each["split"], each["fixed"]) == (20, 1, [30, 70, 0], False)
    assert each["why"] == "900 samples/s predicted, with storage to set the pace, against 400 with 0-100-0"
    assert each["measured"] == {"fetch_seconds": 0.004, "jobs": 1, "lanes": 3, "demand": 100, "speed": 50}
    assert "30 % encoded, 70 % decoded (900 samples/s" in shown
    assert "fetch seconds 0.004" in shown


def test_info_says_how_it_is_divided_and_why(cache, capsys):
    book = divide(LocalBook(cache, samples=20, scopes=SCOPES, budget=(0, 1000, 0), policy=Need()))
    (each,) = json.loads(said(capsys, "info", f"shm://{cache}", "--json"))["divisions"]
    check_division(each, said(capsys, "info", f"shm://{cache}"))
    book.leave()


def test_ls(cache, capsys):
    found = json.loads(said(capsys, "ls", "--json"))
    assert f"shm://{cache}" in [each["url"] for each in found]
    assert f"shm://{cache}" in said(capsys, "ls")


def test_a_cache_of_another_version_is_listed_and_hides_no_other(cache, capsys):
    old = shm.path_of(f"{cache}.old")
    try:
        head = np.array([arena_file.MAGIC, arena_file.VERSION - 1, 4096], np.int64)
        old.write_bytes(head.tobytes().ljust(4 << 20, b"\0"))
        shown = said(capsys, "ls")
        assert f"shm://{cache} " in shown
        assert f"shm://{cache}.old: " in shown
        assert "was made by another version: remove it with `headrace cache clear" in shown
    finally:
        old.unlink()


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
        divide(RedisBook(tier.server, "d" * 16, samples=20, budget=(0, 1000, 0)))
        (each,) = json.loads(said(capsys, "info", url, "--namespace", "mine", "--json"))["divisions"]
        check_division(each, said(capsys, "info", url, "--namespace", "mine"))
        assert servers.PASSWORD not in said(capsys, "clear", url, "--namespace", "mine")
        assert tier.usage().entries == 0
        tier.close()


@pytest.mark.parametrize("url", ["shm://no-such-cache-here", "shm://a/b", "http://x", "redis://127.0.0.1:1"])
def test_mistakes_are_one_line(url, capsys):
    assert main(["cache", "info", url]) == 2
    error = capsys.readouterr().err
    assert error.startswith("headrace cache: ")
    assert error.count("\n") == 1
