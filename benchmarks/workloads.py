"""The datasets that are loaded: importable, so that any start method can pickle them."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

SMALL = (3, 32, 32), torch.float32
"""12 KB a sample."""
LARGE = (3, 224, 224), torch.uint8
"""150 KB a sample."""
FLOAT_IMAGE = (3, 224, 224), torch.float32
"""602 KB a sample, 38.5 MB a batch of 64."""


class Ready(Dataset[Any]):
    """Samples that exist already: `__getitem__` costs a list index, so all else is the loader.

    Sixteen different tensors take turns; with `labelled` a sample is ``(tensor, int)``.
    """

    def __init__(self, size: int, kind: tuple[tuple[int, ...], torch.dtype], *, labelled: bool = False) -> None:
        shape, dtype = kind
        self.size = size
        self.labelled = labelled
        self.samples = [torch.full(shape, value, dtype=dtype) for value in range(16)]

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        sample = self.samples[index & 15]
        return (sample, index) if self.labelled else sample


class Uneven(Dataset[torch.Tensor]):
    """Ready samples that take CPU time to produce: most `cheap`, one in fifty `dear` seconds.

    Which are dear is drawn once; the cost is spent spinning, as a decoder would.
    """

    def __init__(self, size: int, *, cheap: float, dear: float) -> None:
        self.ready = Ready(size, FLOAT_IMAGE)
        draw = random.Random(0)
        self.costs = [dear if draw.random() < 0.02 else cheap for _ in range(size)]

    def __len__(self) -> int:
        return len(self.costs)

    def __getitem__(self, index: int) -> torch.Tensor:
        until = time.thread_time() + self.costs[index]
        while time.thread_time() < until:
            pass
        return self.ready[index]  # type: ignore[no-any-return]


def write_images(folder: Path, count: int, *, uneven: bool) -> int:
    """Write `count` JPEG files in two classes below `folder`; returns their bytes.

    Even: 400 x 300 pixels each. Uneven: the long side is lognormal around 350, 120 to 2,000.
    Content is smooth noise, so that files are about as large as photographs of that size.
    """
    from PIL import Image

    draw = np.random.default_rng(0)
    written = 0
    for index in range(count):
        width = int(np.clip(350 * np.exp(draw.normal(0, 0.7)), 120, 2000)) if uneven else 400
        height = max(width * 3 // 4, 1)
        coarse = draw.integers(0, 256, (height // 8 + 2, width // 8 + 2, 3), dtype=np.uint8)
        path = folder / ("even" if index % 2 else "odd") / f"{index:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        image.save(path, quality=87)
        written += path.stat().st_size
    return written


def image_folder(folder: Path) -> Dataset[Any]:
    """torchvision's ImageFolder with the usual training transforms, to 3 x 224 x 224 float."""
    from torchvision import datasets, transforms

    images: Dataset[Any] = datasets.ImageFolder(
        str(folder),
        transforms.Compose(
            [
                transforms.RandomResizedCrop(224),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
            ]
        ),
    )
    return images
