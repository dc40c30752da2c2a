"""Whether a model learns the same where the device decodes and augments.

A small convolutional network on 8 x 8 digits, stored as JPEG files of 32 x 32 and augmented by torchvision's own random
crops, trained from the same five seeds without and with ``on_device=True``. Both draw the same boxes in the same order,
so that runs of one seed differ by what decoders and rounding do to pixels, and by nothing else. On a machine without
CUDA the device is the CPU, with the plain torch twin of the kernels. "Lost" is the accuracy under that without
``on_device``, mean and standard error over pairs with the same seed.
Digits come from scikit-learn where it is installed; otherwise glyphs are drawn.
"""

from __future__ import annotations

import io
from functools import partial
from typing import Any

import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset
from torchvision import transforms

import headrace
from benchmarks.accuracy import BATCH, CLASSES, SEEDS, compared, held_and_kept, prepared, seeds
from benchmarks.clock import rounds, unless_first
from benchmarks.measure import Figures, Runs, interleaved
from benchmarks.report import Report
from benchmarks.scope import Scope

SIZE, CROP = 32, 24
TRAIN = transforms.Compose(
    [transforms.RandomResizedCrop(CROP, scale=(0.5, 1.0)), transforms.ToTensor(), transforms.Normalize([0.5], [0.25])]
)
TEST = transforms.Compose([transforms.Resize(CROP), transforms.ToTensor(), transforms.Normalize([0.5], [0.25])])
SETTINGS = {"on the CPU": False, "on_device": True}


class Files(Dataset[Any]):
    """JPEG files with their classes, in stages."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, transform: Any) -> None:
        self.files, self.labels, self.transform = [_file(each) for each in images], labels.tolist(), transform

    def __len__(self) -> int:
        return len(self.labels)

    def fetch(self, index: int) -> tuple[bytes, int]:
        return self.files[index], self.labels[index]

    def decode(self, encoded: tuple[bytes, int]) -> tuple[Image.Image, int]:
        return Image.open(io.BytesIO(encoded[0])).convert("RGB"), encoded[1]

    def augment(self, decoded: tuple[Image.Image, int]) -> tuple[torch.Tensor, int]:
        return self.transform(decoded[0]), decoded[1]

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.augment(self.decode(self.fetch(index)))

    def on_device(self) -> headrace.Pixels:
        return headrace.Pixels(self.transform)


def _file(pixels: torch.Tensor) -> bytes:
    levels = (255 * pixels.reshape(8, 8)).round().to(torch.uint8).numpy()
    out = io.BytesIO()
    large = Image.fromarray(levels).resize((SIZE, SIZE), Image.Resampling.BICUBIC)
    large.convert("RGB").save(out, "JPEG", quality=90)
    return out.getvalue()


def run(report: Report, scope: Scope) -> None:
    """Five seeds of both, alternating."""
    images, labels = prepared(report)
    epochs, device = (3 if scope.quick else 10), "cuda" if torch.cuda.is_available() else "cpu"
    results = {name: Runs() for name in SETTINGS}
    for seed in rounds(SEEDS, scope.say):
        scope.say(f"seed {seed}")
        arms = {name: partial(measure, there, images, labels, seed, epochs, device) for name, there in SETTINGS.items()}
        method = "spawn" if device == "cuda" else "fork"
        with unless_first(seed):
            for name, runs in interleaved(arms, repeats=1, say=scope.say, limit=300, method=method).items():
                results[name].add(runs)
    title = f"Digits as JPEG files: {epochs} epochs, batch {BATCH}, {seeds(results)} seeds, device {device}"
    compared(report, title, results, {})


def measure(there: bool, images: torch.Tensor, labels: torch.Tensor, seed: int, epochs: int, device: str) -> Figures:
    """Train once; accuracy on the test images, which are made on the CPU for both."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    test, kept = held_and_kept(len(labels))
    dataset = Files(images[kept], labels[kept], TRAIN)
    model = _network().to(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    options: dict[str, Any] = {"on_device": True} if there else {}
    with headrace.DataLoader(
        dataset, BATCH, shuffle=True, num_workers=2, in_order=True, device=device, **options
    ) as loader:
        slower = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, total_iters=epochs * len(loader))
        for _ in range(epochs):
            for inputs, targets in loader:
                optimiser.zero_grad()
                nn.functional.cross_entropy(model(inputs), targets).backward()
                optimiser.step()
                slower.step()
        done = loader.stats().device.pictures
    if done != (epochs * len(dataset) if there else 0):
        raise RuntimeError(f"the device made {done} pictures")
    held = Files(images[test], labels[test], TEST)
    inputs = torch.stack([held[index][0] for index in range(len(held))]).to(device)
    model.eval()
    with torch.no_grad():
        said = model(inputs).argmax(1).cpu()
    return {"seed": seed, "accuracy": 100 * (said == labels[test]).double().mean().item()}


def _network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * (CROP // 4) ** 2, CLASSES),
    )
