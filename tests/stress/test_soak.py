"""Kill, mix and nest until a race shows itself."""

import random
from typing import Any

import pytest
import torch

import headrace
from tests.loader.data import Numbers, Once, StatefulNumbers
from tests.loader.support import MODES, Killer
from tests.parity.datasets import Squares
from tests.parity.support import samples, wait_until
from tests.selection import scaled

pytestmark = [
    pytest.mark.stress,
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]

N = 100


@pytest.mark.sampled
@pytest.mark.parametrize("in_order", [True, False], ids=["in order", "as ready"])
@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_with_random_deaths(in_order, persistent, workers):
    """12 epochs over all ways of loading; 48 with the other cases."""
    for seed in range(1 if persistent else 2):
        for mode in MODES.values():
            with mode.loader(N, seconds=0.0002, in_order=in_order, persistent_workers=persistent) as loader:
                killed = 0
                for epoch in range(2 if persistent else 1):
                    rows = []
                    with Killer(workers, times=3, seed=seed + epoch) as killer:
                        for batch in loader:
                            rows += mode.rows(batch)
                            killer.progress([index for index, _ in rows])
                    mode.check(rows, list(range(N)), ordered=in_order)
                    killed += killer.killed
                assert loader.stats().restarts <= killed


def test_a_resume_after_every_death(tmp_path):
    """Orders, workers and ways of loading change from one part of the epoch to the next."""
    chosen = random.Random(4)
    for mode in MODES.values():
        rows, state, parts = [], {}, 0
        while len(rows) < N:
            hook = Once(tmp_path / f"{id(mode)}-{parts}", chosen.randrange(N))
            loader = mode.loader(N, hook, in_order=chosen.random() < 0.5, num_workers=chosen.randint(1, 3))
            loader.load_state_dict(state)
            iterator = iter(loader)
            for _ in range(chosen.randint(1, 6)):
                if len(rows) < N:
                    rows += [(index, tensor.clone()) for index, tensor in mode.rows(next(iterator))]
            state = loader.state_dict()
            iterator.close()
            parts += 1
        mode.check(rows, list(range(N)), ordered=False)


@pytest.mark.scaled
def test_streams_with_random_deaths(workers):
    for stream, repeats in ((Numbers, True), (StatefulNumbers, False)):
        for in_order in (True, False):
            for seed in range(scaled(2, 20)):
                dataset = stream(240)
                dataset.seconds = 0.0002
                found: list[int] = []
                loading = headrace.Loading(repeats=repeats)
                loader = headrace.DataLoader(dataset, 4, num_workers=2, in_order=in_order, loading=loading)
                with Killer(workers, times=3, seed=seed) as killer:
                    for batch in loader:
                        found += batch.tolist()
                        killer.progress(found)
                assert sorted(found) == list(range(240))


@pytest.mark.parametrize("count", [8, 32])
def test_many_loaders_at_once(count):
    mode = MODES["default collate"]
    loaders = [mode.loader(N, in_order=number % 2 == 0, num_workers=1) for number in range(count)]
    iterators: list[Any] = []
    rows: list[list] = [[] for _ in loaders]
    turn = random.Random(7)
    try:
        iterators.extend(map(iter, loaders))
        while running := [number for number, found in enumerate(rows) if len(found) < N]:
            number = turn.choice(running)
            rows[number] += mode.rows(next(iterators[number]))
        for found, loader in zip(rows, loaders, strict=True):
            mode.check(found, list(range(N)), ordered=loader.in_order)
    finally:
        for iterator in iterators:
            iterator.close()
        for loader in loaders:
            loader.close()
        rows.clear()


@pytest.mark.scaled
@pytest.mark.parametrize("in_order", [True, False], ids=["in order", "as ready"])
def test_nested_loops(in_order, workers):
    """One loader iterated inside its own loop, and another inside that."""
    outer = headrace.DataLoader(Squares(12), 4, num_workers=2, in_order=in_order)
    inner = headrace.DataLoader(Squares(8), 4, num_workers=1, in_order=in_order)
    pairs = 0
    rounds = scaled(2, 8)
    for _ in range(rounds):
        for _ in outer:
            for batch in outer:
                assert len(batch) == 4
                assert sorted(samples(inner)) == [i * i for i in range(8)]
                pairs += 1
    assert pairs == rounds * 3 * 3
    assert wait_until(lambda: not workers())


def test_loops_left_early_over_and_over(workers):
    loader = headrace.DataLoader(Squares(400), 4, True, num_workers=2)
    for wanted in range(30):
        seen: set[int] = set()
        for number, batch in enumerate(loader):
            seen |= set(batch.tolist())
            if number == wanted % 5:
                break
        assert len(seen) == 4 * (wanted % 5 + 1)
        del batch
    assert wait_until(lambda: not workers())
    assert loader.stats().slab_bytes < 100 * 64


def test_a_lot_of_small_batches_kept_and_dropped():
    """Batches of three epochs are dropped in random order while others arrive."""
    loader = headrace.DataLoader(Squares(3000), 3, num_workers=2, loading=headrace.Loading(memory_limit=64 * 40))
    held: list[tuple[torch.Tensor, list[int]]] = []
    drop = random.Random(1)
    for _ in range(3):
        for batch in loader:
            held.append((batch, batch.tolist()))
            while len(held) > 30:
                tensor, values = held.pop(drop.randrange(len(held)))
                assert tensor.tolist() == values
                del tensor
            del batch
    for tensor, values in held:
        assert tensor.tolist() == values
