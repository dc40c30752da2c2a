"""What the device does with a batch: training on CUDA, sleeping where there is none; of a given length."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from benchmarks.measure import Figures

FEATURES, HIDDEN, LAYERS = 1024, 8192, 3


class Step(Protocol):
    """Called with the inputs of a batch; on a GPU it returns before the work is done."""

    def __call__(self, inputs: torch.Tensor) -> None: ...

    def wait(self) -> None:
        """Until the device is idle."""
        ...

    def alone(self, batch: int) -> float:
        """Seconds of a step when its input is there already."""
        ...


class Sleep:
    """A device that takes its time and none of the CPU's."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, inputs: torch.Tensor) -> None:
        time.sleep(self.seconds)

    def wait(self) -> None:
        """It never works on."""

    def alone(self, batch: int) -> float:
        began = time.perf_counter()
        for _ in range(20):
            self(torch.zeros(batch))
        return (time.perf_counter() - began) / 20


class Train:
    """Forward, backward and update of a multilayer perceptron, `rounds` times: few large kernels."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        hidden = [nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU()) for _ in range(LAYERS)]
        self.model = nn.Sequential(
            nn.Flatten(1), nn.AdaptiveAvgPool1d(FEATURES), nn.Linear(FEATURES, HIDDEN), *hidden, nn.Linear(HIDDEN, 10)
        ).cuda()
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=1e-4)

    def __call__(self, inputs: torch.Tensor) -> None:
        for _ in range(self.rounds):
            loss = self.model(inputs).square().mean()
            self.optimiser.zero_grad(set_to_none=True)
            loss.backward()
            self.optimiser.step()

    def wait(self) -> None:
        torch.cuda.synchronize()

    def alone(self, batch: int) -> float:
        inputs = resident("cuda", batch)
        for _ in range(5):
            self(inputs)
        self.wait()
        began = time.perf_counter()
        for _ in range(20):
            self(inputs)
        self.wait()
        return (time.perf_counter() - began) / 20


def make(device: str, rounds: float) -> Step:
    """A step that trains so often, or sleeps so many seconds."""
    return Sleep(rounds) if device == "cpu" else Train(int(rounds))


def resident(device: str, batch: int) -> torch.Tensor:
    """The inputs of a batch that is on the device and stays there."""
    return torch.randn(batch, 3 * FEATURES, device=device)


def calibrate(device: str, lengths: Sequence[float]) -> Figures:
    """What to give `make` for steps of these lengths in seconds."""
    if device == "cpu":
        return {"rounds": list(lengths)}
    once = Train(1).alone(24)
    return {"rounds": [max(1, round(length / once)) for length in lengths]}
