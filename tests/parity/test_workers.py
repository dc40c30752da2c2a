"""Contract section 5: what holds inside a worker."""

import multiprocessing
import os
from pathlib import Path

import pytest
import torch
import torch.utils.data
from torch.utils.data import get_worker_info

from tests.parity.datasets import Attribute, Calling, Stream, identity, worker_of
from tests.parity.support import samples


def describe(index: int) -> dict:
    info = get_worker_info()
    try:
        info.id = 5
        frozen = False
    except AttributeError:  # dataclasses.FrozenInstanceError is one, too
        frozen = True
    return {
        "id": info.id,
        "num_workers": info.num_workers,
        "seed": info.seed,
        "repr": repr(info),
        "frozen": frozen,
        "dataset": type(info.dataset).__name__,
        "module": type(info).__module__,
    }


def surroundings(index: int) -> tuple:
    return (
        torch.get_num_threads(),
        multiprocessing.current_process().daemon,
        Path("/proc/self/comm").read_text().strip(),
        sorted(os.sched_getaffinity(0)),
    )


def spoil(index: int) -> int:
    get_worker_info().dataset.value += 1
    return get_worker_info().dataset.value


def pin_to_first(worker_id: int) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def set_value(worker_id: int) -> None:
    info = get_worker_info()
    assert info.id == worker_id
    info.dataset.value = 10 + worker_id


class Spoiling(Attribute):
    def __getitem__(self, index: int) -> int:
        return spoil(index)


class Configured(torch.utils.data.IterableDataset):
    """Its iterator depends on what worker_init_fn set."""

    value = 0

    def __iter__(self):
        return iter([self.value] * 2)


def test_worker_info(loader_class):
    assert get_worker_info() is None
    loader = loader_class(Calling(describe, 6), batch_size=None, num_workers=2, collate_fn=identity)
    for info in loader:
        assert info["id"] in (0, 1)
        assert info["num_workers"] == 2
        assert isinstance(info["seed"], int)
        assert info["dataset"] == "Calling"
        assert info["frozen"]
        assert all(f"{name}=" in info["repr"] for name in ("id", "num_workers", "seed", "dataset"))
    assert get_worker_info() is None


def test_worker_info_is_none_without_workers(loader_class):
    assert list(loader_class(Calling(lambda i: get_worker_info() is None, 2), batch_size=None, num_workers=0)) == [
        True,
        True,
    ]


def test_ids_and_seeds(loader_class):
    rows = list(loader_class(Calling(worker_of, 12), batch_size=None, num_workers=2))
    assert {count for _, count, _ in rows} == {2}
    assert len({seed - worker for worker, _, seed in rows}) == 1


def test_dataset_copy_is_the_workers_own(loader_class):
    dataset = Spoiling(0, 4)
    assert samples(loader_class(dataset, num_workers=1)) == [1, 2, 3, 4]
    assert dataset.value == 0


def test_init_runs_before_the_first_sample(loader_class):
    assert samples(loader_class(Attribute(0), num_workers=1, worker_init_fn=set_value)) == [10] * 4


def test_init_runs_before_iter_of_dataset(loader_class):
    loader = loader_class(Configured(), batch_size=None, num_workers=2, worker_init_fn=set_value)
    assert list(loader) == [10, 11, 10, 11]


def test_surroundings(loader_class):
    rows = list(loader_class(Calling(surroundings), batch_size=None, num_workers=1, collate_fn=identity))
    for threads, daemon, name, _ in rows:
        assert threads == 1
        assert daemon
        assert name == "pt_data_worker"


def test_affinity_set_by_init_holds(loader_class):
    first = min(os.sched_getaffinity(0))
    loader = loader_class(
        Calling(surroundings, 6),
        batch_size=None,
        num_workers=2,
        worker_init_fn=pin_to_first,
        collate_fn=identity,
    )
    assert {tuple(row[3]) for row in loader} == {(first,)}


def test_worker_info_shards_a_stream(loader_class):
    assert sorted(loader_class(Stream(3, 2), batch_size=None, num_workers=2)) == [0, 1, 2, 100, 101]


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_main_process_threads_are_left_alone(loader_class, num_workers):
    before = torch.get_num_threads()
    list(loader_class(Attribute(1), num_workers=num_workers))
    assert torch.get_num_threads() == before
