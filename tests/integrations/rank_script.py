"""What one rank does. Started twice by ``torch.distributed.run``: rank_script.py RESULTS_FOLDER.

The scenarios run in turn, because starting costs more than they do. What they return goes to
RESULTS_FOLDER/RANK.json under their names.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch.utils.data import Dataset, DistributedSampler, IterableDataset

import headrace

SAMPLES = 22
"""Divides by two ranks, but not into whole batches."""
BATCH = 4


class Numbers(Dataset[torch.Tensor]):
    """Sample ``i`` is ``i``."""

    def __init__(self, count: int = SAMPLES) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


class Stream(IterableDataset[int]):
    """The same numbers, one after the other."""

    def __iter__(self):
        return iter(range(SAMPLES))


def distributed_sampler() -> Any:
    dataset = Numbers()
    sampler = DistributedSampler(dataset, seed=3)
    epochs = []
    with headrace.DataLoader(dataset, batch_size=BATCH, sampler=sampler, num_workers=1) as loader:
        for epoch in range(2):
            sampler.set_epoch(epoch)
            epochs.append([batch.tolist() for batch in loader])
        return {"epochs": epochs, "batches": loader.stats().batches}


def prepared() -> Any:
    """Through accelerate: training (shuffled, two epochs), evaluation (odd length) and dispatching."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    train, odd = (
        headrace.DataLoader(Numbers(), batch_size=BATCH, shuffle=True, num_workers=1),
        headrace.DataLoader(Numbers(SAMPLES - 1), batch_size=BATCH, num_workers=1, on_error=headrace.Skip()),
    )
    stream = headrace.DataLoader(Stream(), batch_size=BATCH, num_workers=1)
    model, train, odd, stream = accelerator.prepare(model, train, odd, stream)
    epochs = []
    for _ in range(2):
        seen = []
        for batch in train:
            model(batch[:, None].float()).sum().backward()
            seen.append(batch.tolist())
        epochs.append(seen)
    gathered = [accelerator.gather_for_metrics(batch).tolist() for batch in odd]
    return {
        "epochs": epochs,
        "gathered": gathered,
        "dispatched": [accelerator.gather_for_metrics(batch).tolist() for batch in stream],
        "wrappers": [type(loader).__name__ for loader in (train, odd, stream)],
        "ours": [isinstance(loader, headrace.DataLoader) for loader in (train, odd, stream)],
        "batches": train.stats().batches,
        "kept": odd.on_error == headrace.Skip(),
        "lengths": [len(train), len(odd)],
    }


def automatic() -> Any:
    """As many workers as the loader likes, with both ranks at it at once."""
    dataset = Numbers(400)
    with headrace.DataLoader(dataset, batch_size=BATCH, sampler=DistributedSampler(dataset, seed=3)) as loader:
        torch.distributed.barrier()
        seen = [batch.tolist() for batch in loader]
        return {"seen": seen, "workers": loader.stats().workers, "lanes": [n for _, n in loader.stats().lane_changes]}


if __name__ == "__main__":
    torch.set_num_threads(1)
    # accelerate uses the group it finds.
    torch.distributed.init_process_group("gloo")
    results = {scenario.__name__: scenario() for scenario in (distributed_sampler, prepared, automatic)}
    Path(sys.argv[1], f"{os.environ['RANK']}.json").write_text(json.dumps(results))
    torch.distributed.destroy_process_group()
