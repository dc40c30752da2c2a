"""States that do not fit: refused by name, at once, and the loader is as it was."""

import copy
import json
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler, SubsetRandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

import headrace
from headrace.engine.ordering import saved
from tests.loader.data import Numbers, StatefulIterators, StatefulNumbers
from tests.parity.datasets import Squares
from tests.parity.support import lists, raises, samples, seeded
from tests.selection import examples

N = 30

# torch judges the number of workers by the cores of the machine the tests happen to run on.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


def taken(dataset, batches=2, **options):
    """A state after some batches."""
    with headrace.DataLoader(dataset, **{"num_workers": 0, **options}) as loader:
        iterator = iter(loader)
        for _ in range(batches):
            next(iterator)
        return json.loads(json.dumps(loader.state_dict()))


def refused(loader, state, match=""):
    """It is, and the loader does what it would have done."""
    before = loader.state_dict()
    with raises(headrace.StateMismatch, match=match):
        loader.load_state_dict(state)
    assert loader.state_dict() == before


def test_version():
    loader = headrace.DataLoader(Squares(4), num_workers=0)
    for version in (None, 0, 1, 99, True, "2"):
        refused(loader, {"version": version, "epoch": 0}, f"version {version!r}")
    assert samples(loader) == [0, 1, 4, 9]


@pytest.mark.parametrize("state", [None, 3, "state", [], [1], b"", (), 0.5, False], ids=repr)
def test_no_state_at_all(state):
    refused(headrace.DataLoader(Squares(4), num_workers=0), state, "state_dict")


def test_of_torchdata():
    loader = StatefulDataLoader(Squares(12), 4, num_workers=0)
    next(iter(loader))
    refused(headrace.DataLoader(Squares(12), 4, num_workers=0), loader.state_dict(), "version")


def test_of_another_kind_of_dataset():
    refused(headrace.DataLoader(Numbers(4), num_workers=0), taken(Squares(4)), "iterable")
    refused(headrace.DataLoader(Squares(4), num_workers=0), taken(Numbers(4)), "map-style")
    for batches in (4, 5):
        finished = taken(Squares(4), batches=4)
        refused(headrace.DataLoader(Numbers(batches), num_workers=0), finished, "iterable")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_data_pipes_have_none():
    pipe = torch.utils.data.datapipes.iter.IterableWrapper(range(4))
    loader = headrace.DataLoader(pipe, num_workers=0)
    refused(loader, taken(Numbers(4)), "pipes")
    loader.load_state_dict({})


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 3), (3, 2)])
def test_streams_of_another_number_of_workers(before, after):
    state = taken(Numbers(N), batch_size=2, num_workers=before)
    refused(headrace.DataLoader(Numbers(N), 2, num_workers=after), state, "num_workers")


@pytest.mark.parametrize("size", [3, None])
@pytest.mark.parametrize("dataset", [Squares, Numbers])
def test_another_batch_size(size, dataset):
    refused(headrace.DataLoader(dataset(N), size, num_workers=0), taken(dataset(N), batch_size=4), "batch_size=4")


@pytest.mark.parametrize("length", [N - 1, N + 1, 0])
def test_a_dataset_of_another_length(length):
    refused(headrace.DataLoader(Squares(length), 4, num_workers=0), taken(Squares(N), batch_size=4), "length=30")


def test_a_dataset_that_changes_its_length_after_the_state_was_loaded():
    dataset = Squares(N)
    loader = headrace.DataLoader(dataset, 4, num_workers=0)
    loader.load_state_dict(taken(Squares(N), batch_size=4))
    dataset.n += 1
    for _ in range(2):
        with raises(headrace.StateMismatch, match="length=30"):
            iter(loader)
    dataset.n -= 1
    assert samples(loader) == [i * i for i in range(8, N)]


def test_after_a_whole_epoch_the_length_does_not_matter():
    loader = headrace.DataLoader(Squares(N), 4, num_workers=0)
    list(loader)
    grown = headrace.DataLoader(Squares(N + 3), 5, num_workers=0)
    grown.load_state_dict(loader.state_dict())
    assert samples(grown) == [i * i for i in range(N + 3)]


SAMPLERS = {
    "sequential": lambda: SequentialSampler(range(N)),
    "random": lambda: RandomSampler(range(N)),
    "with replacement": lambda: RandomSampler(range(N), replacement=True),
    "more of them": lambda: RandomSampler(range(N), replacement=True, num_samples=50),
    "subset": lambda: SubsetRandomSampler(range(20)),
    "another subset": lambda: SubsetRandomSampler(range(19)),
    "rank 0": lambda: DistributedSampler(range(N), 2, 0),
    "rank 1": lambda: DistributedSampler(range(N), 2, 1),
    "of three": lambda: DistributedSampler(range(N), 3, 0),
    "another seed": lambda: DistributedSampler(range(N), 2, 0, seed=1),
    "not shuffled": lambda: DistributedSampler(range(N), 2, 0, shuffle=False),
    "list": lambda: list(range(N)),
}


@pytest.mark.parametrize("before", SAMPLERS)
def test_another_sampler(before):
    state = taken(Squares(N), batch_size=4, sampler=SAMPLERS[before]())
    for after, sampler in SAMPLERS.items():
        if after != before:
            refused(headrace.DataLoader(Squares(N), 4, sampler=sampler(), num_workers=0), state, "sampler")


class Follows:
    """A sampler that draws what it is told: nothing shows that it is another one, except what it draws."""

    def __init__(self, order):
        self.order = order

    def __iter__(self):
        return iter(self.order)


@pytest.mark.parametrize("order", [list(range(N))[::-1], [0, 1, 2, 3, 4, 5, 7, 6], [0, 1, 2], [], ["a"] * N], ids=str)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sampler_that_draws_otherwise(order, num_workers):
    state = taken(Squares(N), batch_size=4, sampler=Follows(range(N)))
    loader = headrace.DataLoader(Squares(N), 4, sampler=Follows(order), num_workers=num_workers)
    loader.load_state_dict(state)
    numbers = torch.get_rng_state()
    for _ in range(2):
        with raises(headrace.StateMismatch, match="does not draw what it had drawn"):
            iter(loader)
        assert torch.equal(torch.get_rng_state(), numbers)
    loader.sampler.order = range(N)
    assert samples(loader) == [i * i for i in range(8, N)]


class Refuses(SequentialSampler):
    def state_dict(self):
        return {"a": 1}

    def load_state_dict(self, state):
        raise KeyError("b")


def test_a_sampler_that_refuses_its_state():
    state = taken(Squares(N), batch_size=4, sampler=Refuses(range(N)))
    loader = headrace.DataLoader(Squares(N), 4, sampler=Refuses(range(N)), num_workers=0)
    loader.load_state_dict(state)
    with raises(headrace.StateMismatch, match="Refuses, does not take its state: KeyError"):
        iter(loader)


class RefusingStream(StatefulNumbers):
    def load_state_dict(self, state):
        raise KeyError("b")


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (1, False), (2, True)])
@pytest.mark.parametrize("dataset", [RefusingStream, Numbers])
def test_a_dataset_that_refuses_its_state(num_workers, persistent, dataset):
    """Or that has none any more; it is not read from the start instead, however often one tries."""
    state = taken(StatefulNumbers(N), batch_size=4, num_workers=num_workers)
    options = {"num_workers": num_workers, "persistent_workers": persistent}
    with headrace.DataLoader(dataset(N), 4, **options) as loader:
        loader.load_state_dict(state)
        for _ in range(3):
            with raises(headrace.StateMismatch, match="does not take its state"):
                next(iter(loader))
            assert loader.state_dict() == state


def test_a_stream_that_has_become_shorter():
    state = taken(Numbers(N), batch_size=4, batches=4)
    loader = headrace.DataLoader(Numbers(9), 4, num_workers=0)
    loader.load_state_dict(state)
    with raises(headrace.StateMismatch, match="ends after 3"):
        iter(loader)


def test_it_is_a_value_error():
    assert issubclass(headrace.StateMismatch, ValueError)


KINDS = {
    "sequential": (Squares, {}),
    "shuffled": (Squares, {"shuffle": True}),
    "generator": (Squares, {"shuffle": True, "generator": 3}),
    "with workers": (Squares, {"shuffle": True, "num_workers": 1, "in_order": False}),
    "own sampler": (Squares, {"sampler": [4, 1, 3, 0, 2, 5, 6, 9, 8]}),
    "stream": (Numbers, {}),
    "stateful stream": (StatefulNumbers, {}),
    "stateful iterators": (StatefulIterators, {}),
}


def made(kind):
    dataset, options = KINDS[kind]
    options = {"num_workers": 0, **options}
    if "generator" in options:
        options["generator"] = seeded(options["generator"])
    return headrace.DataLoader(dataset(10), 2, **options)


@cache
def real(kind, batches):
    """(state, what comes then)."""
    torch.manual_seed(4)
    loader = made(kind)
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    state = json.dumps(loader.state_dict())
    return state, sorted(map(sorted, lists(iterator)))


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


def places(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def edited(data, state, without):
    """One thing in it changed, added or taken away; nothing in ``without``."""
    path = data.draw(st.sampled_from([path for path in places(state) if without not in path]), "where")
    if not path:
        return data.draw(PLAIN, "instead")
    inner = state
    for key in path[:-1]:
        inner = inner[key]
    change = data.draw(st.sampled_from(["replace", "nudge", "remove", "add"]), "change")
    if change == "remove":
        del inner[path[-1]]
    elif change == "add" and isinstance(inner, dict):
        # At the top, names with an underscore are those of wrappers.
        inner[data.draw(st.text(max_size=5).filter(lambda name: not name.startswith("_")))] = data.draw(PLAIN)
    elif change == "nudge" and type(inner[path[-1]]) is int:
        inner[path[-1]] += data.draw(st.sampled_from([-(2**70), -1000, -1, 1, 1000, 2**63, 2**70]))
    else:
        inner[path[-1]] = data.draw(PLAIN, "instead")
    return state


def test_what_a_wrapper_adds_is_ignored():
    loader = headrace.DataLoader(range(6), 2)
    next(iter(loader))
    state = loader.state_dict()
    loader.load_state_dict(state | {"_iterator_finished": False})
    assert loader.state_dict() == state
    assert lists(loader) == [[2, 3], [4, 5]]
    with raises(headrace.StateMismatch, match="edited"):
        loader.load_state_dict(state | {"iterator_finished": False})


@given(data=st.data())
@settings(max_examples=examples(300))
def test_an_edited_state_is_refused(data):
    """Also one whose seal was renewed: what it says then may be true of another loader, and nothing else is raised."""
    kind = data.draw(st.sampled_from([kind for kind in KINDS if kind != "with workers"]), "kind")
    text, rest = real(kind, data.draw(st.integers(0, 4), "batches"))
    original = json.loads(text)
    resealed = data.draw(st.booleans(), "resealed")
    # What is inside the state of the user's dataset is the dataset's to judge.
    state = edited(data, copy.deepcopy(original), "state" if resealed else "")
    if resealed and isinstance(state, dict):
        state = saved.sealed(state)
    loader = made(kind)
    try:
        loader.load_state_dict(state)
    except headrace.StateMismatch:
        assert loader.state_dict() == {}
        return
    assert resealed or state in ({}, original), "an edited state was believed"
    try:
        found = lists(loader)
    except headrace.StateMismatch:
        assert loader.state_dict() == state
        return
    if state == original:
        assert sorted(map(sorted, found)) == rest


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batches", [0, 1, 4])
def test_the_unedited_one_is_not(kind, batches):
    text, rest = real(kind, batches)
    loader = made(kind)
    loader.load_state_dict(json.loads(text))
    assert sorted(map(sorted, lists(loader))) == rest or kind == "with workers"


@pytest.mark.parametrize("before", KINDS)
def test_of_another_loader(before):
    text, _ = real(before, 2)
    for after in KINDS:
        loader = made(after)
        try:
            loader.load_state_dict(json.loads(text))
            found = sorted(samples(loader))
        except headrace.StateMismatch:
            assert after != before
            continue
        whole = sorted(samples(made(after)))
        assert len(found) == len(whole) - 4
        assert set(found) <= set(whole)
