"""Programs made to have one fault each: what ``headrace doctor`` would say of it is that fault, and what mends it.

They run with torch's loader, as doctor's do, and their traces are judged as it judges them. Faults are made of waiting
or computing for a known time, so a machine that is kept busy by others may hide them: for `make soak`.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

import headrace
from headrace.trace.analysis.advice import COMPUTING
from headrace.trace.calibrate import calibrate
from headrace.trace.reader import read
from headrace.trace.report import report

pytestmark = [pytest.mark.soak, pytest.mark.filterwarnings("ignore:This DataLoader will create")]
CORES = len(os.sched_getaffinity(0))


def waits(seconds: float) -> None:
    time.sleep(seconds)


def computes(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


class Samples(Dataset):
    """``work(index, is_first)`` is done for each; ``is_first``: the first one in its process."""

    def __init__(self, work: Callable[[int, bool], None], count: int = 200) -> None:
        self.work, self.count, self._is_first = work, count, True

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        self.work(index, self._is_first)
        self._is_first = False
        return torch.tensor(index)


def slowly_collated(samples: list[torch.Tensor]) -> torch.Tensor:
    computes(0.03)
    return torch.stack(samples)


def far_away(monkeypatch: Any) -> None:
    """The device ``meta`` is reached over a slow bus from now on. A real one is not needed to be waited for."""
    reach: Any = torch.Tensor.to

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        there: torch.Tensor = reach(self, *args, **kwargs)
        if there.device.type == "meta":
            waits(0.1)
        return there

    monkeypatch.setattr(torch.Tensor, "to", to)


def begins_slowly(_: int) -> None:
    waits(0.6)


@dataclass(frozen=True)
class Fault:
    """A program, and what is to be said of it."""

    dataset: Any
    says: str
    bottleneck: str
    options: dict[str, Any] = field(default_factory=dict)
    step: Callable[[int], None] = lambda number: None
    epochs: int = 1
    computes: bool = False


FAULTS = {
    "no workers": Fault(
        Samples(lambda index, _: waits(0.004)), "num_workers=None", "input", {"num_workers": 0}
    ),
    "too few workers": Fault(
        Samples(lambda index, _: waits(0.01)), "num_workers=2", "input", {"num_workers": 1}
    ),
    "too many workers": Fault(
        Samples(lambda index, _: waits(0.001)), "num_workers=1", "trainer", {"num_workers": 4}, lambda _: waits(0.05)
    ),
    "cores": Fault(
        Samples(lambda index, _: computes(0.008)), "operation 'sample'", "input", {"num_workers": CORES}, computes=True
    ),
    "the same work again": Fault(
        Samples(lambda index, _: computes(0.008)), "cache", "input", {"num_workers": CORES, "persistent_workers": True},
        epochs=2, computes=True,
    ),
    "collation": Fault(
        Samples(lambda index, _: None), "operation 'collate'", "input",
        {"num_workers": CORES, "collate_fn": slowly_collated}, computes=True,
    ),
    "bursts": Fault(
        Samples(lambda index, _: waits(0.005), 400), "prefetch_factor=4", "in turn",
        {"num_workers": 2}, lambda number: waits(0.4 if number % 8 == 0 else 0.0),
    ),
    "batches in order": Fault(
        Samples(lambda index, _: waits(0.1 if index % 32 == 0 else 0.002), 400), "in_order=False", "input",
        {"num_workers": 4}, lambda _: waits(0.005),
    ),
    "uneven batches": Fault(
        Samples(lambda index, _: computes(0.03 if index % 16 < 8 else 0.001), 160), "headrace.DataLoader", "input",
        {"num_workers": 2},
    ),
    "workers that start slowly": Fault(
        Samples(lambda index, _: waits(0.001), 80), "multiprocessing_context='fork'", "start-up",
        {"num_workers": 2, "worker_init_fn": begins_slowly},
    ),
    "new workers every epoch": Fault(
        Samples(lambda index, _: waits(0.001), 40), "persistent_workers=True", "start-up",
        {"num_workers": 2, "worker_init_fn": begins_slowly}, epochs=4,
    ),
    "a store far away": Fault(
        Samples(lambda index, first: waits(1.0 if first else 0.001), 80), "persistent_workers=True", "start-up",
        {"num_workers": 2},
    ),
    "a large first batch": Fault(
        Samples(lambda index, _: waits(0.02), 100), "batch_size", "start-up", {"num_workers": 4, "batch_size": 25}
    ),
}  # fmt: skip


def said_of(loader: Any, trace: Any, *, step: Callable[[int], None], epochs: int) -> Any:
    """What the report of a program's trace says of its loader."""
    number = 0
    for _ in range(epochs):
        for _ in loader:
            step(number)
            number += 1
    (found,) = report(read(trace), calibrate(), CORES).loaders
    return found


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_told_with_what_mends_it(tmp_path, fault):
    made = FAULTS[fault]
    loader = DataLoader(made.dataset, **{"batch_size": 8} | made.options)
    trace = tmp_path / "torch.trace"
    found = said_of(headrace.traced(loader, trace), trace, step=made.step, epochs=made.epochs)
    if made.computes and found.figures.cpu < COMPUTING:
        pytest.skip("other programs have the cores")
    assert found.verdict.bottleneck == made.bottleneck, found
    assert made.says in [advice.setting for advice in found.advice], found
    if fault != "workers that start slowly":
        assert all("workers' start" not in advice.text for advice in found.advice)


def test_pictures_that_a_device_could_decode(tmp_path):
    (tmp_path / "class").mkdir()
    noise = np.random.default_rng(0).integers(0, 255, (500, 500, 3), np.uint8)
    for number in range(160):
        Image.fromarray(noise).save(tmp_path / "class" / f"{number}.jpg")
    change = transforms.Compose([transforms.RandomResizedCrop(64), transforms.ToTensor()])
    dataset = torchvision.datasets.ImageFolder(tmp_path, change)
    loader = DataLoader(dataset, 4, num_workers=CORES)
    trace = tmp_path / "torch.trace"
    found = said_of(headrace.traced(loader, trace), trace, step=lambda _: waits(0.001), epochs=1)
    if found.figures.cpu < COMPUTING:
        pytest.skip("other programs have the cores")
    assert "device='cuda', on_device=True" in [advice.setting for advice in found.advice], found


def test_copies_to_a_device_that_are_waited_for(tmp_path, monkeypatch):
    far_away(monkeypatch)
    trace = tmp_path / "torch.trace"
    for batch in headrace.traced(DataLoader(Samples(lambda index, _: None, 96), 8, num_workers=1), trace):
        batch.to("meta")
    (found,) = report(read(trace), calibrate(), CORES).loaders
    assert found.verdict.bottleneck == "transfer", found
    assert "pin_memory=True, non_blocking=True" in [advice.setting for advice in found.advice], found


def test_workers_that_die(tmp_path):
    flag = tmp_path / "died"

    def work(index: int, _: bool) -> None:
        if index == 20 and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    trace = tmp_path / "run.trace"
    with headrace.DataLoader(Samples(work), 8, num_workers=2, trace=trace) as loader:
        found = said_of(loader, trace, step=lambda _: None, epochs=1)
    assert "1 worker died" in " ".join(advice.text for advice in found.advice)
