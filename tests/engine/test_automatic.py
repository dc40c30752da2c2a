"""An automatic number of lanes: kept by the loader, and by the dataset for other loaders."""

import gc
from dataclasses import replace

import pytest

from headrace.engine.trainer import automatic, cores
from headrace.engine.trainer.automatic import Automatic
from headrace.plan.lanes import LaneRates

SLEEPY = LaneRates(lanes=2, rate=100, waited=0.9, occupancy=0, running=0.01, queued=0, cores=2, affordable=100)


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    monkeypatch.setattr(cores, "most_lanes", lambda: 16)
    monkeypatch.setattr(cores, "automatic_workers", lambda: 2)


class Data:
    __slots__ = ("__weakref__",)
    __hash__ = None

    def __eq__(self, other):
        return True


def test_one_per_core_to_begin_with():
    assert Automatic(Data(), "climb").lanes == 2


def test_what_was_found_is_where_the_next_loader_of_the_dataset_begins():
    data = Data()
    first = Automatic(data, "climb")
    assert first.decide(SLEEPY) == first.lanes == 16
    assert Automatic(data, "climb").lanes == 16
    assert Automatic(Data(), "climb").lanes == 2, "equal is not the same"


def test_a_machine_with_fewer_cores_bounds_it(monkeypatch):
    data = Data()
    Automatic(data, "climb").decide(SLEEPY)
    monkeypatch.setattr(cores, "most_lanes", lambda: 8)
    assert Automatic(data, "climb").lanes == 8


def test_memory_is_a_bound():
    assert Automatic(Data(), "climb").decide(replace(SLEEPY, affordable=3)) == 3


def test_a_limit_that_was_met_is_a_bound():
    data = Data()
    loader = Automatic(data, "climb")
    loader.bound(5)
    assert (loader.lanes, Automatic(data, "climb").lanes) == (5, 5)
    assert loader.decide(replace(SLEEPY, lanes=5)) == 5


@pytest.mark.parametrize(("descriptors", "processes", "lanes"), [(80, 1000, 10), (1000, 12, 6), (0, 0, 0)])
def test_lanes_leave_something_of_every_limit(monkeypatch, descriptors, processes, lanes):
    monkeypatch.setattr(cores, "free_descriptors", lambda: descriptors)
    monkeypatch.setattr(cores, "free_processes", lambda: processes)
    monkeypatch.setattr(cores, "ranks", lambda: 1)
    assert automatic.affordable([], 1 << 10) == lanes


def test_nothing_is_kept_for_a_dataset_that_is_gone():
    data = Data()
    before = len(automatic._FOUND)
    loader = Automatic(data, "climb")
    loader.decide(SLEEPY)
    assert len(automatic._FOUND) == before + 1
    del data
    gc.collect()
    assert len(automatic._FOUND) == before
    assert loader.decide(replace(SLEEPY, lanes=16)) <= 16
    assert len(automatic._FOUND) == before


def test_a_dataset_that_cannot_be_referred_to_is_the_loader_s_own_affair():
    data = [1, 2, 3]
    loader = Automatic(data, "climb")
    assert loader.decide(SLEEPY) == loader.lanes == 16
    assert Automatic(data, "climb").lanes == 2
