"""``state_dict`` and ``load_state_dict``: the rest of the epoch, exactly, then whole epochs."""

import copy
import json
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import headrace
from tests.loader.data import Numbers, Pairs, Raises, StatefulIterators, StatefulNumbers
from tests.loader.support import MODES, SIZE, Mode, outcomes
from tests.parity.datasets import Squares
from tests.parity.support import lists, raises, samples, seeded
from tests.selection import examples

N = 23

each_order = pytest.mark.parametrize("in_order", [True, False], ids=["in order", "as ready"])

# torch judges the number of workers by the cores of the machine the tests happen to run on.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


def through_json(state):
    return json.loads(json.dumps(state))


def take(iterator, count):
    return [next(iterator) for _ in range(count)]


class StatefulSampler:
    """Sequential, following torchdata's convention; jumps over nothing when it goes on."""

    def __init__(self, n):
        self.n, self.next, self.drawn = n, 0, 0

    def __len__(self):
        return self.n

    def __iter__(self):
        while self.next < self.n:
            self.next += 1
            self.drawn += 1
            yield self.next - 1
        self.next = 0

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


class Fresh(torch.utils.data.Sampler):
    """A sampler with a state that its iterator keeps."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __iter__(self):
        return FreshIterator(self.n)


class FreshIterator:
    def __init__(self, n):
        self.order, self.next = list(range(n))[::-1], 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.next == len(self.order):
            raise StopIteration
        self.next += 1
        return self.order[self.next - 1]

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


SAMPLERS = {
    "sequential": dict,
    "shuffle": lambda: {"shuffle": True},
    "shuffle with a generator": lambda: {"shuffle": True, "generator": seeded(5)},
    "random": lambda: {"sampler": RandomSampler(range(N))},
    "random with a generator": lambda: {"sampler": RandomSampler(range(N), generator=seeded(6))},
    "with replacement": lambda: {"sampler": RandomSampler(range(N), replacement=True)},
    "replacement and generator": lambda: {
        "sampler": RandomSampler(range(N), replacement=True, num_samples=40, generator=seeded(7))
    },
    "weighted": lambda: {"sampler": WeightedRandomSampler([1.0 + i for i in range(N)], 30)},
    "weighted with a generator": lambda: {
        "sampler": WeightedRandomSampler([1.0 + i for i in range(N)], 30, generator=seeded(8))
    },
    "subset": lambda: {"sampler": SubsetRandomSampler(range(0, N, 2))},
    "subset with a generator": lambda: {"sampler": SubsetRandomSampler(range(0, N, 2), generator=seeded(9))},
    "distributed": lambda: {"sampler": distributed(3)},
    "stateful": lambda: {"sampler": StatefulSampler(N)},
    "stateful iterator": lambda: {"sampler": Fresh(N)},
    "batch sampler": lambda: {"batch_sampler": BatchSampler(RandomSampler(range(N)), 4, drop_last=False)},
    "list of batches": lambda: {"batch_sampler": [[3, 1], [4], [1, 5, 9], [2, 6], [5]]},
}


def distributed(epoch):
    sampler = DistributedSampler(range(N), num_replicas=2, rank=1, seed=4)
    sampler.set_epoch(epoch)
    return sampler


@pytest.mark.sampled
@pytest.mark.parametrize("size", [4, None])
@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_in_order(name, size):
    """Batch for batch what the uninterrupted epoch gives, whatever the global generator does in between."""
    options = SAMPLERS[name]
    if "batch" in name:
        size = 1
    torch.manual_seed(11)
    uninterrupted = headrace.DataLoader(Squares(50), size, num_workers=0, in_order=True, **options())
    whole = [batch.tolist() for batch in map(torch.as_tensor, uninterrupted)]
    for before, after in ((0, 2), (2, 0)):
        torch.manual_seed(11)
        loader = headrace.DataLoader(Squares(50), size, num_workers=before, in_order=True, **options())
        iterator = iter(loader)
        first = [torch.as_tensor(batch).tolist() for batch in take(iterator, 2)]
        state = through_json(loader.state_dict())
        del iterator
        torch.manual_seed(99)
        resumed = headrace.DataLoader(Squares(50), size, num_workers=after, in_order=True, **options())
        resumed.load_state_dict(state)
        rest = [torch.as_tensor(batch).tolist() for batch in resumed]
        assert first + rest == whole


CHANGES = [
    (MODES[name], before, after)
    for name in MODES
    for before, after in [(0, 2), (2, 0), (3, 2), (2, 3)]
    if (before, after) == (2, 3) or name in ("default collate", "variable shapes")
]


@each_order
@pytest.mark.parametrize(("mode", "before", "after"), CHANGES)
def test_every_mode_and_order(mode: Mode, in_order, before, after):
    loader = mode.loader(N, num_workers=before, in_order=in_order, timeout=0)
    iterator = iter(loader)
    rows = [row for batch in take(iterator, 2) for row in mode.rows(batch)]
    state = through_json(loader.state_dict())
    del iterator
    resumed = mode.loader(N, num_workers=after, in_order=in_order, timeout=0)
    resumed.load_state_dict(state)
    rows += [row for batch in resumed for row in mode.rows(batch)]
    mode.check(rows, list(range(N)), ordered=in_order)
    rows = [row for batch in resumed for row in mode.rows(batch)]
    mode.check(rows, list(range(N)), ordered=in_order)


@given(data=st.data())
@settings(max_examples=examples(25))
def test_before_and_after_are_the_epoch(data):
    n = data.draw(st.integers(1, 30), "n")
    size = data.draw(st.integers(1, 7), "batch_size")
    drop_last = data.draw(st.booleans(), "drop_last")
    workers = [data.draw(st.integers(0, 2), f"workers {when}") for when in ("before", "after")]
    orders = [data.draw(st.booleans(), f"in_order {when}") for when in ("before", "after")]
    shuffle = data.draw(st.booleans(), "shuffle")
    expected = n - n % size if drop_last else n
    consumed = data.draw(st.integers(0, -(-expected // size)), "consumed")

    def make(when):
        return headrace.DataLoader(
            Squares(n),
            size,
            shuffle,
            num_workers=workers[when],
            in_order=orders[when],
            drop_last=drop_last,
        )

    loader = make(0)
    iterator = iter(loader)
    found = samples(take(iterator, consumed))
    state = through_json(loader.state_dict())
    iterator.close()
    resumed = make(1)
    resumed.load_state_dict(state)
    rest = lists(resumed)
    everything = [i * i for i in range(n)]
    found += [value for batch in rest for value in batch]
    assert len(found) == len(set(found)) == expected
    assert set(found) <= set(everything)
    if not shuffle:
        assert sorted(found) == everything[:expected]
        if orders[1]:
            assert [value for batch in rest for value in batch] == sorted(value for batch in rest for value in batch)
    assert all(len(batch) == size for batch in rest[:-1])


@each_order
def test_resumed_twice(in_order):
    found, state = [], {}
    for workers in (2, 0, 3, 1):
        loader = headrace.DataLoader(Squares(40), 4, True, num_workers=workers, in_order=in_order)
        loader.load_state_dict(state)
        iterator = iter(loader)
        found += samples(take(iterator, 2))
        state = through_json(loader.state_dict())
        del iterator
    loader = headrace.DataLoader(Squares(40), 4, True, num_workers=2, in_order=in_order)
    loader.load_state_dict(state)
    found += samples(loader)
    assert sorted(found) == [i * i for i in range(40)]


@each_order
@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_after_leaving_a_loop(num_workers, persistent, in_order):
    options = {"num_workers": num_workers, "in_order": in_order, "persistent_workers": persistent}
    found = []
    with headrace.DataLoader(Squares(N), 4, True, **options) as loader:
        for number, batch in enumerate(loader):
            found += batch.tolist()
            if number == 2:
                break
        state = loader.state_dict()
    assert loader.state_dict() == state
    resumed = headrace.DataLoader(Squares(N), 4, True, **options)
    with resumed:
        resumed.load_state_dict(state)
        found += samples(resumed)
        assert sorted(found) == [i * i for i in range(N)]
        assert sorted(samples(resumed)) == [i * i for i in range(N)]


@each_order
@pytest.mark.parametrize("persistent", [False, True])
def test_the_same_loader_goes_on_from_its_own_state(in_order, persistent):
    with headrace.DataLoader(
        Squares(N), 4, True, num_workers=2, in_order=in_order, persistent_workers=persistent
    ) as loader:
        iterator = iter(loader)
        found = samples(take(iterator, 2))
        state = loader.state_dict()
        take(iterator, 2)
        loader.load_state_dict(state)
        found += samples(loader)
        assert sorted(found) == [i * i for i in range(N)]


@each_order
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_does_not_change_afterwards(num_workers, in_order):
    loader = headrace.DataLoader(Squares(N), 4, True, num_workers=num_workers, in_order=in_order)
    iterator = iter(loader)
    take(iterator, 2)
    state = loader.state_dict()
    kept = copy.deepcopy(state)
    take(iterator, 2)
    assert state == kept
    assert loader.state_dict() != kept
    loader.load_state_dict(state)
    list(loader)
    assert state == kept


ENDS = {
    "map-style": partial(Squares, 8),
    "stateful sampler": partial(Squares, 8),
    "stream": partial(Numbers, 8),
    "stateful stream": partial(StatefulNumbers, 8),
    "stateful iterator": partial(StatefulIterators, 8),
}


@each_order
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (1, False), (2, True)])
@pytest.mark.parametrize("kind", ENDS)
def test_an_epoch_ends_once(kind, num_workers, persistent, in_order):
    """torchdata's convention: a state goes on with nothing until its loop has ended, and with the next epoch then."""

    def make():
        sampler = StatefulSampler(8) if kind == "stateful sampler" else None
        options = {"num_workers": num_workers, "in_order": in_order, "persistent_workers": persistent}
        return headrace.DataLoader(ENDS[kind](), 2, sampler=sampler, **options)

    whole = list(range(8)) if isinstance(ENDS[kind](), IterableDataset) else [i * i for i in range(8)]
    for exhausted in (False, True):
        with make() as loader, make() as resumed:
            iterator = iter(loader)
            take(iterator, 4)
            if exhausted:
                assert not list(iterator)
            state = through_json(loader.state_dict())
            assert (state["finished"], state["yielded"], state["epoch"]) == (exhausted, 4, 0)
            resumed.load_state_dict(state)
            if not exhausted:
                assert not list(resumed)
                assert resumed.state_dict()["finished"]
                assert (resumed.state_dict()["yielded"], resumed.state_dict()["epoch"]) == (4, 0)
            assert sorted(samples(resumed)) == whole
            assert resumed.state_dict()["epoch"] == 1


def test_batches_are_counted_from_the_beginning_of_the_epoch():
    loader = headrace.DataLoader(Squares(8), 2, num_workers=0)
    for delivered in range(1, 4):
        state = loader.state_dict()
        loader = headrace.DataLoader(Squares(8), 2, num_workers=0)
        loader.load_state_dict(state)
        iterator = iter(loader)
        next(iterator)
        assert loader.state_dict()["yielded"] == delivered


def test_before_the_first_iteration():
    loader = headrace.DataLoader(Squares(8), 4, num_workers=0)
    assert loader.state_dict() == {}
    loader.load_state_dict({})
    assert samples(loader) == [i * i for i in range(8)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_empty_state_starts_over(num_workers):
    loader = headrace.DataLoader(Squares(8), 2, num_workers=num_workers)
    take(iter(loader), 2)
    loader.load_state_dict(loader.state_dict())
    loader.load_state_dict({})
    assert loader.state_dict() == {}
    assert samples(loader) == [i * i for i in range(8)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loaded_state_is_the_state_until_it_is_used(num_workers):
    loader = headrace.DataLoader(Squares(8), 2, num_workers=num_workers)
    iterator = iter(loader)
    take(iterator, 1)
    state = loader.state_dict()
    del iterator
    resumed = headrace.DataLoader(Squares(8), 2, num_workers=num_workers)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    begun = iter(resumed)  # and nothing delivered
    again = headrace.DataLoader(Squares(8), 2, num_workers=0)
    again.load_state_dict(resumed.state_dict())
    assert samples(again) == [i * i for i in range(2, 8)]
    assert samples(begun) == [i * i for i in range(2, 8)]


def test_a_stateful_sampler_is_not_drawn_from_again():
    loader = headrace.DataLoader(Squares(N), 4, sampler=StatefulSampler(N), num_workers=0)
    iterator = iter(loader)
    take(iterator, 3)
    state = through_json(loader.state_dict())
    sampler = StatefulSampler(N)
    resumed = headrace.DataLoader(Squares(N), 4, sampler=sampler, num_workers=2)
    resumed.load_state_dict(state)
    assert samples(resumed) == [i * i for i in range(12, N)]
    assert sampler.drawn == N - 12
    assert samples(resumed) == [i * i for i in range(N)]


@pytest.mark.parametrize("consumed", range(7))
@pytest.mark.parametrize("before", [0, 2])
def test_a_stateful_sampler_may_have_been_drawn_to_its_end(before, consumed):
    """What is drawn runs ahead of what is delivered; the sampler is then ready for its next pass."""
    loader = headrace.DataLoader(Squares(N), 4, sampler=StatefulSampler(N), num_workers=before)
    iterator = iter(loader)
    found = samples(take(iterator, consumed))
    state = through_json(loader.state_dict())
    del iterator
    resumed = headrace.DataLoader(Squares(N), 4, sampler=StatefulSampler(N), num_workers=0)
    resumed.load_state_dict(state)
    whole = [i * i for i in range(N)]
    assert found + samples(resumed) == whole
    assert samples(resumed) == whole


def test_a_distributed_sampler_is_set_to_its_epoch():
    options = {"batch_size": 2, "num_workers": 2}
    loader = headrace.DataLoader(Squares(N), sampler=distributed(7), **options)
    iterator = iter(loader)
    found = samples(take(iterator, 2))
    state = through_json(loader.state_dict())
    del iterator
    resumed = headrace.DataLoader(Squares(N), sampler=distributed(0), **options)
    resumed.load_state_dict(state)
    assert found + samples(resumed) == [i * i for i in distributed(7)]
    resumed.sampler.set_epoch(8)
    assert samples(resumed) == [i * i for i in distributed(8)]


def test_with_a_generator_the_epochs_after_a_resume_are_the_same_too():
    def make(workers):
        return headrace.DataLoader(Squares(N), 4, True, num_workers=workers, generator=seeded(3))

    reference = make(0)
    epochs = [lists(reference) for _ in range(3)]
    loader = make(2)
    iterator = iter(loader)
    first = [batch.tolist() for batch in take(iterator, 3)]
    state = through_json(loader.state_dict())
    del iterator
    resumed = make(0)
    resumed.load_state_dict(state)
    assert [first + lists(resumed), lists(resumed), lists(resumed)] == epochs


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])
@pytest.mark.parametrize("exhausted", [False, True], ids=["after the last batch", "after the end"])
def test_with_a_generator_the_epoch_after_a_finished_one_is_the_second(exhausted, num_workers, persistent):
    """Its order, and what its samples draw."""

    def make():
        options = {"num_workers": num_workers, "persistent_workers": persistent, "generator": seeded(3)}
        return headrace.DataLoader(Drawing(N), 4, True, **options)

    with make() as loader:
        epochs = [lists(loader) for _ in range(3)]
    with make() as loader, make() as resumed:
        iterator = iter(loader)
        take(iterator, 6)
        if exhausted:
            assert not list(iterator)
        resumed.load_state_dict(through_json(loader.state_dict()))
        if not exhausted:
            assert not list(resumed)
        assert [lists(resumed), lists(resumed)] == epochs[1:]


class Drawing(Squares):
    """Samples with a random number in them."""

    def __getitem__(self, index):
        return torch.tensor([index, int(torch.randint(1000, ()))])


class StatefulSquares(Squares):
    """A map-style dataset with a state of its own."""

    def __init__(self, n):
        super().__init__(n)
        self.phase = 0

    def state_dict(self):
        return {"phase": self.phase}

    def load_state_dict(self, state):
        self.phase = state["phase"]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stateful_map_style_dataset(num_workers):
    dataset = StatefulSquares(N)
    dataset.phase = 5
    loader = headrace.DataLoader(dataset, 4, num_workers=num_workers)
    iterator = iter(loader)
    found = samples(take(iterator, 2))
    state = through_json(loader.state_dict())
    del iterator
    other = StatefulSquares(N)
    resumed = headrace.DataLoader(other, 4, num_workers=num_workers)
    resumed.load_state_dict(state)
    assert found + samples(resumed) == [i * i for i in range(N)]
    assert other.phase == 5


STREAMS = {"plain": Numbers, "stateful dataset": StatefulNumbers, "stateful iterator": StatefulIterators}


@each_order
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("num_workers", "drop_last"), [(0, False), (0, True), (1, False), (2, True)])
@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_streams(stream, num_workers, drop_last, in_order):
    options = {"num_workers": num_workers, "in_order": in_order, "drop_last": drop_last}
    whole = lists(headrace.DataLoader(stream(29), 3, **options))
    loader = headrace.DataLoader(stream(29), 3, **options)
    iterator = iter(loader)
    found = [batch.tolist() for batch in take(iterator, 4)]
    state = through_json(loader.state_dict())
    take(iterator, 1)
    del iterator
    resumed = headrace.DataLoader(stream(29), 3, **options)
    resumed.load_state_dict(state)
    found += lists(resumed)
    assert (found if in_order else sorted(found)) == (whole if in_order else sorted(whole))
    again = lists(resumed)
    assert (again if in_order else sorted(again)) == (whole if in_order else sorted(whole))


@pytest.mark.parametrize(
    ("stream", "consumed"),
    [(stream, consumed) for stream in (Numbers, StatefulIterators, StatefulNumbers) for consumed in range(3, 7)],
)
def test_streams_that_had_ended(stream, consumed):
    """14 numbers in two streams of seven: the last batch of each is short."""
    options = {"batch_size": 3, "num_workers": 2}
    whole = [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11], [12], [13]]
    loader = headrace.DataLoader(stream(14), **options)
    iterator = iter(loader)
    found = [batch.tolist() for batch in take(iterator, consumed)]
    state = through_json(loader.state_dict())
    del iterator
    resumed = headrace.DataLoader(stream(14), **options)
    resumed.load_state_dict(state)
    assert found + lists(resumed) == whole
    assert lists(resumed) == whole


def test_a_stateful_stream_is_not_read_again():
    read = []
    loader = headrace.DataLoader(StatefulNumbers(20), 4, num_workers=0)
    iterator = iter(loader)
    take(iterator, 3)
    state = through_json(loader.state_dict())
    resumed = headrace.DataLoader(StatefulNumbers(20, read.append), 4, num_workers=0)
    resumed.load_state_dict(state)
    assert samples(resumed) == list(range(12, 20))
    assert read == list(range(12, 20))


def test_persistent_streams_resume():
    with headrace.DataLoader(Numbers(29), 3, num_workers=2, persistent_workers=True) as loader:
        whole = lists(loader)
        iterator = iter(loader)
        found = [batch.tolist() for batch in take(iterator, 4)]
        loader.load_state_dict(through_json(loader.state_dict()))
        assert found + lists(loader) == whole
        assert lists(loader) == whole


def test_errors_and_skips_are_not_delivered_again():
    for on_error in (headrace.Raise(), headrace.Skip(0.5)):
        for in_order in (True, False):
            dataset = Pairs(20, hook=Raises(partial(ValueError, "bad"), 2))
            options = {"batch_size": 4, "num_workers": 1, "in_order": in_order, "on_error": on_error}
            loader = headrace.DataLoader(dataset, **options)
            iterator = iter(loader)
            if isinstance(on_error, headrace.Raise):
                with raises(ValueError):
                    next(iterator)
            found = next(iterator)[0].tolist()
            resumed = headrace.DataLoader(dataset, **options)
            resumed.load_state_dict(through_json(loader.state_dict()))
            batches, errors = outcomes(iter(resumed))
            assert not errors
            found += [index for batch in batches for index in batch[0].tolist()]
            lost = {0, 1, 2, 3} if in_order and isinstance(on_error, headrace.Raise) else {2}
            assert sorted(found) == [index for index in range(20) if index not in lost]
            del iterator


def test_sizes_are_kept_by_the_sequential_batch_sampler():
    """The loader's own batches keep their size after a resume out of order."""
    sampler = SequentialSampler(range(N))
    loader = headrace.DataLoader(Squares(N), SIZE, sampler=sampler, num_workers=3, in_order=False)
    iterator = iter(loader)
    take(iterator, 2)
    state = through_json(loader.state_dict())
    del iterator
    resumed = headrace.DataLoader(Squares(N), SIZE, sampler=sampler, num_workers=2, in_order=False)
    resumed.load_state_dict(state)
    assert [len(batch) for batch in resumed] == [SIZE, SIZE, N - 4 * SIZE]


@pytest.mark.parametrize("persistent", [False, True])
def test_the_state_of_an_epoch_after_an_empty_state_was_loaded(persistent):
    with headrace.DataLoader(Pairs(12), batch_size=3, num_workers=1, persistent_workers=persistent) as loader:
        assert len(list(loader)) == 4
        loader.load_state_dict({})
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        assert (state["epoch"], state["yielded"]) == (0, 1)
