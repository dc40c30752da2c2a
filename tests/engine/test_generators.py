"""The three global generators: who seeded them, and their state as bytes."""

import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from headrace.engine.worker.randomness import generators
from tests.parity.support import ROOT

SEEDS = {
    "torch": lambda: torch.manual_seed(torch.initial_seed() // 2 + 1),
    "random": lambda: random.seed(7),
    "numpy": lambda: np.random.seed(8),
}


def drawn():
    return torch.rand(3).tolist(), random.random(), random.gauss(0, 1), np.random.rand(2).tolist(), np.random.randn()


class TestCaptured:
    def test_what_follows_is_the_same(self):
        drawn()  # an odd number of normal ones: both keep the second of a pair
        state = generators.captured()
        expected = drawn()
        drawn()
        generators.restore(state)
        assert drawn() == expected
        assert len(state) == generators.SIZE
        assert generators.is_valid(state)

    def test_anything_else_is_not_taken(self):
        state = generators.captured()
        for wrong in (b"", state[:-1], state + b"0", bytes(len(state)), b"\xff" * len(state)):
            assert not generators.is_valid(wrong)

    def test_asking_changes_nothing(self):
        state = generators.captured()
        generators.is_valid(state)
        assert generators.captured() == state


class TestWatch:
    @pytest.mark.parametrize("seeding", SEEDS.values(), ids=SEEDS)
    @pytest.mark.parametrize("draws", [0, 1, 2000])
    def test_seeding(self, seeding, draws):
        watch = generators.SeedWatch()
        seeding()
        for _ in range(draws):
            drawn()
        assert watch.seeded()

    @pytest.mark.parametrize("draws", [0, 1, 2000])
    def test_drawing_is_not_seeding(self, draws):
        watch = generators.SeedWatch()
        for _ in range(draws):
            drawn()
        assert not watch.seeded()


CASES = {
    "torch.rand(3); random.seed(3)": False,
    "torch.manual_seed(0)": True,
    "torch.manual_seed(-1)": True,
    "import headrace; headrace.DataLoader; torch.manual_seed(2**60)": True,
}
EACH = """
import os, random, sys, torch
for code in sys.argv[1:]:
    if not os.fork():
        exec(code)
        from headrace.engine.worker.randomness import generators
        print(generators.are_seeded(), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""


class TestAreSeeded:
    def test_a_new_process(self):
        """What was done in it, also before the first import of ours."""
        run = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", EACH, *CASES],
            check=False,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert (run.returncode, run.stderr) == (0, "")
        assert run.stdout.split() == [str(expected) for expected in CASES.values()]

    def test_a_restored_state(self, unseeded):
        own = torch.get_rng_state()
        assert not generators.are_seeded()
        torch.set_rng_state(torch.Generator().manual_seed(5).get_state())
        assert generators.are_seeded()
        torch.set_rng_state(own)
        assert not generators.are_seeded()
