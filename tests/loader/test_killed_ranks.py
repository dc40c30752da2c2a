"""Ranks that are killed in the middle of an epoch, and others that take it up: each sample once, real processes."""

import json
import multiprocessing
import signal
from pathlib import Path

import torch
from torch.utils.data import Dataset

from headrace import DataLoader, Ranks

COUNT, BATCH = 240, 4
BEFORE, AFTER = 5, 8
"""Batches after which the first rank is killed, and behind which no rank goes."""


class Numbers(Dataset):
    """Each sample is its number."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return torch.tensor(index)


def run(rank, world, folder, states, told, *, end):
    """A rank that notes what was delivered and its state after each batch, in a file that is whole at any moment."""
    loader = DataLoader(Numbers(), BATCH, shuffle=True, num_workers=1, ranks=Ranks(rank, world, rest="keep", seed=7))
    if states:
        loader.load_state_dict(states)
    delivered, file = [], folder / f"{rank}.json"
    for number, batch in enumerate(loader, start=1):
        delivered += batch.tolist()
        part = file.with_suffix(".part")
        part.write_text(json.dumps({"delivered": delivered, "state": loader.state_dict()}))
        part.rename(file)
        told.send(number)
        if not end and number == AFTER:
            signal.pause()  # killed here at the latest
    told.send(None)


def ranks(world, folder, states=(), *, end=False):
    """Run that many ranks, kill each with SIGKILL after some batches or wait for their end; what each left behind."""
    folder.mkdir()
    context = multiprocessing.get_context("fork")
    running = []
    for rank in range(world):
        told, theirs = context.Pipe(duplex=False)
        process = context.Process(target=run, args=(rank, world, folder, [*states], theirs), kwargs={"end": end})
        process.start()
        theirs.close()
        running.append((process, told))
    for rank, (process, told) in enumerate(running):
        while (number := told.recv()) is not None:
            if not end and number == BEFORE + rank:  # not all at the same place
                process.kill()
                break
        process.join(60)
        assert process.exitcode == (0 if end else -signal.SIGKILL)
        process.close()
        told.close()
    return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(world)]


def test_two_ranks_one_rank_three_ranks(tmp_path):
    seen = []
    states = []
    for world, end in ((2, False), (1, False), (3, True)):
        left = ranks(world, tmp_path / str(world), states, end=end)
        states = [each["state"] for each in left]
        seen.append([index for each in left for index in each["delivered"]])
    assert [len(part) > 0 for part in seen] == [True] * 3
    assert sorted(index for part in seen for index in part) == list(range(COUNT))
