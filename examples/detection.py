"""Object detection, traced: JPEG files with boxes, four operations on picture and boxes, a list collate_fn.

``python examples/detection.py [--trace FILE] [--workers N] [--images N]`` makes its images in a temporary folder,
passes them through a small network for one epoch, and leaves a trace; look at it with ``headrace trace report FILE``.
"""

import argparse
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset
from torchvision.transforms import functional

import headrace


class Compose:
    """Operations on picture and target, one after the other."""

    def __init__(self, transforms: list[Any]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any, target: Any) -> Any:
        for transform in self.transforms:
            image, target = transform(image, target)
        return image, target


class Resize:
    """The shorter side to 400, boxes with it."""

    def __call__(self, image: Any, target: Any) -> Any:
        scale = 400 / min(image.size)
        image = functional.resize(image, [round(image.size[1] * scale), round(image.size[0] * scale)])
        return image, target | {"boxes": target["boxes"] * scale}


class RandomHorizontalFlip:
    """In every other case, boxes too."""

    def __call__(self, image: Any, target: Any) -> Any:
        if random.random() < 0.5:
            boxes = target["boxes"].clone()
            boxes[:, [0, 2]] = image.size[0] - boxes[:, [2, 0]]
            return functional.hflip(image), target | {"boxes": boxes}
        return image, target


class ToTensor:
    """Picture to floats."""

    def __call__(self, image: Any, target: Any) -> Any:
        return functional.to_tensor(image), target


class Normalize:
    """To zero mean and unit variance, about."""

    def __call__(self, image: Any, target: Any) -> Any:
        return functional.normalize(image, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]), target


class Scenes(Dataset[Any]):
    """The pictures of a folder, each with a few boxes."""

    def __init__(self, folder: Path) -> None:
        self.samples = sorted(folder.glob("*.jpg"))
        self.loader = lambda path: Image.open(path).convert("RGB")
        self.transforms = Compose([Resize(), RandomHorizontalFlip(), ToTensor(), Normalize()])

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        image = self.loader(self.samples[index])
        corner = torch.rand(1 + index % 4, 2) * 100
        boxes = torch.cat([corner, corner + 50], 1)
        return self.transforms(image, {"boxes": boxes, "index": index})


def write_images(folder: Path, count: int) -> None:
    """Pictures of very different sizes."""
    draw = np.random.default_rng(0)
    for number in range(count):
        height, width = draw.integers(250, 900, 2)
        coarse = draw.integers(0, 255, (height // 16 + 1, width // 16 + 1, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((int(width), int(height)), Image.Resampling.BICUBIC)
        picture.save(folder / f"{number:05}.jpg", quality=90)


def listed(samples: list[Any]) -> tuple[list[torch.Tensor], list[Any]]:
    """Pictures differ in size, so a batch is a list."""
    images, targets = zip(*samples, strict=True)
    return list(images), list(targets)


def main() -> None:
    """One epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", default="detection.trace")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--images", type=int, default=60)
    options = parser.parse_args()
    model = nn.Sequential(nn.Conv2d(3, 4, 7, stride=8), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    with tempfile.TemporaryDirectory() as folder, headrace.tracing(options.trace) as session:
        write_images(Path(folder), options.images)
        loader = headrace.DataLoader(
            Scenes(Path(folder)), 2, shuffle=True, num_workers=options.workers, collate_fn=listed
        )
        found = 0
        for images, targets in loader:
            with session.span("step"), torch.no_grad():
                for image in images:
                    model(image[None])
                found += sum(len(target["boxes"]) for target in targets)
        print(f"{found} boxes; now: headrace trace report {options.trace}")


if __name__ == "__main__":
    main()
