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


class OnGpu:
    """Training on a GPU: how long a step takes by itself is measured alike for all models."""

    warm, timed = 20, 60
    """Steps that are made first, and those that count."""
    cpu = 0.0
    """Seconds that a step takes of it, once it was measured by itself."""

    def __call__(self, inputs: torch.Tensor) -> None:
        raise NotImplementedError

    def inputs(self, batch: int) -> torch.Tensor:
        """Those of a batch, on the GPU."""
        raise NotImplementedError

    def wait(self) -> None:
        torch.cuda.synchronize()

    def alone(self, batch: int) -> float:
        inputs = self.inputs(batch)
        for _ in range(self.warm):
            self(inputs)
        self.wait()
        began, used = time.perf_counter(), time.process_time()
        for _ in range(self.timed):
            self(inputs)
        self.wait()
        self.cpu = (time.process_time() - used) / self.timed
        return (time.perf_counter() - began) / self.timed


class Train(OnGpu):
    """Forward, backward and update of a multilayer perceptron, `rounds` times: few large kernels."""

    warm, timed = 5, 20

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

    def inputs(self, batch: int) -> torch.Tensor:
        return resident("cuda", batch)


class Classify(OnGpu):
    """Forward, backward and update of one of torchvision's models, in bfloat16 and channels last.

    ``pixels``: inputs are bytes, floats are made of them here.
    """

    def __init__(self, model: str, batch: int, side: int, *, pixels: bool = False) -> None:
        from torchvision import models

        torch.backends.cudnn.benchmark = True
        self.model = getattr(models, model)().cuda().to(memory_format=torch.channels_last)
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.mean = torch.tensor([123.7, 116.3, 103.5], device="cuda").view(1, 3, 1, 1)
        self.spread = torch.tensor([58.4, 57.1, 57.4], device="cuda").view(1, 3, 1, 1)
        self.targets = torch.arange(batch, device="cuda")
        self.side, self.pixels = side, pixels

    def __call__(self, inputs: torch.Tensor) -> None:
        if self.pixels:
            inputs = (inputs.float() - self.mean) / self.spread
        inputs = inputs.contiguous(memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(self.model(inputs), self.targets[: len(inputs)])
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()

    def inputs(self, batch: int) -> torch.Tensor:
        shape = (batch, 3, self.side, self.side)
        if self.pixels:
            return torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda")
        return torch.randn(shape, device="cuda").to(torch.bfloat16, memory_format=torch.channels_last)


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
