"""A directory on a disk, as the level below memory."""

import contextlib

import numpy as np
import pytest

from headrace.cache.backends import disk, shm
from headrace.cache.backends import entry_word as W
from headrace.cache.backends.backend import Entry
from headrace.cache.backends.disk import Disk
from headrace.cache.cache_options import Cache, open_share
from headrace.cache.peers import Unit
from headrace.core.errors import CacheError
from tests.cache.places import described, value

TITLE = "0" * 16


@pytest.fixture
def open_disk():
    """Opens a directory, and closes it after the test."""
    with contextlib.ExitStack() as closing:

        def make(path):
            made = Disk(path, TITLE, 1 << 20)
            closing.callback(made.close)
            return made

        yield make


def entry(sample):
    return Entry(sample, W.word(W.DECODED, 8192, disk=True))


def test_entries_are_found_once_they_are_settled(tmp_path, open_disk):
    below, content = open_disk(tmp_path), np.arange(5000, dtype=np.uint8)
    one, two = entry(1), entry(2)
    assert below.aside(one, [content]).settle()
    assert below.read(one).tobytes() == content.tobytes()
    below.aside(two, [content]).drop()
    assert below.read(two) is None
    assert list(below.listed()) == [one]
    below.erase([one])
    assert list(below.listed()) == []


def test_what_somebody_who_died_was_writing_is_deleted(tmp_path, open_disk):
    below = open_disk(tmp_path)
    below.aside(entry(1), [bytes(10)])
    assert list(tmp_path.rglob("*.part"))
    assert list(below.listed()) == []
    assert not list(tmp_path.rglob("*.part"))


def test_a_place_that_cannot_be_had_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(CacheError, match="file cannot hold a cache"):
        Disk(tmp_path / "file", TITLE, 1 << 20)


def test_a_disk_that_is_gone_takes_nothing(tmp_path, open_disk):
    below = open_disk(tmp_path / "gone")
    disk.clear(tmp_path / "gone")
    assert below.aside(entry(1), [bytes(10)]) is None
    assert below.read(entry(1)) is None


def test_a_cache_with_a_disk(tmp_path, name):
    where = Cache(f"shm://{name}", size="1MiB", disk=str(tmp_path / "below"), disk_size="3 MiB")
    share = open_share(where, ("a" * 32, "b" * 32, "c" * 32), 100, Unit("1" * 16, "x-0"))
    kept = sum(share.keep(sample, W.DECODED, described(sample, 25_000)) for sample in range(100))
    assert 30 <= kept <= 40
    words = share.backend.block(0, 100).tolist()
    assert [value(share.read(Entry(at, word))) for at, word in enumerate(words) if word] == [
        at for at, word in enumerate(words) if word
    ]
    share.close()
    assert shm.disks(name) == [str(tmp_path / "below")]
    assert disk.clear(tmp_path / "below") > 2 << 20


def test_a_directory_that_others_may_write_to_is_refused(tmp_path):
    """Whoever may write there could have anything served."""
    (tmp_path / TITLE).mkdir(mode=0o700)
    (tmp_path / TITLE).chmod(0o777)
    with pytest.raises(CacheError, match="not private to this user"):
        Disk(tmp_path, TITLE, 1 << 20)
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "1" / TITLE).parent.mkdir()
    (tmp_path / "1" / TITLE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CacheError, match="not private to this user"):
        Disk(tmp_path / "1", TITLE, 1 << 20)


def test_a_directory_that_somebody_exchanges_is_not_followed(tmp_path, open_disk):
    """Whoever may write to the directory above can put another one in its place, with entries that they made."""
    below, content = open_disk(tmp_path), b"x" * 8192
    own, forged, later = entry(1), entry(2), entry(3)
    assert below.aside(own, [content]).settle()
    (tmp_path / TITLE).rename(tmp_path / "away")
    for each in (own, forged):
        place = tmp_path / TITLE / f"{each.sample:02x}" / f"{each.sample:x}-{each.word:x}"
        place.parent.mkdir(parents=True)
        place.write_bytes(b"y" * 8192)
    assert below.read(own).tobytes() == content
    assert below.read(forged) is None
    assert below.aside(later, [content]).settle()
    assert not list((tmp_path / TITLE).glob("*/3-*"))


def test_clearing_deletes_nothing_but_entries(tmp_path, open_disk):
    """A server says which directories to clear."""
    assert open_disk(tmp_path).aside(entry(1), [bytes(8192)]).settle()
    mine = [tmp_path / name for name in ("f" * 16, f"{TITLE}/notes", f"{TITLE}/01/letter.txt", f"{'e' * 16}/ab/mine")]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    (tmp_path / ("d" * 16)).symlink_to(tmp_path / ("e" * 16))
    assert disk.clear(tmp_path) == 8192
    assert [path.read_text() for path in mine] == ["mine"] * len(mine)
    assert not list(tmp_path.rglob("1-*"))


def test_what_is_spoilt_stays_so_when_memory_is_cleared(tmp_path, name):
    where = Cache(f"shm://{name}", size="1MiB", disk=str(tmp_path / "below"), disk_size="3 MiB")
    scopes = ("a" * 32, "b" * 32, "c" * 32)
    share = open_share(where, scopes, 100, Unit("1" * 16, "x-0"))
    assert sum(share.keep(sample, W.DECODED, described(sample, 25_000)) for sample in range(100)) >= 30
    left_over = share.disk.aside(entry(3), [bytes(8192)])  # somebody had not heard of it
    share.spoil()
    assert left_over.settle()
    assert share.is_left
    assert not share.backend.block(0, 100).any()
    assert sum(share.room().held) == 0
    share.close()
    shm.remove(name)
    again = open_share(where, scopes, 100, Unit("2" * 16, "x-0"))
    assert again.is_left
    assert not again.keep(5, W.DECODED, described(5))
    again.close()
    disk.clear(tmp_path / "below")
    fresh = open_share(where, scopes, 100, Unit("2" * 16, "x-0"))
    assert not fresh.is_left
    fresh.close()
