"""JPEG files of mixed sizes, about as large as photographs of the web, and a folder of them as a dataset."""

from __future__ import annotations

import multiprocessing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

SIDE = 500
"""Pixels of the longer side, in the median."""


def write(folder: Path, count: int, processes: int, *, side: int = SIDE) -> int:
    """Write `count` files below `folder`, the same whenever it is asked for; returns their bytes.

    Longer sides are lognormal around `side`, from a third to three times that; nine in ten stand or lie 4 : 3.
    Content is smooth noise with grain, which compresses as photographs do.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        written = sum(pool.imap_unordered(partial(_write, folder, side), range(count), chunksize=16))
        pool.close()  # leaving would end its processes by signals
        pool.join()
    return written


def _write(folder: Path, side: int, number: int) -> int:
    from PIL import Image

    draw = np.random.default_rng(number)
    longer = int(np.clip(side * np.exp(draw.normal(0, 0.4)), side / 3, side * 3))
    shorter = longer * 3 // 4 if draw.uniform() < 0.9 else longer
    size = (longer, shorter) if draw.uniform() < 0.7 else (shorter, longer)
    coarse = draw.integers(0, 256, (size[1] // 24 + 2, size[0] // 24 + 2, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC), np.int16)
    grain = draw.integers(-12, 13, (size[1], size[0], 1), dtype=np.int16)
    path = folder / f"{number % 10}" / f"{number:06d}.jpg"
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(np.clip(smooth + grain, 0, 255).astype(np.uint8)).save(path, quality=90)
    return path.stat().st_size


def folder_of(folder: Path, *, resize: int, crop: int) -> Dataset[Any]:
    """torchvision's ImageFolder: resized, then cropped and flipped at random, as bytes; targets are the indices."""
    from torchvision import datasets, transforms

    pipeline = transforms.Compose(
        [
            transforms.Resize(resize),
            transforms.RandomCrop(crop),
            transforms.RandomHorizontalFlip(),
            transforms.PILToTensor(),
        ]
    )
    found = datasets.ImageFolder(str(folder), pipeline)
    found.samples = [(path, index) for index, (path, _) in enumerate(found.samples)]
    return found
