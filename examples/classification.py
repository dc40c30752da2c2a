"""Image classification, traced: JPEG files of random sizes, four operations, a small network.

``python examples/classification.py [--trace FILE] [--workers N] [--loader headrace|torch] [--images N] [--on-device]``
makes its images in a temporary folder, trains one epoch, and leaves a trace; look at it with ``headrace trace report
FILE``. With ``--on-device`` the GPU decodes and augments; where there is none, the same stages run in plain torch.
"""

import argparse
import random
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torchvision import transforms
from torchvision.datasets import ImageFolder

import headrace


def write_images(folder: Path, count: int) -> None:
    """Pictures with some structure, so that they compress as photographs do."""
    draw = np.random.default_rng(0)
    for number in range(count):
        height, width = draw.integers(200, 700, 2)
        coarse = draw.integers(0, 255, (height // 16 + 1, width // 16 + 1, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((int(width), int(height)), Image.Resampling.BICUBIC)
        where = folder / f"class{number % 4}"
        where.mkdir(exist_ok=True)
        picture.save(where / f"{number:05}.jpg", quality=90)


def dataset(folder: Path) -> ImageFolder:
    """The pipeline of ImageNet training."""
    steps = transforms.Compose(
        [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    return ImageFolder(folder, steps)


def main() -> None:
    """One epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", default="classification.trace")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--loader", choices=["headrace", "torch"], default="headrace")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--on-device", action="store_true")
    options = parser.parse_args()
    if options.on_device and options.loader == "torch":
        parser.error("--on-device needs --loader headrace")
    where = "cuda" if options.on_device and torch.cuda.is_available() else "cpu"
    random.seed(0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(3 * 28 * 28, 4)).to(where)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tempfile.TemporaryDirectory() as folder, headrace.tracing(options.trace) as session:
        write_images(Path(folder), options.images)
        arguments = {"batch_size": 16, "shuffle": True, "num_workers": options.workers}
        if options.loader == "headrace":
            if options.on_device:
                arguments |= {"device": where, "on_device": True}
            loader = headrace.DataLoader(dataset(Path(folder)), **arguments)
        else:
            loader = headrace.traced(torch.utils.data.DataLoader(dataset(Path(folder)), **arguments))
        for images, labels in loader:
            with session.span("step"):
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        print(f"loss {loss.item():.3f}; now: headrace trace report {options.trace}")


if __name__ == "__main__":
    main()
