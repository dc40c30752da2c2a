"""The image set of ``headrace demo``: JPEG files of uneven size, some of them slow to get."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from headrace.cli import UsageError

try:
    from PIL import Image
except ModuleNotFoundError:
    Image = None  # type: ignore[assignment]

SIDE = 64
"""Pixels of a side of the image that the model sees."""
CLASSES = 4


class Pictures(Dataset[tuple[torch.Tensor, int, int]]):
    """Files written by `write`, decoded, scaled and flipped: ``(image, label, index)``.

    A few samples stall before they can be read, as from a cold disk or a far store: `stall`
    seconds for about every 25th, drawn from `seed`. The index makes lost and doubled samples
    visible to the consumer.
    """

    def __init__(self, folder: Path, *, stall: float, seed: int = 0) -> None:
        self.files = sorted(folder.glob("*.jpg"))
        draw = random.Random(seed)
        self.stalls = [stall if draw.random() < 0.04 else 0.0 for _ in self.files]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        time.sleep(self.stalls[index])
        return self.decode(index)

    def decode(self, index: int) -> tuple[torch.Tensor, int, int]:
        """The sample without its stall: what it costs in CPU time."""
        with Image.open(self.files[index]) as file:
            image = file.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div_(255)
        if torch.rand(()) < 0.5:
            pixels = pixels.flip(2)
        return pixels.contiguous(), index % CLASSES, index


def require_pillow() -> None:
    """Refuse in one line where Pillow is missing."""
    if Image is None:
        raise UsageError("needs Pillow to decode JPEG: pip install 'headrace[vision]'")


def write(folder: Path, count: int, *, seed: int = 0) -> Iterator[int]:
    """Write `count` images below `folder`, yielding each one's index once it is there.

    Most are 200 to 600 pixels wide; every 32nd has 1,600 and costs many times the others. The
    class is a pattern's colour, so that there is something to learn.
    """
    draw = np.random.default_rng(seed)
    for index in range(count):
        width = 1600 if index % 32 == 31 else int(draw.integers(200, 600))
        height = width * 3 // 4
        coarse = draw.integers(0, 200, (height // 16, width // 16, 3), dtype=np.uint8)
        coarse[..., index % CLASSES % 3] //= 1 + index % CLASSES
        image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BILINEAR)
        image.save(folder / f"{index:05d}.jpg", quality=88)
        yield index
