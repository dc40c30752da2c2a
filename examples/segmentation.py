"""Image segmentation, traced: 3D volumes in .npy files, six operations, a small 3D network.

``python examples/segmentation.py [--trace FILE] [--workers N] [--volumes N]`` makes its volumes in a temporary folder,
trains one epoch, and leaves a trace; look at it with ``headrace trace report FILE``. The crop looks for foreground in
some samples only, so its cost varies as it does in the MLPerf pipeline this one follows.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.utils.data import Dataset

import headrace

Volume = npt.NDArray[Any]
Pair = tuple[Volume, Volume]
PATCH = 48


class Compose:
    """Operations, one after the other."""

    def __init__(self, transforms: list[Any]) -> None:
        self.transforms = transforms

    def __call__(self, pair: Any) -> Any:
        for transform in self.transforms:
            pair = transform(pair)
        return pair


class RandBalancedCrop:
    """A patch, in two of five cases around something that is not background."""

    def __call__(self, pair: Pair) -> Pair:
        image, label = pair
        if np.random.random() < 0.4:
            found = np.argwhere(label > 0)
            centre = found[np.random.randint(len(found))] if len(found) else np.array(label.shape) // 2
            first = np.clip(centre - PATCH // 2, 0, np.array(label.shape) - PATCH)
        else:
            first = np.array([np.random.randint(0, size - PATCH + 1) for size in label.shape])
        at = tuple(slice(int(start), int(start) + PATCH) for start in first)
        return image[at].copy(), label[at].copy()


class RandomFlip:
    """Along each axis in one of three cases."""

    def __call__(self, pair: Pair) -> Pair:
        image, label = pair
        for axis in range(3):
            if np.random.random() < 1 / 3:
                image, label = np.flip(image, axis).copy(), np.flip(label, axis).copy()
        return image, label


class Cast:
    """Images to float32, labels to uint8."""

    def __call__(self, pair: Pair) -> Pair:
        return pair[0].astype(np.float32), pair[1].astype(np.uint8)


class RandomBrightnessAugmentation:
    """Up to 30 % brighter or darker, in one of ten cases."""

    def __call__(self, pair: Pair) -> Pair:
        if np.random.random() < 0.1:
            return pair[0] * (1 + np.random.uniform(-0.3, 0.3)), pair[1]
        return pair


class GaussianNoise:
    """In one of ten cases."""

    def __call__(self, pair: Pair) -> Pair:
        if np.random.random() < 0.1:
            return pair[0] + np.random.normal(0, 0.1, pair[0].shape), pair[1]
        return pair


class ToTensors:
    """What the network takes."""

    def __call__(self, pair: Pair) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(pair[0].astype(np.float32))[None], torch.from_numpy(pair[1].astype(np.int64))


class Volumes(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """The volumes of a folder."""

    def __init__(self, folder: Path) -> None:
        self.samples = sorted(folder.glob("*.npy"))
        self.loader = np.load
        operations = [RandBalancedCrop(), RandomFlip(), Cast(), RandomBrightnessAugmentation(), GaussianNoise()]
        self.transform = Compose([*operations, ToTensors()])

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image, label = self.loader(self.samples[index])
        made: tuple[torch.Tensor, torch.Tensor] = self.transform((image, label))
        return made


def write_volumes(folder: Path, count: int) -> None:
    """Noise with a bright ball of label 1 in it; sizes vary."""
    draw = np.random.default_rng(0)
    for number in range(count):
        shape = draw.integers(64, 112, 3)
        grid = np.stack(np.meshgrid(*(np.linspace(-1, 1, size) for size in shape), indexing="ij"))
        label = (np.square(grid).sum(0) < draw.uniform(0.05, 0.3)).astype(np.float32)
        np.save(folder / f"{number:03}.npy", np.stack([label + draw.normal(0, 0.3, shape), label]).astype(np.float32))


def main() -> None:
    """One epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", default="segmentation.trace")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--volumes", type=int, default=24)
    options = parser.parse_args()
    model = nn.Conv3d(1, 2, 3, padding=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tempfile.TemporaryDirectory() as folder, headrace.tracing(options.trace) as session:
        write_volumes(Path(folder), options.volumes)
        loader = headrace.DataLoader(Volumes(Path(folder)), 2, shuffle=True, num_workers=options.workers)
        for images, labels in loader:
            with session.span("step"):
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        print(f"loss {loss.item():.3f}; now: headrace trace report {options.trace}")


if __name__ == "__main__":
    main()
