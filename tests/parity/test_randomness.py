"""Contract section 6: which random numbers are drawn, in which order, and how workers are seeded."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import RandomSampler

from tests.parity.datasets import (
    Calling,
    FirstDraws,
    Held,
    Squares,
    augment,
    identity,
    torch_random,
    worker_of,
)
from tests.parity.support import draw, samples, seeded, wait_until

WORKERS = pytest.mark.parametrize("num_workers", [0, 1, 2])


@WORKERS
def test_iterator_draws_one_number_from_generator(loader_class, num_workers):
    generator, twin, default = seeded(1), seeded(1), torch.get_rng_state()
    loader = loader_class(Squares(4), num_workers=num_workers, generator=generator)
    for _ in range(2):
        list(loader)
        draw(twin)
        assert torch.equal(generator.get_state(), twin.get_state())
    assert torch.equal(torch.get_rng_state(), default)


@WORKERS
def test_iterator_draws_one_number_from_default(loader_class, num_workers):
    loader = loader_class(Squares(4), num_workers=num_workers)
    torch.manual_seed(8)
    list(loader)
    after = torch.get_rng_state()
    torch.manual_seed(8)
    draw()
    assert torch.equal(torch.get_rng_state(), after)


@WORKERS
def test_order_with_generator(loader_class, num_workers):
    loader = loader_class(range(12), batch_size=5, shuffle=True, generator=seeded(3), num_workers=num_workers)
    twin = seeded(3)
    reference = RandomSampler(range(12), generator=twin)
    for _ in range(3):
        draw(twin)
        assert samples(loader) == list(reference)


def test_first_order_is_randperm_after_base_seed(loader_class):
    twin = seeded(3)
    draw(twin)
    expected = torch.randperm(12, generator=twin).tolist()
    assert samples(loader_class(range(12), shuffle=True, generator=seeded(3), num_workers=0)) == expected


@WORKERS
def test_shuffle_draws_two_numbers_from_default(loader_class, num_workers):
    loader = loader_class(range(12), batch_size=5, shuffle=True, num_workers=num_workers, in_order=True)
    torch.manual_seed(6)
    orders = [samples(loader) for _ in range(2)]
    after = torch.get_rng_state()
    torch.manual_seed(6)
    for order in orders:
        draw()
        assert order == torch.randperm(12, generator=seeded(draw())).tolist()
    assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_seeds_of_workers(make, num_workers, tmp_path):
    base = draw(seeded(21))
    loader = make(
        Squares(4), num_workers=num_workers, generator=seeded(21), worker_init_fn=FirstDraws(tmp_path),
        persistent_workers=True,
    )  # fmt: skip
    list(loader)
    assert wait_until(lambda: all((tmp_path / str(worker)).exists() for worker in range(num_workers)))
    for worker in range(num_workers):
        seed, initial, python, first, numpy = torch.load(tmp_path / str(worker), weights_only=True)
        assert seed == initial == base + worker
        assert python == random.Random(seed).random()
        assert first == torch.rand((), generator=seeded(seed)).item()
        sequence = np.random.SeedSequence([worker, base & 0xFFFFFFFF, base >> 32, 0])
        expected = np.random.RandomState(sequence.generate_state(4))
        assert numpy == expected.get_state()[1].tolist()


def test_stream_of_one_worker(make):
    drawn = list(make(Calling(torch_random, 5), batch_size=None, num_workers=1, generator=seeded(9)))
    stream = seeded(draw(seeded(9)))
    assert drawn == [torch.rand((), dtype=torch.float64, generator=stream).item() for _ in range(5)]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_worker_info_seed(loader_class, num_workers):
    base = draw(seeded(13))
    loader = loader_class(Calling(worker_of, 8), batch_size=None, num_workers=num_workers, generator=seeded(13))
    for worker, _, seed in loader:
        assert seed == base + worker


@pytest.mark.parametrize("with_generator", [False, True])
def test_order_is_the_same_for_any_number_of_workers(loader_class, with_generator):
    def epochs(num_workers: int) -> list[list[int]]:
        torch.manual_seed(17)
        generator = seeded(17) if with_generator else None
        loader = loader_class(
            range(15), batch_size=4, shuffle=True, generator=generator, num_workers=num_workers, in_order=True
        )
        return [samples(loader) for _ in range(2)]

    assert epochs(0) == epochs(1) == epochs(2)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_augmentations_repeat_with_the_seed_and_differ_between_epochs(loader_class, num_workers):
    def epochs() -> list[list]:
        torch.manual_seed(19)
        loader = loader_class(
            Calling(augment, 6), batch_size=2, num_workers=num_workers, in_order=True, collate_fn=identity
        )
        return [[sample for batch in loader for sample in batch] for _ in range(2)]

    first, second = epochs()
    assert epochs() == [first, second]
    for a, b in zip(first, second, strict=True):
        assert a[0] == b[0]
        assert all(x != y for x, y in zip(a[1:], b[1:], strict=True))


def test_new_base_seed_every_epoch(loader_class):
    loader = loader_class(Calling(worker_of, 4), batch_size=None, num_workers=1)
    assert len({seed for _ in range(3) for _, _, seed in loader}) == 3


def test_workers_do_not_disturb_the_main_generators(loader_class):
    random.seed(1)
    np.random.seed(1)
    states = random.getstate(), np.random.get_state()[1].tolist()
    list(loader_class(Calling(augment), num_workers=1))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states


def test_generators_held_by_the_dataset_are_copied(loader_class):
    loader = loader_class(Held(), num_workers=1)
    first = samples(loader)
    assert first == np.random.default_rng(3).random(3).tolist()
    assert samples(loader) == first
