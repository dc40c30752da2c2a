"""Train on random pictures: torch's DataLoader and headrace's are exchanged by one import.

Run it with ``python examples/train.py``. Sample 7 of every 50 is slow; in completion order, the
default when the loader shuffles, it delays no batch but its own.
"""

import time

import torch
from torch import nn
from torch.utils.data import Dataset

import headrace


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """Random 3 x 32 x 32 images of ten classes, some of them slow to get."""

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.05 if index % 50 == 7 else 0.001)
        return torch.randn(3, 32, 32), index % 10


def main() -> None:
    """Two epochs, and what the loader counted."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with headrace.DataLoader(Pictures(), batch_size=64, shuffle=True, num_workers=4) as loader:
        for epoch in range(2):
            began = time.perf_counter()
            for images, labels in loader:
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"epoch {epoch}: {time.perf_counter() - began:.2f} s, loss {loss.item():.3f}")
        print(loader.stats())


if __name__ == "__main__":
    main()
