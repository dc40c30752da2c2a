"""Ranks that divide an epoch, stop in the middle, and go on as another number of ranks: each sample exactly once."""

import json
import random

import numpy as np
import pytest
import torch

from headrace import DataLoader, Ranks, StateMismatch
from headrace.engine.ordering.saved import sealed
from tests.parity.datasets import Squares

COUNT, BATCH = 103, 8


class Numbers(torch.utils.data.Dataset):
    def __init__(self, count=COUNT):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return index


def loader_of(rank, world, rest="keep", **options):
    options = {"num_workers": 0, "shuffle": True, **options}
    return DataLoader(Numbers(), BATCH, ranks=Ranks(rank=rank, world=world, rest=rest), **options)


def delivered(loader, batches=None):
    """The samples of so many batches, or of the rest of the epoch."""
    found, coming = [], iter(loader)
    while batches is None or len(found) < batches:
        batch = next(coming, None)
        if batch is None:
            break
        found.append(batch.tolist())
    return [number for batch in found for number in batch]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("world", [1, 2, 5])
def test_ranks_share_an_epoch(world, shuffle):
    parts = []
    for rank in range(world):
        with loader_of(rank, world, shuffle=shuffle) as loader:
            parts.append(delivered(loader))
            assert len(parts[-1]) == len(loader.sampler)
            assert len(loader) == -(-len(parts[-1]) // BATCH)
    assert sorted(number for part in parts for number in part) == list(range(COUNT))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    if not shuffle:
        assert parts[0] == list(range(0, COUNT, world))


@pytest.mark.parametrize(("rest", "each"), [("pad", 26), ("drop", 25)])
def test_ranks_have_as_many_samples_as_each_other(rest, each):
    parts = []
    for rank in range(4):
        with loader_of(rank, 4, rest) as loader:
            parts.append(delivered(loader))
            assert len(loader.sampler) == each
    assert {len(part) for part in parts} == {each}
    assert len({number for part in parts for number in part}) == (COUNT if rest == "pad" else 100)


def test_each_epoch_has_another_order_and_all_ranks_have_the_same():
    with loader_of(0, 2) as first, loader_of(1, 2) as second:
        epochs = [(delivered(first), delivered(second)) for _ in range(2)]
    assert [sorted(one + other) for one, other in epochs] == [list(range(COUNT))] * 2
    assert epochs[0] != epochs[1]
    with loader_of(0, 2) as again:
        again.sampler.set_epoch(1)
        assert delivered(again) == epochs[1][0]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("rest", ["keep", "pad", "drop"])
def test_two_ranks_one_rank_three_ranks(workers, in_order, rest):
    """The states of all that stop are taken up by all that go on, through JSON, in any order."""
    if workers and rest != "keep":
        pytest.skip("what becomes of the rest is decided without workers")
    seen, states = [], None
    for world, batches in ((2, 3), (1, 2), (3, 1), (2, None)):
        left = []
        for rank in range(world):
            with loader_of(rank, world, rest, num_workers=workers, in_order=in_order) as loader:
                if states is not None:
                    random.Random(rank).shuffle(states)
                    loader.load_state_dict(states)
                seen += delivered(loader, batches)
                left.append(json.loads(json.dumps(loader.state_dict())))
        states = left
    missing = set(range(COUNT)) - set(seen)
    if rest == "keep":
        assert sorted(seen) == list(range(COUNT))
    elif rest == "pad":
        assert not missing
        assert len(seen) <= COUNT + 1 + 2 + 1
    else:
        assert len(seen) == len(set(seen))
        assert len(missing) <= 1


def test_one_that_finished_before_the_others_has_nothing_left():
    seen, states = [], []
    for rank, batches in ((0, None), (1, 2)):
        with loader_of(rank, 2) as loader:
            seen += delivered(loader, batches)
            states.append(loader.state_dict())
    with loader_of(0, 1) as loader:
        loader.load_state_dict(states)
        seen += delivered(loader)
    assert sorted(seen) == list(range(COUNT))


def test_after_an_epoch_that_all_finished_comes_the_next():
    states, orders = [], []
    for rank in range(2):
        with loader_of(rank, 2) as loader:
            delivered(loader)
            states.append(loader.state_dict())
            orders.append(delivered(loader))
    for rank in range(2):
        with loader_of(rank, 2) as loader:
            loader.load_state_dict(states)
            assert delivered(loader) == orders[rank]


def test_a_rank_goes_on_from_its_own_state_in_the_same_order():
    with loader_of(1, 3) as loader:
        whole = delivered(loader)
    with loader_of(1, 3) as loader:
        before = delivered(loader, 2)
        state = loader.state_dict()
    with loader_of(1, 3) as loader:
        loader.load_state_dict(state)
        assert before + delivered(loader) == whole


def test_states_that_are_not_all_are_refused():
    states = []
    for rank in range(3):
        with loader_of(rank, 3) as loader:
            delivered(loader, 1)
            states.append(loader.state_dict())
    with loader_of(0, 2) as loader:
        with pytest.raises(StateMismatch, match=r"of rank 1 of 3.*give the states of all 3 ranks"):
            loader.load_state_dict(states[1])
        with pytest.raises(StateMismatch, match="not the states of all ranks of one moment"):
            loader.load_state_dict(states[:2])
        with pytest.raises(StateMismatch, match="one rank's state is among them twice"):
            loader.load_state_dict([*states[:2], states[1]])
        with pytest.raises(StateMismatch, match="there are none"):
            loader.load_state_dict([])
    with DataLoader(Numbers(), BATCH, num_workers=0) as plain, pytest.raises(StateMismatch, match="divides its epochs"):
        plain.load_state_dict(states)
    with DataLoader(Numbers(), BATCH, num_workers=0, shuffle=True) as plain:
        delivered(plain, 1)
        other = plain.state_dict()
    with loader_of(0, 2) as loader, pytest.raises(StateMismatch, match="divide their epochs"):
        loader.load_state_dict([*states[:2], other])


@pytest.mark.parametrize(
    "damage", [{"of": 3}, {"of": []}, {"seed": "x"}, {"left": {}}, {"yielded": None}, {"epoch": []}]
)
def test_states_that_make_no_sense_are_refused(damage):
    with loader_of(0, 1) as loader:
        delivered(loader, 1)
        state = loader.state_dict()
        state["order"]["sampler"].update(damage)
        with pytest.raises(StateMismatch):
            loader.load_state_dict([sealed({name: value for name, value in state.items() if name != "checksum"})])


def test_states_of_another_dataset_are_refused():
    with DataLoader(Numbers(90), BATCH, num_workers=0, ranks=Ranks(rank=0, world=1)) as loader:
        delivered(loader, 1)
        state = loader.state_dict()
    with loader_of(0, 2) as other, pytest.raises(StateMismatch):
        other.load_state_dict(state)


class TestWho:
    def test_the_launcher_says(self, monkeypatch):
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        with DataLoader(Numbers(), BATCH, num_workers=0, ranks=Ranks()) as loader:
            assert delivered(loader) == [*range(1, COUNT, 2), 0]

    @pytest.mark.parametrize(("rank", "world"), [("2", "2"), ("1", ""), ("x", "2"), ("", "2")])
    def test_a_launcher_that_makes_no_sense_is_an_error(self, monkeypatch, rank, world):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", world)
        with pytest.raises(ValueError, match="no such rank"):
            DataLoader(Numbers(), BATCH, ranks=Ranks())

    def test_alone_without_one(self, monkeypatch):
        monkeypatch.delenv("RANK", raising=False)
        monkeypatch.delenv("WORLD_SIZE", raising=False)
        with DataLoader(Numbers(), BATCH, num_workers=0, ranks=Ranks()) as loader:
            assert delivered(loader) == list(range(COUNT))

    def test_bad_options_are_named(self):
        with pytest.raises(ValueError, match=r"Ranks\(rest=...\) takes 'pad', 'drop' or 'keep', not 'some'"):
            Ranks(rest="some")
        with pytest.raises(ValueError, match="both or none"):
            Ranks(rank=1)
        with pytest.raises(ValueError, match="from 0 to 1, not 2"):
            Ranks(rank=2, world=2)
        with pytest.raises(ValueError, match="leave sampler out"):
            DataLoader(Numbers(), sampler=[1, 2], ranks=Ranks(rank=0, world=1))
        with pytest.raises(TypeError):
            DataLoader(Numbers(), ranks=2)

    def test_iterable_datasets_divide_themselves(self):
        class Stream(torch.utils.data.IterableDataset):
            def __iter__(self):
                return iter(range(3))

        with pytest.raises(ValueError, match="an iterable dataset divides itself"):
            DataLoader(Stream(), ranks=Ranks(rank=0, world=1))


def test_orders_are_spread_over_the_dataset():
    with DataLoader(Squares(5000), 50, shuffle=True, num_workers=0, ranks=Ranks(rank=0, world=2)) as loader:
        order = list(loader.sampler)
    assert 1500 < np.abs(np.diff(order)).mean() < 1850
