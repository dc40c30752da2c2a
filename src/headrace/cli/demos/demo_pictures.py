"""The image set of ``headrace demo``: JPEG files of uneven size with a manifest, some of them slow to decode."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from headrace.cli import UsageError

try:
    from PIL import Image
except ModuleNotFoundError:
    Image = None  # type: ignore[assignment]

CLASSES = 4
PER_PATIENT = 8
LARGE_EVERY = 40


def require_pillow() -> None:
    """Refuse in one line where Pillow is missing."""
    if Image is None:
        raise UsageError("needs Pillow and torchvision: pip install 'headrace[vision]'")


def write(folder: Path, count: int, *, seed: int = 0) -> Iterator[Path]:
    """Write `count` images below `folder`, yielding each once it is there, and `folder`/manifest.csv in the end.

    Most are 200 to 600 pixels wide; every 40th has 3,200 and takes many times as long to decode. The class is a
    pattern's colour, so that there is something to learn. Eight pictures in a row are one patient's.
    """
    draw = np.random.default_rng(seed)
    with (folder / "manifest.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "label", "patient_id", "width"])
        for index in range(count):
            width = 3200 if index % LARGE_EVERY == LARGE_EVERY - 1 else int(draw.integers(200, 600))
            height, label = width * 3 // 4, index % CLASSES
            coarse = draw.integers(0, 200, (height // 16, width // 16, 3), dtype=np.uint8)
            coarse[..., label % 3] //= 1 + label
            path = folder / f"{index:05d}.jpg"
            Image.fromarray(coarse).resize((width, height), Image.Resampling.BILINEAR).save(path, quality=88)
            table.writerow([path.name, label, f"P{index // PER_PATIENT:04d}", width])
            yield path
