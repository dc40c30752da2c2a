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


class InStages(torch.utils.data.Dataset):
    """Samples in three steps; the last one draws, as a cache wants it. Notes each fetch in a file, if it has one."""

    def __init__(self, count, seconds=0.0, notes=None):
        self.count, self.seconds, self.notes = count, seconds, notes

    def __len__(self):
        return self.count

    def stamp(self, index):
        return (int(index),)

    def fetch(self, index):
        if self.notes is not None:
            with Path(self.notes).open("a") as file:
                file.write(f"{index}\n")
        return int(index)

    def decode(self, encoded):
        time.sleep(self.seconds)
        return torch.arange(4096, dtype=torch.float32) * encoded

    def augment(self, decoded):
        return decoded + torch.rand(1), int(decoded[1])

    def cache_fingerprint(self):
        return self.count

    def __getitem__(self, index):
        return self.augment(self.decode(self.fetch(index)))
