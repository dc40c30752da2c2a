"""Image segmentation on 3-D arrays: volumes and their labels in .npy files, and the work done on each.

A sample is read from disk, cropped around a random voxel of a class or anywhere (balanced), flipped, cast,
brightened and made noisy: what MLPerf's 3D-UNet does, in numpy. Reading and the search for a class take time
in proportion to the volume; which samples pay for the search is drawn by the sample's index.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

PLANE = 64
"""Voxels along two sides of a volume; the third varies."""
CROP = 32
CLASSES = 3
BALANCED = 0.4
"""Share of samples that are cropped around a class."""
BRIGHTENED, NOISY = 0.5, 0.5
VOXEL_BYTES = 3
"""An int16 of the image and a uint8 of the label."""


class Volumes(Dataset[Any]):
    """Samples ``(image crop, label crop, index)``; sample `index` is made from file ``files[index]`` of `folder`."""

    def __init__(self, folder: Path, files: Sequence[int]) -> None:
        self.folder = folder
        self.files = list(files)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        draw = np.random.default_rng(index)
        image_path, label_path = paths(self.folder, self.files[index])
        image, label = np.load(image_path), np.load(label_path)
        window = balanced_crop(label, draw)
        image, label = image[window], label[window]
        for axis in range(3):
            if draw.uniform() < 0.5:
                image, label = np.flip(image, axis), np.flip(label, axis)
        image = image.astype(np.float32)
        if draw.uniform() < BRIGHTENED:
            image *= np.float32(draw.uniform(0.7, 1.3))
        if draw.uniform() < NOISY:
            image += draw.normal(0, draw.uniform(0, 10), image.shape).astype(np.float32)
        return torch.from_numpy(image), torch.from_numpy(np.ascontiguousarray(label)), index


def balanced_crop(label: np.ndarray[Any, Any], draw: np.random.Generator) -> tuple[slice, ...]:
    """Where to crop: around a voxel of a class that is not the background, or anywhere."""
    if draw.uniform() < BALANCED:
        found = np.flatnonzero(label == draw.integers(1, CLASSES))
        centre = np.unravel_index(found[draw.integers(len(found))], label.shape)
    else:
        centre = tuple(draw.integers(0, side) for side in label.shape)
    corner = [int(min(max(at - CROP // 2, 0), side - CROP)) for at, side in zip(centre, label.shape, strict=True)]
    return tuple(slice(at, at + CROP) for at in corner)


def paths(folder: Path, number: int) -> tuple[Path, Path]:
    """The image and the label of one volume."""
    return folder / f"{number:04d}_x.npy", folder / f"{number:04d}_y.npy"


def write(folder: Path, depths: Sequence[int]) -> int:
    """One volume for each depth; returns the bytes written."""
    noise = np.random.default_rng(3).normal(100, 30, (CROP, PLANE, PLANE)).astype(np.int16)
    written = 0
    for number, depth in enumerate(depths):
        image = np.resize(noise, (depth, PLANE, PLANE))
        label = np.zeros(image.shape, np.uint8)
        label[depth // 4 : depth // 2, 16:48, 16:40] = 1
        label[depth // 2 : depth // 2 + 4, 30:40, 20:30] = 2
        for path, array in zip(paths(folder, number), (image, label), strict=True):
            np.save(path, array)
            written += path.stat().st_size
    return written


def forget(folder: Path) -> None:
    """Have the kernel write the files to disk and drop them from its cache."""
    for path in folder.glob("*.npy"):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def depths_for(seconds: Sequence[float], folder: Path) -> list[int]:
    """How deep volumes must be to cost that much CPU time here, by trial; never smaller than a crop."""
    small, large = CROP, 16 * CROP
    spent = []
    for depth in (small, large):
        write(folder, [depth])
        trial = Volumes(folder, [0] * 40)
        spent.append(min(_spent(trial) for _ in range(3)))
    each = max(spent[1] - spent[0], 1e-9) / (large - small)
    fixed = spent[0] - each * small
    return [max(CROP, round((wanted - fixed) / each)) for wanted in seconds]


def _spent(trial: Volumes) -> float:
    began = time.thread_time()
    for index in range(len(trial)):
        trial[index]
    return (time.thread_time() - began) / len(trial)
