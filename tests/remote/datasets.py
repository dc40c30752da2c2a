"""Datasets that travel: modules that hosts of the tests' cluster can import."""

import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import torch


class Noisy(torch.utils.data.Dataset):
    """Samples of all three generators, so one that is seeded otherwise shows."""

    def __init__(self, count, size=64, seconds=0.0):
        self.count, self.size, self.seconds = count, size, seconds

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(self.seconds)
        noise = torch.rand(self.size // 4)
        return noise, index, random.random(), float(np.random.rand())


class Deadly(Noisy):
    """One sample ends whatever process makes it, but the one that wrote ``alive``."""

    def __init__(self, count, deadly, alive):
        super().__init__(count)
        self.deadly, self.alive = deadly, alive

    def __getitem__(self, index):
        if index == self.deadly and Path(self.alive).read_text() != str(os.getpid()):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Odd:
    """No type that a cache can keep."""


class Unfit(Noisy):
    """Some samples fail, some cannot be carried."""

    def __getitem__(self, index):
        if index == 3:
            raise ValueError(f"sample {index} is broken")
        return Odd() if index == 5 else super().__getitem__(index)
