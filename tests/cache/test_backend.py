"""Both kinds of backend: the same facts, changed in one step or not at all."""

import os
import signal

import numpy as np
import pytest

from headrace.cache.backends import entry_word as W
from headrace.cache.backends import latch, shm
from headrace.cache.backends.backend import CacheTerms, Entry
from headrace.cache.division import DivisionRecord, Sums
from headrace.core.errors import CacheError
from tests.cache.places import Place, place

__all__ = ["place"]
TERMS = CacheTerms((1 << 16, 1 << 16, 1 << 16, 0), 1 << 18)


def entry(sample, form=W.DECODED, size=4096):
    return Entry(sample, W.word(form, size))


def test_words_are_swapped_in_one_step(place):
    backend, other = place.backend(), place.backend()
    first, second, third = entry(3), entry(3), entry(9)
    assert backend.swap([], [first], TERMS).added
    assert not other.swap([], [second], TERMS).added, "the sample is held already"
    assert other.words(np.array([3, 4])).tolist() == [first.word, 0]
    swapped = other.swap([second, first], [third], TERMS)
    assert swapped == ([first], [third]), "what the table does not have any more is left alone"
    assert backend.block(8, 4).tolist() == [0, third.word, 0, 0]
    room = backend.room()
    assert (sum(room.held), room.kept, room.evicted, room.lost) == (4096, 2, 1, 0)
    assert backend.swap([third], (), TERMS, lost=True).removed == [third]
    assert (sum(backend.room().held), backend.room().lost) == (0, 1)


def test_nothing_is_added_beyond_the_terms(place):
    backend = place.backend()
    narrow = CacheTerms((0, 8192, 0, 0), 1 << 18)
    assert [bool(backend.swap([], [entry(at)], narrow).added) for at in range(3)] == [True, True, False]
    assert not backend.swap([], [entry(5, W.ENCODED)], narrow).added
    assert not backend.swap([], [entry(6)], CacheTerms((1 << 20,) * 4, backend.room().others + 8192)).added
    assert backend.room().held == (0, 8192, 0, 0)


def test_several_are_added_in_one_step_as_far_as_there_is_room(place):
    backend = place.backend()
    there, again, large = entry(1), entry(1), entry(2, size=8192)
    assert backend.swap([], [there], TERMS).added == [there]
    small, last, beyond = entry(3), entry(4), entry(5)
    narrow = CacheTerms((0, 3 * 4096, 0, 0), 1 << 18)
    swapped = backend.swap([], [again, large, small, last, beyond], narrow)
    assert swapped == ([], [large]), "one of a sample that is held, and those without room, are left out"
    assert backend.swap([large], [small, last, beyond], narrow) == ([large], [small, last])
    assert backend.block(0, 6).tolist() == [0, there.word, 0, small.word, last.word, 0]
    room = backend.room()
    assert (room.held[1], room.kept, room.evicted) == (3 * 4096, 4, 1)
    arrived, _ = backend.arrivals(0)
    assert arrived.tolist() == [1, 2, 3, 4]


def test_entries_are_found_once_they_are_settled(place):
    backend = place.backend()
    content = np.arange(5000, dtype=np.uint8)
    one, two = entry(1, size=8192), entry(2, size=8192)
    aside = backend.aside(one, [content])
    assert aside.settle()
    found = backend.read(one)
    assert found.tobytes() == content.tobytes()
    found[:] = 0
    assert backend.read(one).tobytes() == content.tobytes(), "what was read is a copy"
    backend.aside(two, [content]).drop()
    assert backend.read(two) is None
    assert backend.read(Entry(1, two.word)) is None
    backend.erase([one, two])
    assert backend.read(one) is None


def test_arrivals_are_noticed(place):
    backend = place.backend()
    arrived, position = backend.arrivals(-1)
    assert arrived is None
    for sample in (7, 2):
        backend.swap([], [entry(sample)], TERMS)
    arrived, position = place.backend().arrivals(position)
    assert arrived.tolist() == [7, 2]
    assert backend.arrivals(position)[0].tolist() == []
    assert backend.arrivals(1 << 40)[0] is None


def test_what_jobs_have_seen_is_added_up(place):
    backend = place.backend(samples=1000)
    for samples in ([1, 9, 999], [9, 500]):
        some, mirror = np.array(samples), np.zeros(125, np.uint8)
        np.bitwise_or.at(mirror, some >> 3, (1 << (some & 7)).astype(np.uint8))
        backend.saw("job.0", some, mirror)
    (bits,) = backend.seen(["job.0"], 0, 1000)
    assert np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist() == [1, 9, 500, 999]
    (part,) = backend.seen(["job.0"], 496, 8)
    assert np.flatnonzero(np.unpackbits(part, bitorder="little")).tolist() == [4]
    many, mirror = np.arange(0, 1000, 2)[:400], np.zeros(125, np.uint8)
    many = np.concatenate([many, np.arange(801, 1000)])
    np.bitwise_or.at(mirror, many >> 3, (1 << (many & 7)).astype(np.uint8))
    backend.saw("job.0", many, mirror)
    (bits,) = backend.seen(["job.0"], 0, 1000)
    seen = np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist()
    assert seen == sorted({*many.tolist(), 1, 9, 500, 999}), "what others published stays"
    backend.forget("job.0")
    assert not backend.seen(["job.0", "never"], 0, 1000)[0].any()


def test_a_job_is_given_an_augmented_entry_once(place):
    first, again = entry(3, W.AUGMENTED), entry(3, W.AUGMENTED)
    assert place.backend().claim("a", [first]) == [True]
    assert place.backend().claim("a", [first, again]) == [False, True]
    assert place.backend().claim("b", [first]) == [True]


def test_ranks_are_there_until_they_leave(place):
    one, two = place.backend(), place.backend()
    one.report("job.0.x", b"first")
    two.report("job.0.y", b"second")
    one.report("job.0.x", b"again")
    assert two.reports() == {"job.0.x": b"again", "job.0.y": b"second"}
    two.leave("job.0.y")
    two.leave("job.0.x")
    assert one.reports() == {"job.0.x": b"again"}, "one does not leave for another"
    one.close()
    assert two.reports() == {}


def test_divisions_and_sums(place):
    one, two = place.backend(), place.backend()
    assert one.division() is None
    start = DivisionRecord(0, (0, 100, 0), fixed=False, before=(0, 100, 0))
    assert one.divide(start, None)
    moved = DivisionRecord(1, (50, 50, 0), fixed=False, before=(0, 100, 0), promised=10, promised_before=5, limit=3)
    assert two.divide(moved, 0)
    assert not one.divide(moved, 0), "it was planned from one that does not hold any more"
    assert one.division() == moved
    assert one.measure(Sums(fetch=5, made=1))
    assert two.measure(Sums(fetch=6))
    assert one.measured() == Sums(fetch=11, made=1)
    one.fade()
    assert two.measured() == Sums(fetch=5)


def test_datasets_are_told_apart_and_removed(place):
    one, two = place.backend(), place.backend(samples=32, title="f" * 16)
    for backend in (one, two):
        backend.report("job.0.x", b"")
        backend.swap([], [entry(3)], TERMS)
    (other,) = one.siblings()
    assert other.samples == 32
    assert one.room().others >= 4096
    other.remove()
    other.close()
    assert one.siblings() == []
    assert one.room().others < 4096
    assert sum(one.room().held) == 4096


class TestInSharedMemory:
    @pytest.fixture
    def memory(self):
        found = Place(None)
        yield found
        found.close()

    def test_whoever_stops_with_the_lock_stops_nobody(self, memory, monkeypatch):
        backend = memory.backend()
        monkeypatch.setattr(latch, "MOMENT", 0.01)
        assert backend.swap([], [entry(1)], TERMS).added
        read, write = os.pipe()
        stopped = os.fork()
        if not stopped:
            held = memory.backend()._directory.latch
            held.take()
            os.write(write, b"x")
            signal.pause()
        try:
            assert os.read(read, 1) == b"x"
            os.kill(stopped, signal.SIGSTOP)
            assert not backend.swap([], [entry(2)], TERMS).added
            assert backend.barred
            assert backend.words(np.array([1])).tolist() != [0], "what is held can be read"
        finally:
            os.kill(stopped, signal.SIGKILL)
            os.waitpid(stopped, 0)
            os.close(read)
            os.close(write)
        assert memory.backend().swap([], [entry(2)], TERMS).added, "the dead hold nothing"

    def test_the_lock_is_not_freed_by_entering_twice(self, memory):
        backend, other = memory.backend(), memory.backend()
        own = backend._directory.latch
        taken = own.take()
        assert not backend.swap([], [entry(1)], TERMS).added, "as from a signal handler"
        assert not other.swap([], [entry(1)], TERMS).added
        own.give(taken)
        assert other._directory.latch.take() is not None

    def test_files_of_others_are_not_used(self, memory):
        memory.backend()
        path = shm.path_of(memory.namespace)
        assert f"-{os.geteuid()}-" in path.name
        path.chmod(0o755)
        with pytest.raises(CacheError, match="not private"):
            memory.backend()
        path.chmod(0o700)

    def test_nothing_is_written_where_another_user_was_first(self, memory, tmp_path):
        """Names are known beforehand, and so are the numbers of processes."""
        path, letter = shm.path_of(memory.namespace), tmp_path / "letter"
        letter.write_text("mine")
        path.mkdir()
        path.chmod(0o777)
        for name in (f".{os.getpid()}", "cache", "room", "lock"):
            (path / name).symlink_to(letter)
        with pytest.raises(CacheError, match="not private"):
            memory.backend()
        assert letter.read_text() == "mine"
        assert not (path / "cache").exists() or (path / "cache").is_symlink()

    def test_another_size_is_refused(self, memory):
        memory.backend()
        with pytest.raises(CacheError, match="1048576 bytes"):
            memory.backend(size=1 << 21)
