"""The tier in shared memory: the suite, and what is its own: processes that come, read, and are killed."""

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cache import arena_words as W
from headrace.cache import shm
from headrace.cache.arena import Arena, Name
from headrace.cache.arena_words import Shape
from headrace.cache.shm import SharedMemoryTier
from headrace.core.errors import CacheError
from headrace.testing.tiers import TierSuite, got, key, put
from tests.cache.memory import Killed, Words

LIMIT = 4 << 20


class TestSharedMemory(TierSuite):
    @pytest.fixture(autouse=True)
    def _named(self, name):
        self.name = name

    def open(self):
        return SharedMemoryTier(self.name, self.limit)


@pytest.fixture
def tier(name):
    found = SharedMemoryTier(name, LIMIT)
    yield found
    found.close()


@pytest.mark.parametrize("size", [4 << 20, 28 << 20, 1 << 30])
def test_entries_leave_little_of_their_chunks_empty(size):
    shape = Shape(size)
    for entry in np.geomspace(4096, shape.page // W.FEW, 100).astype(int).tolist():
        assert shape.cut(entry) <= 1.07 * entry + 64
    for cut in shape.cuts:
        if cut > shape.page // W.FEW:  # what does not fill a page would be counted by nobody
            assert shape.page - shape.page // cut * cut < W.FEW * 64


@pytest.mark.parametrize("size", [64 << 20, 256 << 20])
def test_entries_of_many_sizes_fill_it(size):
    """Each size of chunks has pages of its own: rare ones must not keep all others from them."""
    shape, rng = Shape(size), np.random.default_rng(0)
    words = np.zeros(shape.words, np.int64)
    arena, taken, failed = Arena(words, words, shape), 0, 0
    for sample, entry in enumerate(np.exp(rng.normal(np.log(20_000), 0.7, 40_000)).astype(int).tolist()):
        where = arena.room(entry)
        if where is None:
            failed += 1
            if failed == 20:
                break
            continue
        assert entry <= where[1] * (where[2] if where[1] == 1 else shape.page)
        arena.allocate(Name(1, 1, sample, 1), entry, where, 0)
        taken += entry
    assert failed == 20
    assert taken > 0.7 * size


def test_what_is_read_is_the_memory_itself(tier):
    assert put(tier, 1, b"a" * 4096)
    with tier.reading() as first, tier.reading() as second:
        (one,), (two,) = first.get([key(1)]), second.get([key(1)])
        assert np.frombuffer(one, np.uint8).ctypes.data == np.frombuffer(two, np.uint8).ctypes.data


def test_the_file_is_never_larger_than_asked_for(tier, name):
    for sample in range(100):
        put(tier, sample, os.urandom(100_000))
    assert tier.usage().entries > 25
    stat = shm.path_of(name).stat()
    assert stat.st_size == LIMIT
    assert stat.st_blocks * 512 <= LIMIT
    assert stat.st_mode & 0o077 == 0


def test_another_size_or_version_is_refused(tier, name):
    with pytest.raises(CacheError, match=f"has {LIMIT} bytes, and {2 * LIMIT} were asked for"):
        SharedMemoryTier(name, 2 * LIMIT)
    path = shm.path_of(name)
    with path.open("r+b", buffering=0) as file:
        file.seek(8 * W.VERSION)
        file.write(np.int64(99).tobytes())
    program = f"from headrace.cache.shm import SharedMemoryTier; SharedMemoryTier({name!r}, {LIMIT})"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "was made by another version: remove it with `headrace cache clear" in result.stderr


@pytest.mark.parametrize("wrong", ["", "a/b", "..", "x" * 65, "späti", "-a"])
def test_names_are_checked(wrong):
    with pytest.raises(CacheError, match="the name of a cache has"):
        SharedMemoryTier(wrong, LIMIT)


def test_too_small_is_refused(name):
    with pytest.raises(CacheError, match="at least 1048576 bytes"):
        SharedMemoryTier(name, 1000)


def test_a_name_made_anew_is_a_new_cache(tier, name):
    assert put(tier, 1, b"old" * 100)
    shm.remove(name)
    fresh = SharedMemoryTier(name, LIMIT)
    assert got(fresh, 1) == [None]
    assert got(tier, 1) == [b"old" * 100]
    fresh.close()


def test_a_forked_child_attaches_on_its_own(tier):
    assert put(tier, 1, b"parent" * 50)
    child = os.fork()
    if child == 0:
        fine = got(tier, 1) == [b"parent" * 50] and put(tier, 2, b"child" * 50) and tier.readers() == 2
        os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert got(tier, 2) == [b"child" * 50]
    assert tier.readers() == 1


PROGRAM = """
import os, sys, zlib
from headrace.cache.shm import SharedMemoryTier
from headrace.cache.tier import Key
def key(sample):
    return Key("0123456789abcdef" * 2, sample, 2)
name, limit, number, what = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
tier = SharedMemoryTier(name, limit)
if what == "hold":
    with tier.reading() as reading:
        (view,) = reading.get([key(0)])
        print(len(view), flush=True)
        sys.stdin.read()
if what == "write":
    def write(target):
        print("writing", flush=True)
        sys.stdin.read()
    tier.put(key(1), limit // 8, write)
print("ready", flush=True)
rng = __import__("random").Random(number)
while True:
    sample = rng.randrange(60)
    payload = bytes([sample]) * rng.choice([900, 5000, 20_000, 70_000])
    def write(target):
        target[:] = payload
    tier.put(key(sample), len(payload), write)
    with tier.reading() as reading:
        for view, other in zip(reading.get([key(s) for s in range(60)]), range(60)):
            if view is not None:
                assert view[0] == view[-1] == other, "an entry was reused under a reader"
                assert view[len(view) // 2] == other
                view.release()
    tier.delete([key(rng.randrange(60)) for _ in range(4)])
"""


def started(name, number, what):
    command = [sys.executable, "-c", PROGRAM, name, str(LIMIT), str(number), what]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_what_a_dead_reader_read_is_free(tier, name):
    size = LIMIT // 10
    kept = [sample for sample in range(20) if put(tier, sample, bytes([sample]) * size)]
    with started(name, 0, "hold") as process:
        assert process.stdout.readline() == f"{size}\n"
        tier.delete([key(sample) for sample in kept])
        assert not put(tier, 50, b"n" * size)  # it may still read any of them
        process.kill()
        process.wait()
        assert put(tier, 50, b"n" * size)
        assert tier.usage().entries == 1


def test_what_a_dead_writer_had_begun_is_free(tier, name):
    with started(name, 0, "write") as process:
        assert process.stdout.readline() == "writing\n"
        process.kill()
        process.wait()
    size = LIMIT // 8
    assert got(tier, 1) == [None]
    alone = sum(put(tier, sample, bytes(size)) for sample in range(1, 10))
    assert alone >= 6
    assert tier.usage().bytes <= tier.usage().limit


@pytest.mark.stress
@pytest.mark.timeout(300)
def test_it_survives_the_death_of_anybody_at_any_moment(tier, name):
    running = {number: started(name, number, "work") for number in range(2)}
    for process in running.values():
        assert process.stdout.readline() == "ready\n"
    rng = np.random.default_rng(3)
    for death in range(4):
        number = int(rng.integers(2))
        time.sleep(float(rng.uniform(0, 0.2)))  # when it dies is the point
        process = running.pop(number)
        process.send_signal(signal.SIGKILL)
        _, errors = process.communicate()
        assert errors == ""
        assert process.returncode == -signal.SIGKILL
        while not put(tier, 100, b"alive" * 100):  # full, or what was deleted is being read
            tier.delete([key(sample) for sample in range(60)])
        assert got(tier, 100) == [b"alive" * 100]
        tier.delete([key(100)])
        running[number] = started(name, 10 + death, "work")
        assert running[number].stdout.readline() == "ready\n"
    for process in running.values():
        process.kill()
        _, errors = process.communicate()
        assert errors == ""
    tier.clear()
    assert put(tier, 1, bytes(LIMIT // 4))
    assert tier.usage().entries == 1


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "put", "delete", "enter", "leave", "reclaim"]),
            st.integers(0, 9),
            st.sampled_from([500, 3000, 20_000, 60_000, 66_000, 140_000]),
            st.one_of(st.none(), st.integers(0, 14)),
        ),
        max_size=60,
    )
)
def test_no_two_entries_overlap_whoever_dies(script):
    shape = Shape(1 << 20)
    words = Words(shape.words)
    arena, expected, reading = Arena(words, words.view, shape), {}, {}
    for what, sample, size, fuse in script:
        words.fuse = fuse
        name = Name(1, 2, sample, 2)
        try:
            done = step(arena, what, name, size, reading, expected)
        except Killed:
            done = False
        words.fuse = None
        arena.heal()
        if not done and what in {"put", "delete"}:  # it was done or it was not
            chunk = arena.find(name)
            if chunk is None:
                expected.pop(sample, None)
            else:
                expected[sample] = chunk
            for record in arena.written_by(7):
                arena.free(record)
        check(arena, expected, reading)


def step(arena, what, name, size, reading, expected):
    readers = arena.shape.readers
    if what == "put":
        with arena.changing():
            where = None if arena.find(name) else arena.room(size)
            if where is not None:
                chunk = arena.allocate(name, size, where, 7)
                arena.publish(chunk.record)
                expected[name.sample] = chunk
    elif what == "delete":
        with arena.changing():
            arena.delete(name)
        expected.pop(name.sample, None)
    elif what == "enter" and name.sample not in reading:
        arena.w[readers + name.sample] = int(arena.r[W.CLOCK]) + 1
        reading[name.sample] = dict(expected)
    elif what == "leave":
        reading.pop(name.sample, None)
        arena.w[readers + name.sample] = 0
    elif what == "reclaim":
        with arena.changing():
            arena.reclaim()
    return True


def check(arena, expected, reading):
    for sample in range(10):
        chunk = arena.find(Name(1, 2, sample, 2))
        assert chunk == expected.get(sample)
    assert arena.r[W.ENTRIES] == len(expected)
    entered = {number for number in reading if arena.r[arena.shape.readers + number]}
    seen = {chunk[1:] for number in entered for chunk in reading[number].values()} | {
        chunk[1:] for chunk in expected.values()
    }
    spans = sorted(seen)
    for (start, size), (following, _) in pairwise(spans):
        assert start + size <= following
    assert all(start >= arena.shape.data and start + size <= arena.shape.size for start, size in spans)
