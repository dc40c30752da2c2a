"""The core runs where a feature's folder is not there: nothing of it is imported before a loader asks for it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import headrace

PACKAGE = Path(headrace.__file__).parent
FEATURES = (
    *("blocks", "cache", "caching", "devices", "fetching", "observing", "ondevice", "remote", "sampling", "staging"),
    *("store", "trace", "cli", "running", "testing"),
)
PROGRAM = """
import torch
from torch.utils.data import Dataset, IterableDataset
from headrace.core.options import Scheduling, Skip
from headrace.loader import DataLoader

class Numbers(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index == 13:
            raise ValueError(index)
        return torch.tensor([index])

class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(24))

def numbers(batches):
    return sorted(torch.cat([batch.flatten() for batch in batches]).tolist())

if __name__ == "__main__":
    every = [number for number in range(64) if number != 13]
    for workers in (0, 2):
        options = dict(num_workers=workers, shuffle=True, on_error=Skip(max_fraction=0.1))
        with DataLoader(Numbers(), 8, **options, scheduling=Scheduling(story=True)) as loader:
            iterator = iter(loader)
            first = [next(iterator), next(iterator)]
            state = loader.state_dict()
            assert loader.stats().batches == 2
        with DataLoader(Numbers(), 8, **options) as loader:
            loader.load_state_dict(state)
            assert numbers([*first, *loader]) == every
            assert numbers(loader) == every
        with DataLoader(Stream(), 4, num_workers=workers) as loader:
            assert numbers(loader) == sorted(max(1, workers) * list(range(24)))
    print("exact")
"""


@pytest.fixture
def core(tmp_path: Path) -> Path:
    """A folder with a copy of the package that has its core alone."""
    shutil.copytree(PACKAGE, tmp_path / "headrace", ignore=shutil.ignore_patterns("__pycache__", *FEATURES))
    return tmp_path


def test_epochs_are_exact_without_any_feature(core: Path) -> None:
    (core / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-P", core / "program.py"],
        env={"PYTHONPATH": str(core)}, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "exact\n"
