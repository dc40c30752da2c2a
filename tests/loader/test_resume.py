"""Going on as users do: after errors, before the first batch, with samplers of one's own, in two loops at once."""

import json
import random

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler, RandomSampler, Sampler, SubsetRandomSampler, WeightedRandomSampler

import headrace
from tests.loader.data import Draws, Raises, StatefulNumbers
from tests.loader.test_state import StatefulSampler, StatefulSquares
from tests.parity.datasets import Squares
from tests.parity.support import assert_same, draw, lists, raises, samples, seeded

N = 23

# torch judges the number of workers by the cores of the machine the tests happen to run on.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

each_way = pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])


def through_json(state):
    return json.loads(json.dumps(state))


def take(iterator, count):
    return [next(iterator) for _ in range(count)]


class Breaks(Squares):
    """Cannot be read while it is broken."""

    broken = False

    def __getitem__(self, index):
        if self.broken:
            raise OSError("not now")
        return super().__getitem__(index)


class TestStaysLoaded:
    """Until an epoch has really begun from it."""

    def state(self, **options):
        loader = headrace.DataLoader(Squares(N), 4, num_workers=0, **options)
        take(iter(loader), 2)
        return through_json(loader.state_dict())

    @each_way
    def test_when_the_first_batch_fails(self, num_workers, persistent):
        state, dataset = self.state(), Breaks(N)
        with headrace.DataLoader(
            dataset, 4, num_workers=num_workers, persistent_workers=persistent, in_order=True
        ) as loader:
            loader.load_state_dict(state)
            dataset.broken = True
            with raises(OSError):
                next(iter(loader))
            assert loader.state_dict() == state
            loader.close()
            dataset.broken = False
            assert samples(loader) == [i * i for i in range(8, N)]
            assert samples(loader) == [i * i for i in range(N)]

    def test_when_the_sampler_fails(self):
        class Fails:
            fails = False

            def __iter__(self):
                if self.fails:
                    raise OSError("not now")
                return iter(range(N))

        sampler = Fails()
        state = self.state(sampler=sampler)
        loader = headrace.DataLoader(Squares(N), 4, sampler=sampler, num_workers=0)
        loader.load_state_dict(state)
        sampler.fails = True
        for _ in range(2):
            with raises(OSError):
                iter(loader)
        sampler.fails = False
        assert samples(loader) == [i * i for i in range(8, N)]

    def test_when_workers_cannot_be_started(self, monkeypatch):
        from headrace.engine.processes.worker_pool import Pool

        loader = headrace.DataLoader(Squares(N), 4, num_workers=2)
        loader.load_state_dict(self.state())
        with monkeypatch.context() as patched:
            patched.setattr(Pool, "start", lambda *_: (_ for _ in ()).throw(OSError("no processes")))
            with raises(OSError):
                iter(loader)
        assert samples(loader) == [i * i for i in range(8, N)]

    @each_way
    def test_when_an_iterator_was_made_and_dropped(self, num_workers, persistent):
        with headrace.DataLoader(Squares(N), 4, num_workers=num_workers, persistent_workers=persistent) as loader:
            loader.load_state_dict(self.state())
            iter(loader)
            assert samples(loader) == [i * i for i in range(8, N)]
            assert samples(loader) == [i * i for i in range(N)]

    def test_not_longer(self):
        loader = headrace.DataLoader(Squares(N), 4, num_workers=0)
        loader.load_state_dict(self.state())
        take(iter(loader), 1)
        assert samples(loader) == [i * i for i in range(N)]

    def test_another_one_loaded_meanwhile_is_not_used_up(self):
        loader = headrace.DataLoader(Squares(N), 4, num_workers=0)
        loader.load_state_dict(self.state())
        iterator = iter(loader)
        loader.load_state_dict(self.state())
        take(iterator, 1)
        assert samples(loader) == [i * i for i in range(8, N)]

    def test_the_epoch_s_number_is_that_of_the_state(self):
        """Seeds of samples depend on it."""
        torch.manual_seed(3)
        loader = headrace.DataLoader(Draws(N), 4, num_workers=0)
        list(loader)
        iterator = iter(loader)
        take(iterator, 2)
        state = through_json(loader.state_dict())
        expected = list(iterator)
        resumed = headrace.DataLoader(Draws(N), 4, num_workers=0)
        resumed.load_state_dict(state)
        iter(resumed)
        assert_same(list(resumed), expected)


class Shuffled(Sampler):
    """One's own, from a generator of one's choice, drawn when asked for the first index or for the iterator."""

    def __init__(self, draw, *, at_once):
        self.draw, self.at_once = draw, at_once

    def __len__(self):
        return N

    def __iter__(self):
        return iter(self.draw()) if self.at_once else self.drawn()

    def drawn(self):
        yield from self.draw()


def by_random():
    order = list(range(N))
    random.shuffle(order)
    return order


DRAWS = {
    "random": by_random,
    "numpy": lambda: np.random.permutation(N).tolist(),
    "numpy's own integers": lambda: list(np.random.permutation(N)),
    "torch": lambda: torch.randperm(N).tolist(),
    "tensors": lambda: list(torch.randperm(N)),
    "pairs": lambda: [(index, "a") for index in torch.randperm(N).tolist()],
}


class Pairs(Squares):
    def __getitem__(self, index):
        return super().__getitem__(int(index[0] if isinstance(index, tuple) else index))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("order", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("taken", [0, 2])
def test_samplers_of_one_s_own(order, at_once, size, taken):
    """They draw the same again, although they know nothing of states; and indices keep their types through JSON."""

    def make(workers):
        return headrace.DataLoader(Pairs(N), size, sampler=Shuffled(order, at_once=at_once), num_workers=workers)

    for before, after in ((1, 0), (0, 1)) if taken else ((0, 0),):
        loader = make(before)
        iterator = iter(loader)
        take(iterator, taken)
        state = through_json(loader.state_dict())
        if taken == 0:
            numbers()
        expected = flat(iterator)
        seed_all(99)
        resumed = make(after)
        resumed.load_state_dict(state)
        assert flat(resumed) == expected
        found = numbers()
        seed_all(99)
        draw()  # the loader's seed
        assert found == numbers(), "the user's numbers are the user's"


def flat(batches):
    return [int(value) for batch in batches for value in torch.atleast_1d(torch.as_tensor(batch))]


def numbers():
    return random.random(), np.random.rand(), torch.rand(1).item()


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


BEFORE = {
    "shuffle": lambda: {"shuffle": True},
    "generator": lambda: {"shuffle": True, "generator": seeded(3)},
    "replacement": lambda: {"sampler": RandomSampler(range(N), replacement=True)},
    "weighted": lambda: {"sampler": WeightedRandomSampler([1.0] * N, N)},
    "subset": lambda: {"sampler": SubsetRandomSampler(range(0, N, 2))},
    "stateful": lambda: {"sampler": StatefulSampler(N)},
    "distributed": lambda: {"sampler": DistributedSampler(range(N), 2, 0)},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", BEFORE.values(), ids=BEFORE)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("drawn", [0, 3])
def test_before_the_first_batch(options, num_workers, drawn):
    """The same order again, whatever was drawn from the generator in between."""
    loader = headrace.DataLoader(Squares(N), 4, num_workers=num_workers, in_order=True, **options())
    iterator = iter(loader)
    state = through_json(loader.state_dict())
    torch.rand(drawn)
    expected = lists(iterator)
    torch.manual_seed(77)
    resumed = headrace.DataLoader(Squares(N), 4, num_workers=0, **options())
    resumed.load_state_dict(state)
    assert lists(resumed) == expected


def test_asking_for_the_state_does_not_change_the_numbers():
    found = []
    for asks in (False, True):
        torch.manual_seed(5)
        loader = headrace.DataLoader(Draws(N), 4, shuffle=True, num_workers=0)
        batches = []
        for _ in range(2):
            iterator = iter(loader)
            for _ in range(6):
                if asks:
                    loader.state_dict()
                batches.append(next(iterator))
        found.append((batches, torch.rand(3)))
    assert_same(found[0], found[1])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_two_iterators_at_once(num_workers):
    loader = headrace.DataLoader(Squares(N), 4, shuffle=True, num_workers=num_workers)
    first, second = iter(loader), iter(loader)
    found = samples(take(first, 2)), samples(take(second, 3))
    state = through_json(loader.state_dict())
    assert sorted(found[0] + samples(first)) == [i * i for i in range(N)]
    rest = samples(second)
    assert sorted(found[1] + rest) == [i * i for i in range(N)]
    resumed = headrace.DataLoader(Squares(N), 4, shuffle=True, num_workers=0)
    resumed.load_state_dict(state)
    assert sorted(samples(resumed)) == sorted(rest), "the state is the newest iterator's"


@each_way
def test_after_an_exception_in_the_loop(num_workers, persistent):
    found = []
    with headrace.DataLoader(
        Squares(N), 4, shuffle=True, num_workers=num_workers, persistent_workers=persistent
    ) as loader:
        with raises(ZeroDivisionError):
            for batch in loader:
                found += batch.tolist()
                if len(found) > 10:
                    raise ZeroDivisionError
        loader.load_state_dict(through_json(loader.state_dict()))
        found += samples(loader)
        assert sorted(found) == [i * i for i in range(N)]
        assert sorted(samples(loader)) == [i * i for i in range(N)]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_training_loop_with_set_epoch(persistent):
    """Stopped in the middle of any epoch and started again, as a script does it."""
    options = {"num_workers": 2, "persistent_workers": persistent}

    def make():
        sampler = DistributedSampler(range(N), 2, 1, seed=4)
        return sampler, headrace.DataLoader(Squares(N), 4, sampler=sampler, **options)

    whole = []
    sampler, loader = make()
    with loader:
        for epoch in range(3):
            sampler.set_epoch(epoch)
            whole += lists(loader)
    found, begin, state = [], 0, {}
    for stop in (2, 4, 7, 100):
        sampler, loader = make()
        with loader:
            loader.load_state_dict(state)
            for epoch in range(begin, 3):
                sampler.set_epoch(epoch)
                for batch in loader:
                    found.append(batch.tolist())
                    if len(found) == stop:
                        break
                if len(found) == stop:
                    begin, state = epoch, through_json(loader.state_dict())
                    break
    assert found == whole


def test_persistent_workers_see_a_dataset_that_was_loaded():
    class Phase(StatefulSquares):
        def __getitem__(self, index):
            return self.phase

    def loader():
        return headrace.DataLoader(Phase(8), 2, num_workers=1, persistent_workers=True)

    with loader() as first:
        first.dataset.phase = 5
        iterator = iter(first)
        take(iterator, 1)
        state = through_json(first.state_dict())
    with loader() as second:
        assert samples(second) == [0] * 8
        second.load_state_dict(state)
        assert samples(second) == [5] * 6


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("on_error", [headrace.Raise(), headrace.Skip(0.9)])
def test_a_stream_with_errors(num_workers, on_error):
    """What came, came; the failed batch is not tried again."""
    from tests.loader.data import FailsOnce

    def make():
        return headrace.DataLoader(FailsOnce(20, at=5), 4, num_workers=num_workers, on_error=on_error)

    def through(iterator):
        found = []
        while True:
            try:
                found.append(next(iterator).tolist())
            except ValueError:
                found.append(None)
            except StopIteration:
                return found

    whole = through(iter(make()))
    for count in range(len(whole)):
        loader = make()
        iterator = iter(loader)
        for expected in whole[:count]:
            if expected is None:
                with raises(ValueError):
                    next(iterator)
            else:
                assert next(iterator).tolist() == expected
        resumed = make()
        resumed.load_state_dict(through_json(loader.state_dict()))
        assert through(iter(resumed)) == whole[count:]
        del iterator


def test_a_stateful_stream_does_not_try_what_failed_again():
    def make(fails):
        hook = Raises(ValueError, 5) if fails else (lambda _: None)
        return headrace.DataLoader(Lasting(20, hook), 4, num_workers=1)

    loader = make(fails=True)
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1, 2, 3]
    with raises(ValueError):
        next(iterator)
    state = through_json(loader.state_dict())
    del iterator
    resumed = make(fails=False)
    resumed.load_state_dict(state)
    assert next(iter(resumed)).tolist() == [6, 7, 8, 9]


class Lasting(StatefulNumbers):
    """Its iterator goes on after an error; it is one itself."""

    def __iter__(self):
        self.position = 0
        return self

    def __next__(self):
        if self.position >= self.n:
            raise StopIteration
        self.position += 1
        self.hook(self.position - 1)
        return self.position - 1
