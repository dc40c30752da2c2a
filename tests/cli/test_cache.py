"""``headrace cache``: lists, describes and empties."""

import json

import pytest

from headrace.cache.backends import entry_word as W
from headrace.cache.backends import shm
from headrace.cache.backends.disk import Disk
from headrace.cache.cache_options import Cache, open_share
from headrace.cache.division import DivisionRecord, Rank, Sums
from headrace.cache.peers import Unit
from headrace.cache.serving import Serving
from headrace.cli.__main__ import main
from headrace.cli.cache import bytes_text
from tests.cache import servers
from tests.cache.conftest import name  # noqa: F401  (a fixture)
from tests.cache.places import described

SCOPES = ("a" * 32, "b" * 32, "c" * 32)


def filled(where):
    """A cache with two entries, whose job measures and plans."""
    share = open_share(where, SCOPES, 20, Unit("1" * 16, "x-0"))
    backend = share.backend
    assert backend.divide(DivisionRecord(0, (30, 70, 0), False, (0, 100, 0), 900, 400, 1), None)
    assert share.keep(1, W.DECODED, described(1, 1000))
    assert share.keep(2, W.ENCODED, described(2, 100))
    backend.measure(Sums(fetch=8_000_000, fetched=2))
    Serving(share).report(Rank(3, 100.0, 50.0))
    return share


@pytest.fixture
def cache(name):  # noqa: F811  (the fixture)
    share = filled(Cache(f"shm://{name}", size=2 << 20))
    yield name
    share.close()


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """Whatever other caches this machine has."""
    monkeypatch.setenv("COLUMNS", "300")


def said(capsys, *arguments):
    assert main(["cache", *arguments]) == 0
    return capsys.readouterr().out


def test_info(cache, capsys):
    found = json.loads(said(capsys, "info", f"shm://{cache}", "--json"))
    assert (found["entries"], found["processes"]) == (2, 1)
    assert found["forms"]["decoded"] == {"entries": 1, "bytes": 9216}
    assert found["forms"]["encoded"] == {"entries": 1, "bytes": 5120}
    assert found["bytes"] <= found["limit"] <= 2 << 20
    assert "9 KiB" in said(capsys, "info", f"shm://{cache}")


def test_sizes_are_written_without_powers_of_ten():
    shown = [bytes_text(count) for count in (0, 999, 1000, 1023, 1024, 1020 << 10, 999.4 * 2**20, 1023 << 30, 5 << 40)]
    assert shown == ["0 B", "999 B", "1000 B", "1023 B", "1 KiB", "1020 KiB", "999 MiB", "1023 GiB", "5 TiB"]


def check_division(each, shown):
    assert (each["samples"], each["ranks"], each["split"], each["fixed"]) == (20, 1, [30, 70, 0], False)
    assert each["why"] == "900 samples/s predicted, with storage to set the pace, against 400 with 0-100-0"
    assert each["measured"] == {"fetch_seconds": 0.004, "jobs": 1, "lanes": 3, "demand": 100, "speed": 50}
    assert "30 % encoded, 70 % decoded (900 samples/s" in shown
    assert "fetch seconds 0.004" in shown


def test_info_says_how_it_is_divided_and_why(cache, capsys):
    (each,) = json.loads(said(capsys, "info", f"shm://{cache}", "--json"))["divisions"]
    check_division(each, said(capsys, "info", f"shm://{cache}"))


def test_ls(cache, capsys):
    found = json.loads(said(capsys, "ls", "--json"))
    assert f"shm://{cache}" in [each["url"] for each in found]
    assert f"shm://{cache}" in said(capsys, "ls")


def test_a_cache_that_cannot_be_read_hides_no_other(cache, capsys):
    old = shm.path_of(f"{cache}.old")
    try:
        old.mkdir(mode=0o700)
        (old / "cache").write_text(json.dumps([shm.VERSION - 1, 4 << 20]))
        for path in shm.path_of(cache).rglob("*"):
            if path.is_file() and path.name in {"cache", "room", "table", "log", "facts"}:
                path.write_bytes(path.read_bytes()[:3])
        shown = said(capsys, "ls")
        assert len((shm.path_of(cache) / "cache").read_bytes()) == 3, "whoever only looks writes nothing"
        assert f"shm://{cache} " in shown
        assert f"shm://{cache}.old: " in shown
        assert "was made by another version: remove it with `headrace cache clear" in shown
        assert main(["cache", "clear", f"shm://{cache}.old"]) == 0
        assert not old.exists()
    finally:
        shm.remove(f"{cache}.old")


def test_clear_gives_the_memory_back_and_says_what_was_held(name, tmp_path, capsys):  # noqa: F811  (the fixture)
    where = Cache(f"shm://{name}", size=2 << 20, disk=str(tmp_path / "disk"), disk_size="1MiB")
    share = filled(where)
    assert isinstance(share.disk, Disk)
    (tmp_path / "disk" / "0123456789abcdef" / "00").mkdir(parents=True)
    (tmp_path / "disk" / "0123456789abcdef" / "00" / "1-2").write_bytes(bytes(2048))
    share.close()
    shown = said(capsys, "clear", f"shm://{name}")
    assert "is empty: 2 entries, 16 KiB, 2 KiB of them on disk, given back" in shown
    assert not shm.path_of(name).exists()
    assert not list((tmp_path / "disk").iterdir())
    assert main(["cache", "info", f"shm://{name}"]) == 2
    assert "there is no cache" in capsys.readouterr().err


def test_on_a_server(tmp_path, capsys):
    with servers.one(tmp_path) as server:
        url = f"redis://{servers.USER}:{servers.PASSWORD}@127.0.0.1:{server.port}"
        share = filled(Cache(url, size=1 << 20, namespace="mine"))
        shown = said(capsys, "info", url, "--namespace", "mine", "--json")
        assert json.loads(shown)["forms"]["decoded"]["entries"] == 1
        assert servers.PASSWORD not in shown
        (each,) = json.loads(shown)["divisions"]
        check_division(each, said(capsys, "info", url, "--namespace", "mine"))
        assert servers.PASSWORD not in said(capsys, "clear", url, "--namespace", "mine")
        assert not share.backend.block(0, 20).any()
        share.close()


@pytest.mark.parametrize(
    "url", ["shm://no-such-cache-here", "shm://a/b", "http://x", "redis://[::1", "redis://127.0.0.1:1"]
)
def test_mistakes_are_one_line(url, capsys):
    assert main(["cache", "info", url]) == 2
    error = capsys.readouterr().err
    assert error.startswith("headrace cache info: ")
    assert error.count("\n") == 1
