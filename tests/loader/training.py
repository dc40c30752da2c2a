"""A training script that is told to stop: it writes down where it stands and exits, whatever it is doing.

``python -m tests.loader.training FOLDER OPTIONS`` trains two epochs, going on from FOLDER/state if there is one, and
writes the epoch and the samples of each batch to a line of FOLDER/trained. Exits with 75 if it was told to stop.
"""

import json
import os
import signal
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch

import headrace
from tests.loader.data import Pairs

SAMPLES, EPOCHS = 60, 2
STOPPED = 75


def train(folder: Path, options: dict[str, Any]) -> None:
    """Both epochs, or what is left of them."""
    warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than this machine has cores
    loader = headrace.DataLoader(Pairs(SAMPLES, seconds=0.0005), batch_size=4, **options)
    trained: Counter[int] = Counter()  # batches, by epoch
    completed = told = 0

    def stop(*_: object) -> None:
        nonlocal told
        told += 1
        state = loader.state_dict()
        if state and state["yielded"] > trained[state["epoch"]]:
            return  # a batch has just been delivered: it is trained on first
        leave(state)

    def leave(state: dict[str, Any]) -> None:
        (folder / "new").write_text(json.dumps(state))
        (folder / "new").rename(folder / "state")
        sys.exit(STOPPED)

    if (folder / "state").exists():
        state = json.loads((folder / "state").read_text())
        loader.load_state_dict(state)
        if state:
            trained[state["epoch"]], completed = state["yielded"], state["epoch"] + state["finished"]
    signal.signal(signal.SIGTERM, stop)
    (folder / "began").touch()
    with (folder / "trained").open("a", buffering=1) as log:
        while completed < EPOCHS:
            for batch in loader:
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
                epoch = loader.state_dict()["epoch"]
                print(epoch, *batch[0].tolist(), file=log)
                trained[epoch] += 1
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
                if told:
                    leave(loader.state_dict())
            completed = loader.state_dict()["epoch"] + 1
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(Path(sys.argv[1]), json.loads(sys.argv[2]))
    os.write(1, b"done\n")
