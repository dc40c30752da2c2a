"""Contract sections 1 and 14: copies of loaders, and what other libraries read from one."""

import copy
import pickle

import pytest
import torch
import torch.utils.data
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler

from tests.parity.datasets import Squares, plus_one
from tests.parity.support import lists, samples, seeded

WORKERS = pytest.mark.parametrize("num_workers", [0, 1])


@pytest.mark.parametrize("copier", [copy.deepcopy, copy.copy, lambda x: pickle.loads(pickle.dumps(x))])
@WORKERS
def test_loader_can_be_copied(loader_class, copier, num_workers):
    loader = loader_class(
        Squares(5),
        batch_size=2,
        num_workers=num_workers,
        collate_fn=plus_one,
        sampler=[4, 3, 0],
        in_order=True,
    )
    list(loader)
    twin = copier(loader)
    assert type(twin) is loader_class
    assert lists(twin) == lists(loader) == [[17, 10], [1]]
    assert (twin.num_workers, twin.batch_size, twin.in_order) == (num_workers, 2, True)
    with pytest.raises(ValueError, match="should not be set"):
        twin.batch_size = 3


@WORKERS
def test_iterator_cannot_be_pickled(loader_class, num_workers):
    iterator = iter(loader_class(Squares(3), num_workers=num_workers))
    with pytest.raises(NotImplementedError):
        pickle.dumps(iterator)


def test_distributed_sampler_is_reachable_and_live(loader_class):
    sampler = DistributedSampler(range(12), num_replicas=2, rank=1, shuffle=True, seed=3)
    loader = loader_class(range(12), batch_size=4, sampler=sampler, num_workers=1)
    orders = []
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        orders.append(samples(loader))
        assert orders[-1] == list(sampler)
    assert orders[0] != orders[1]


def test_batch_sampler_is_reachable_and_live(loader_class):
    loader = loader_class(range(6), batch_size=2, shuffle=True, generator=seeded(0), num_workers=1)
    assert isinstance(loader.batch_sampler, BatchSampler)
    assert isinstance(loader.batch_sampler.sampler, RandomSampler)
    assert loader.batch_sampler.sampler is loader.sampler
    loader.batch_sampler.batch_size = 3
    assert [len(batch) for batch in loader] == [3, 3]


COMMON = [
    "dataset",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
]


@WORKERS
@pytest.mark.parametrize("by", ["batch_sampler", "sampler"])
def test_loader_can_be_rebuilt_from_its_attributes(loader_class, by, num_workers):
    names = [
        *COMMON,
        *(["batch_sampler"] if by == "batch_sampler" else ["sampler", "batch_size", "drop_last"]),
    ]
    loader = loader_class(
        Squares(7), batch_size=2, sampler=[3, 1, 6], num_workers=num_workers, drop_last=True, in_order=True
    )
    twin = loader_class(**{name: getattr(loader, name) for name in names})
    assert lists(twin) == lists(loader) == [[9, 1]]


def test_rebuilt_with_context(loader_class):
    loader = loader_class(Squares(3), num_workers=1, multiprocessing_context="fork", prefetch_factor=4)
    twin = loader_class(**{name: getattr(loader, name) for name in COMMON})
    assert (samples(twin), twin.prefetch_factor) == ([0, 1, 4], 4)


def test_subclass_may_override_iter(loader_class):
    class Doubling(loader_class):
        def __iter__(self):
            for batch in super().__iter__():
                yield batch * 2

    assert samples(Doubling(Squares(3), num_workers=1)) == [0, 2, 8]


def test_own_attributes_may_be_added(loader_class):
    loader = loader_class(Squares(3), num_workers=0)
    loader.note = "mine"
    assert loader.note == "mine"
    assert isinstance(copy.deepcopy(loader), torch.utils.data.DataLoader)
