"""Who asked for reproducibility gets it: seeded runs, and workers that the user seeded."""

import json
import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import headrace
from tests import programs
from tests.loader.data import Draws, noisy
from tests.parity.datasets import Squares
from tests.parity.support import assert_same, lists

# torch judges the number of workers by the cores of the machine the tests happen to run on.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

PROGRAM = """
import json, sys, time, torch, headrace

class Uneven(torch.utils.data.Dataset):
    def __len__(self):
        return 60
    def __getitem__(self, index):
        time.sleep(0.01 * (time.monotonic_ns() % 3))
        return index, torch.rand(())

if __name__ == "__main__":
    for persistent in (False, True):
        torch.manual_seed(3)
        with headrace.DataLoader(Uneven(), 4, shuffle=True, num_workers=3, persistent_workers=persistent) as loader:
            print(json.dumps([[part.tolist() for part in batch] for _ in range(2) for batch in loader]))
"""


def test_a_seeded_script_run_twice(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    runs = [programs.run(script, tmp_path, strict=False) for _ in range(2)]
    assert [run.returncode for run in runs] == [0, 0], runs
    assert runs[0].stdout == runs[1].stdout
    for batches in map(json.loads, runs[0].stdout.splitlines()):
        assert sorted(index for batch in batches[:15] for index in batch[0]) == list(range(60))


def test_a_seeded_process_keeps_the_order_of_the_sampler():
    torch.manual_seed(1)
    expected = lists(TorchDataLoader(Squares(40), 4, shuffle=True))
    torch.manual_seed(1)
    assert lists(headrace.DataLoader(Squares(40), 4, shuffle=True, num_workers=2)) == expected


def test_in_order_false_is_still_completion_order(unseeded):
    torch.manual_seed(1)
    loader = headrace.DataLoader(Squares(4), shuffle=True, num_workers=2, in_order=False)
    assert not loader._settings().in_order
    assert headrace.DataLoader(Squares(4), shuffle=True)._settings().in_order


def seeds(worker):
    torch.manual_seed(worker + 5)
    random.seed(worker + 6)
    np.random.seed(worker + 7)


def seeds_numpy(worker):
    np.random.seed(torch.initial_seed() % 2**32)


def draws(worker):
    torch.rand(3), random.random(), np.random.rand()


def epochs(make, **options):
    torch.manual_seed(3)
    loader = make(Draws(14), 4, **options)
    return [list(loader) for _ in range(2)]


@pytest.mark.parametrize("collate_fn", [None, noisy])
@pytest.mark.parametrize("init", [seeds, seeds_numpy])
def test_a_worker_that_the_user_seeds_draws_as_torch_s(init, collate_fn):
    options = {"num_workers": 1, "worker_init_fn": init, "collate_fn": collate_fn}
    assert_same(epochs(headrace.DataLoader, **options), epochs(TorchDataLoader, **options))


def test_every_epoch_of_seeded_workers_is_alike():
    """That is what such a function does to torch's loader too, where workers do not persist."""
    first, second = epochs(headrace.DataLoader, num_workers=1, worker_init_fn=seeds)
    assert_same(first, second)


def test_a_worker_that_only_draws_is_not_seeded():
    options = {"num_workers": 1, "in_order": True}
    assert_same(
        epochs(headrace.DataLoader, worker_init_fn=draws, **options),
        epochs(headrace.DataLoader, **options),
    )
