"""What the benchmarks of the cache are made of: a storage with memory before it, jobs side by side, counting hits."""

import time
from collections import Counter
from functools import partial

import psutil
import pytest
import torch

from benchmarks import cached_accuracy, caches, calibration, pictures, sharing, splits
from benchmarks.arms import Arm
from benchmarks.calibration import Rates, Sizes
from benchmarks.jobs import Job, together
from benchmarks.measure import RunError
from benchmarks.replay import Replay
from benchmarks.requests import drawn
from benchmarks.rules import Need
from benchmarks.stored import Pictures, Storage
from headrace.cache import cache_options
from headrace.cache.backends import shm
from headrace.cache.entries import entry
from headrace.caching import dividing, stagetimes
from headrace.caching.plans import codec
from headrace.plan import bottleneck
from headrace.plan.partition import Split

FILE = 1000


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "file"
    found.write_bytes(bytes(FILE))
    return found


def read(storage, path, *numbers):
    """Which of these reads went to the storage itself."""
    went = []
    for number in numbers:
        before = storage.reads
        assert storage.read(number, path) == bytes(FILE)
        went.append(storage.reads > before)
    return went


class TestStorage:
    def test_without_memory_every_read_is_one(self, path):
        assert read(Storage(3), path, 0, 1, 0) == [True] * 3

    def test_the_newest_stay(self, path):
        storage = Storage(4, keeping="newest", size=2 * FILE)
        assert read(storage, path, 0, 1, 0, 1) == [True, True, False, False]
        assert read(storage, path, 2, 0, 1) == [True, True, True]  # one after the other is pushed out
        assert read(storage, path, 0, 1) == [False, False]

    def test_the_first_stay_for_ever(self, path):
        storage = Storage(4, keeping="first", size=2 * FILE)
        assert read(storage, path, 0, 1, 2, 3) == [True] * 4
        assert read(storage, path, 0, 1, 2, 3) == [False, False, True, True]

    def test_reads_queue_for_one_line(self, path):
        storage = Storage(3, rate=20 * FILE)
        began = time.monotonic()
        read(storage, path, 0, 1, 2)
        assert time.monotonic() - began >= 3 / 20


def test_pictures_are_the_same_whenever_they_are_made(tmp_path):
    sizes = {pictures.write(tmp_path / place, 6, processes, side=64) for place, processes in (("a", 1), ("b", 2))}
    assert len(sizes) == 1
    made = [Pictures(tmp_path / place, 6, Storage(6), resize=32, crop=24) for place in "ab"]
    for index in range(6):
        first, second = (each.decode(each.fetch(index)) for each in made)
        assert torch.equal(first[0], second[0])
        assert min(first[0].shape[:2]) == 32
        sample, number = made[0][index]
        assert (sample.shape, sample.dtype, number) == ((3, 24, 24), torch.uint8, index)


def measured(number):
    return {"number": number}


def failed():
    raise ValueError("wrong")


class TestJobs:
    def test_results_come_in_the_order_of_the_queue(self):
        outcome = together([partial(measured, number) for number in range(5)], 2)
        assert [job["number"] for job in outcome.jobs] == list(range(5))
        assert outcome.makespan > 0

    def test_one_that_fails_ends_all(self):
        before = {child.pid for child in psutil.Process().children()}
        with pytest.raises(RunError, match="wrong"):
            together([partial(time.sleep, 600), failed], 2)
        assert {child.pid for child in psutil.Process().children()} <= before

    def test_a_job_with_a_cache_says_what_that_counted(self):
        with caches.cache(4 << 20, split=(0, 100, 0)) as cache:
            job = Job(Arm("headrace", in_order=False, workers=1), sharing.Small(40), 2, 8, cache=cache)
            figures = together([job.run], 1).jobs[0]
        assert [use["decoded"] for use in figures["uses"]] == [0, 40]
        assert len(figures["walls"]) == len(figures["cpus"]) == 2


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setattr(
        cache_options, "room_of", cache_options.room_of
    )  # what is measured here is not in a process of its own
    pictures.write(tmp_path, 48, 1, side=64)
    return Pictures(tmp_path, 48, Storage(48, rate=20e6), resize=32, crop=24)


class TestCalibration:
    def test_entries_take_more_of_a_cache_than_they_have_bytes(self, files):
        plain = Sizes.of(files)
        assert plain.file < plain.encoded < plain.decoded
        with caches.cache(8 << 20) as cache:
            taken = Sizes.of(files, cache)
        assert plain.encoded < taken.encoded
        assert taken.file == plain.file

    def test_storage_gives_files_and_not_entries(self):
        sizes, rates = Sizes(file=800, encoded=1000, decoded=4000), Rates(100.0, 500.0)
        given = calibration.parameters(sizes, rates, samples=10, room=2000, storage=8000)
        said = bottleneck.predict(given, Split(100, 0, 0))
        assert (said.held.e, said.held.s) == (2, 8)
        assert bottleneck.seconds(given, said.held)["storage"] == pytest.approx(0.8 * 800 / 8000)

    def test_what_was_found_after_the_warm_up(self, files):
        with caches.cache(8 << 20, split=(0, 100, 0)) as cache:
            room = int(24.5 * Sizes.of(files, cache).decoded)
            found = calibration.load(Arm("headrace", False, 2), files, cache, 8, epochs=4, room=room)
        assert found["found"][0] == 0
        assert 0.4 < found["found"][1] < 0.6
        assert found["rate"] > 0
        assert found["began"] < found["ended"]

    def test_a_loader_measures_of_itself_what_the_planner_needs(self, files, monkeypatch):
        monkeypatch.setattr(dividing, "LOOK", 0.0)
        monkeypatch.setattr(stagetimes, "TELL_NS", 0)
        with caches.cache(8 << 20, split=(0, 100, 0)) as cache:
            room = int(24.5 * Sizes.of(files, cache).decoded)
            given = calibration.self_measured(Arm("headrace", False, 2), files, cache, 8, room)["given"]
        assert (given.samples, given.jobs, given.lanes) == (48, 1, 2)
        assert given.cpu is not None
        assert given.cpu.decode > 0
        assert given.room == pytest.approx(room, rel=1e-6)
        typed = calibration.parameters(Sizes.of(files), Rates(100.0, 500.0), samples=48, room=room)
        assert all(model(Split(50, 50, 0)) > 0 for model in splits.predictions(given, typed).values())


def test_a_cache_is_gone_afterwards():
    with pytest.raises(RuntimeError), caches.cache(1 << 20) as cache:
        shm.Directory(cache.name, cache.bytes).close()
        assert cache.name in shm.names()
        raise RuntimeError
    assert cache.name not in shm.names()


def test_hits_are_counted_over_a_period_of_the_fastest():
    """One epoch is one batch; the first job ends its second at 2 and its seventh at 7."""
    fastest = {"moments": [*range(1, 9)], "served": [*range(10, 90, 10)], "hits": [0, 0, 5, 10, 15, 20, 25, 99]}
    slow = {"moments": [1.5, 6.5, 8.5], "served": [10, 20, 30], "hits": [0, 10, 99], "ends": [1.5, 6.5, 8.5]}
    assert sharing.hit_rate([{**fastest, "ends": fastest["moments"]}, slow]) == pytest.approx(100 * 35 / 60)


@pytest.mark.parametrize("entries", [8, 30])
def test_a_cache_holds_the_share_that_is_said(entries, monkeypatch):
    monkeypatch.setattr(cache_options, "room_of", cache_options.room_of)
    dataset = sharing.Small(40)
    size = entry.length(codec().describe((None, dataset.decode(0))))
    with caches.cache(sharing.SPARE * max(entries * size, 1 << 20), split=(0, 100, 0)) as cache:
        caches.fill(sharing.room_for(entries, size, 40))
        figures = Job(Arm("headrace", in_order=False, workers=1), dataset, 3, 8, cache=cache).run()
    assert figures["uses"][2]["decoded"] - figures["uses"][1]["decoded"] == entries


def test_what_is_served_and_kept_by_need_reaches_the_bound():
    """Half of the samples cached, two jobs at one speed: of what is served, at most three quarters are hits."""
    trace = drawn(400, (1.0, 1.0), batch=20, epochs=6)
    found = Replay(trace, Need(), 0.5).run(warm_up=2.0)
    assert found.hit_rate == pytest.approx(0.75, abs=0.02)
    served = Counter((job, epoch, sample) for job, epoch, some in found.order for sample in some.tolist())
    assert set(served.values()) == {1}


def test_digits_are_shifted_by_a_pixel_and_otherwise_themselves():
    image = torch.zeros(8, 8)
    image[3:5, 3:5] = 1
    dataset = cached_accuracy.Digits(image.reshape(1, 64), torch.tensor([7]))
    torch.manual_seed(0)
    for _ in range(20):
        sample, label, index = dataset[0]
        assert (label, index) == (7, 0)
        assert sample.gt(0.5).sum() == 4
