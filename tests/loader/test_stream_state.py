"""The state of iterable datasets: where their iterators stand, and where their workers' generators do."""

import json
import random
from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

import headrace
from tests.loader.data import Once, StatefulIterator
from tests.parity.support import assert_same

# torch judges the number of workers by the cores of the machine the tests happen to run on.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

each_way = pytest.mark.parametrize(("num_workers", "persistent"), [(1, False), (2, False), (2, True)])


def through_json(state):
    return json.loads(json.dumps(state))


class Own(IterableDataset):
    """Its own iterator: ``iter`` starts it over, so a state must be loaded after that."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        info = get_worker_info()
        self.next, self.step = (0, 1) if info is None else (info.id, info.num_workers)
        return self

    def __next__(self):
        if self.next >= self.n:
            raise StopIteration
        self.next += self.step
        return self.next - self.step

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        assert hasattr(self, "next"), "iter() comes first"
        self.next = state["next"]


class Both(IterableDataset):
    """The dataset has a state, and each of its iterators another one."""

    hook, seconds = staticmethod(lambda _: None), 0

    def __init__(self, n):
        self.n, self.passes = n, 0

    def __iter__(self):
        self.passes += 1
        info = get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        return StatefulIterator(start, step, self)

    def state_dict(self):
        return {"passes": self.passes}

    def load_state_dict(self, state):
        self.passes = state["passes"] - 1


@pytest.mark.sampled
@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (1, False), (2, False), (2, True)])
@pytest.mark.parametrize("dataset", [Own, Both])
def test_iterators_with_a_state(dataset, num_workers, persistent):
    def make():
        return headrace.DataLoader(dataset(22), 3, num_workers=num_workers, persistent_workers=persistent)

    with make() as whole:
        expected = [batch.tolist() for batch in whole]
    for taken in range(0, len(expected), 2):
        with make() as first:
            found = [batch.tolist() for batch in islice(iter(first), taken)]
            state = through_json(first.state_dict())
        with make() as resumed:
            resumed.load_state_dict(state)
            assert found + [batch.tolist() for batch in resumed] == expected
            assert [batch.tolist() for batch in resumed] == expected


class Draws(IterableDataset):
    """Items that depend on everything that was drawn before; each worker has a share of them."""

    def __init__(self, n, hook=lambda _: None):
        self.n, self.hook = n, hook

    def numbers(self):
        info = get_worker_info()
        return iter(range(info.id, self.n, info.num_workers))

    def __iter__(self):
        for number in self.numbers():
            self.hook(number)
            yield self.item(number)

    def item(self, number):
        return number, torch.rand(()), random.gauss(0, 1), np.random.randn()


class StatefulDraws(Draws):
    """The same, knowing where it stands."""

    at = 0

    def __iter__(self):
        for number in list(self.numbers())[self.at :]:
            self.hook(number)
            self.at += 1
            yield self.item(number)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def drawing(batch):
    """A collate_fn that draws."""
    return torch.utils.data.default_collate(batch), random.random(), torch.rand(2), np.random.rand()


@pytest.mark.sampled
@each_way
@pytest.mark.parametrize("collate_fn", [None, drawing])
@pytest.mark.parametrize("dataset", [Draws, StatefulDraws])
def test_random_numbers_go_on(dataset, collate_fn, num_workers, persistent):
    """In any epoch: persistent workers go on drawing where they were, others start anew."""
    options = {"num_workers": num_workers, "persistent_workers": persistent, "collate_fn": collate_fn}

    def make():
        return headrace.DataLoader(dataset(20), 3, in_order=True, **options)

    torch.manual_seed(3)
    with make() as whole:
        epochs = [list(whole) for _ in range(2)]
    assert str(epochs[0]) != str(epochs[1])
    for epoch, taken in ((0, 0), (0, 3), (1, 1), (1, 4)):
        torch.manual_seed(3)
        with make() as first:
            for _ in range(epoch):
                list(first)
            found = list(islice(iter(first), taken))
            state = through_json(first.state_dict())
        torch.manual_seed(77)
        with make() as resumed:
            resumed.load_state_dict(state)
            found += list(resumed)
        assert_same(found, epochs[epoch])


@pytest.mark.parametrize("dataset", [Draws, StatefulDraws])
@pytest.mark.parametrize("at", [1, 8, 15])
def test_a_worker_that_replaces_a_dead_one_draws_the_same(dataset, at, tmp_path):
    torch.manual_seed(3)
    expected = list(headrace.DataLoader(dataset(20), 3, num_workers=2, collate_fn=drawing))
    torch.manual_seed(3)
    loading = headrace.Loading(repeats=dataset is Draws)
    killed = dataset(20, Once(tmp_path / "killed", at))
    loader = headrace.DataLoader(killed, 3, num_workers=2, collate_fn=drawing, loading=loading)
    assert_same(list(loader), expected)
    assert loader.stats().restarts == 1


def test_workers_that_draw_nothing_make_no_state_larger():
    def size(dataset):
        loader = headrace.DataLoader(dataset, 3, num_workers=1)
        next(iter(loader))
        return len(json.dumps(loader.state_dict()))

    assert size(Own(20)) < 1000 < size(Draws(20))
