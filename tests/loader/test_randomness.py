"""Random numbers that belong to the sample, whoever makes it; and the process's own, which stay the user's."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import headrace
from tests.loader.data import Draws, Once, noisy
from tests.parity.support import assert_same, draw, seeded

# torch judges the number of workers by the cores of the machine the tests happen to run on.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

N = 14
WORKER = headrace.Loading(seeding=headrace.Seeding.WORKER)


def epochs(count=1, seed=3, **options):
    """The batches of some epochs of one loader."""
    torch.manual_seed(seed)
    with headrace.DataLoader(Draws(N), 4, **options) as loader:
        return [list(loader) for _ in range(count)]


def by_index(batches):
    """index → everything else of that sample."""
    return {
        int(index): [torch.as_tensor(leaf[row]).tolist() for leaf in leaves]
        for indices, *leaves in batches
        for row, index in enumerate(indices)
    }


@pytest.mark.parametrize("num_workers", [1, 2, 3])
@pytest.mark.parametrize("shuffle", [False, True])
def test_in_order_every_number_of_workers_gives_the_same_bits(num_workers, shuffle):
    expected = epochs(2, num_workers=0, shuffle=shuffle, in_order=True)
    assert_same(epochs(2, num_workers=num_workers, shuffle=shuffle, in_order=True), expected)


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_with_a_generator_the_process_s_own_does_not_matter(num_workers):
    first, second = (epochs(2, seed, num_workers=num_workers, shuffle=True, generator=seeded(9)) for seed in (1, 2))
    assert_same(first, second)


@pytest.mark.parametrize("num_workers", [1, 3])
def test_collation_draws_the_same_too(num_workers):
    torch.manual_seed(3)
    expected = list(headrace.DataLoader(Draws(N), 4, num_workers=0, collate_fn=noisy))
    torch.manual_seed(3)
    found = list(headrace.DataLoader(Draws(N), 4, num_workers=num_workers, in_order=True, collate_fn=noisy))
    assert_same(found, expected)


def test_whatever_the_order_a_sample_is_the_same():
    expected = by_index(epochs(num_workers=0)[0])
    for num_workers in (2, 3):
        assert by_index(epochs(num_workers=num_workers, in_order=False)[0]) == expected


def test_whatever_the_batch_a_sample_is_the_same():
    torch.manual_seed(3)
    other = list(headrace.DataLoader(Draws(N), 5, num_workers=1))
    assert by_index(other) == by_index(epochs(num_workers=0)[0])


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_epochs_and_samples_differ(num_workers, persistent):
    options = {"num_workers": num_workers, "persistent_workers": persistent and num_workers > 0}
    made = [by_index(batches) for batches in epochs(3, **options)]
    draws = [tuple(map(str, sample)) for epoch in made for sample in epoch.values()]
    assert len(set(draws)) == 3 * N
    for leaf in range(4):  # of torch, random and numpy alike
        assert len({str(sample[leaf]) for epoch in made for sample in epoch.values()}) == 3 * N


def test_persistent_workers_give_the_same_bits_whatever_their_number():
    one, two = (epochs(3, num_workers=n, persistent_workers=True, in_order=True) for n in (1, 2))
    assert_same(one, two)


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (2, 3)])
def test_a_resumed_epoch_goes_on_with_the_same_numbers(before, after, in_order):
    options = {"batch_size": 4, "in_order": in_order}
    expected = by_index(epochs(num_workers=0)[0])
    torch.manual_seed(3)
    loader = headrace.DataLoader(Draws(N), num_workers=before, **options)
    iterator = iter(loader)
    found = [next(iterator) for _ in range(2)]
    torch.manual_seed(77)
    resumed = headrace.DataLoader(Draws(N), num_workers=after, **options)
    resumed.load_state_dict(loader.state_dict())
    found += list(resumed)
    assert by_index(found) == expected


def test_a_sample_that_is_made_again_is_the_same(tmp_path):
    expected = by_index(epochs(num_workers=0)[0])
    torch.manual_seed(3)
    loader = headrace.DataLoader(Dying(N, Once(tmp_path / "killed", 6)), 4, num_workers=2)
    assert by_index(loader) == expected
    assert loader.stats().restarts == 1


class Dying(Draws):
    """Dies in the middle of a sample, after it has drawn."""

    def __init__(self, n, hook):
        super().__init__(n)
        self.hook = hook

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        self.hook(index)
        return sample


def states():
    return torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_process_draws_what_is_documented_and_nothing_else(num_workers, shuffle):
    """One number for the seed, as torch draws it, and one for the sampler's own generator."""
    torch.manual_seed(5)
    draw()
    if shuffle:
        draw()
    expected = states()
    torch.manual_seed(5)
    for _ in headrace.DataLoader(Draws(N), 4, shuffle, num_workers=num_workers, collate_fn=noisy):
        pass
    assert states() == expected


@pytest.mark.parametrize("num_workers", [0, 2])
def test_with_a_generator_the_process_draws_nothing(num_workers):
    before = states()
    loader = headrace.DataLoader(Draws(N), 4, shuffle=True, num_workers=num_workers, generator=seeded(1))
    list(loader)
    assert states() == before


def test_what_the_user_draws_between_batches_is_the_user_s():
    torch.manual_seed(5)
    draw()
    expected = [torch.rand(()).item() for _ in range(4)]
    torch.manual_seed(5)
    found = [torch.rand(()).item() for _ in headrace.DataLoader(Draws(16), 4, num_workers=0)]
    assert found == expected


def test_the_generators_are_given_back_when_a_sample_fails():
    loader = headrace.DataLoader(Fails(), 1, num_workers=0)
    iterator = iter(loader)
    before = states()
    with pytest.raises(ValueError, match="bad"):
        next(iterator)
    assert states() == before


class Fails(Draws):
    def __init__(self):
        super().__init__(2)

    def __getitem__(self, index):
        super().__getitem__(index)
        raise ValueError("bad")


class TestWorkerSeeding:
    @pytest.mark.parametrize("num_workers", [0, 1])
    @pytest.mark.parametrize("count", [1, 2])
    def test_as_torch(self, num_workers, count):
        made = []
        for make in (TorchDataLoader, lambda *a, **k: headrace.DataLoader(*a, **k, loading=WORKER)):
            torch.manual_seed(3)
            random.seed(3)
            np.random.seed(3)
            loader = make(Draws(N), 4, num_workers=num_workers)
            made.append([list(loader) for _ in range(count)])
        assert_same(made[1], made[0])

    def test_without_workers_it_draws_from_the_process(self):
        before = states()
        list(headrace.DataLoader(Draws(N), 4, num_workers=0, loading=WORKER))
        after = states()
        assert all(left != right for left, right in zip(before, after, strict=True))

    def test_with_workers_it_does_not(self):
        torch.manual_seed(5)
        draw()
        expected = states()
        torch.manual_seed(5)
        list(headrace.DataLoader(Draws(N), 4, num_workers=1, loading=WORKER))
        assert states() == expected


def test_seeds_of_any_index():
    """Indices need not be numbers: equal ones get equal draws in every process."""
    keys = ["a", ("b", 1), 2**70, -3, None]
    made = []
    for num_workers in (0, 1, 2):
        torch.manual_seed(3)
        loader = headrace.DataLoader(Keyed(), 2, sampler=keys, num_workers=num_workers, collate_fn=list)
        made.append([sample for batch in loader for sample in batch])
    assert made[0] == made[1] == made[2]
    assert len({value for _, value in made[0]}) == len(keys)


class Keyed:
    def __getitem__(self, key):
        return key, random.random()


KEYS = {
    "tensors": lambda: torch.arange(N),
    "arrays": lambda: np.arange(N),
    "bytes": lambda: torch.arange(N, dtype=torch.uint8),
}


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sampler_of_tensors_or_arrays_gives_the_samples_of_the_same_numbers(keys, num_workers):
    expected = by_index(epochs(num_workers=0)[0])
    assert by_index(epochs(num_workers=num_workers, in_order=True, sampler=keys())[0]) == expected
