"""Whole programs, for tests about signals and the end of the interpreter."""

import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
from torch.utils.data import _utils as torch_data

from tests.parity.datasets import Blocking, Squares
from tests.parity.support import resolve

KEEP: list[Any] = []


class LargeBatches:
    """Index batches too big for the buffer of a pipe."""

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(6):
            yield [1] * 100_000


def report() -> None:
    """Print the ids of the processes below this one."""
    say(*(child.pid for child in psutil.Process().children(recursive=True)))


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def interrupt(loader_class: Any, folder: str) -> None:
    """Wait for a sample that never comes; say so when interrupted. Leaves a file when the epoch has begun."""
    release = multiprocessing.Event()
    try:
        batches = iter(loader_class(Blocking(folder, release), num_workers=2))
        Path(folder, "begun").touch()
        for _ in batches:
            say("a batch")
    except KeyboardInterrupt:
        release.set()
        say("interrupted")


def wait(loader_class: Any) -> None:
    """Stand still in the middle of an epoch, when both workers are at work.

    One of torch's that is not there yet when its trainer is killed takes whoever adopts it for the trainer.
    """
    KEEP.append(iter(loader_class(Squares(1000), num_workers=2)))
    for _ in range(2):
        next(KEEP[0])
    report()
    signal.pause()


def leave(loader_class: Any) -> None:
    """Reach the end of the interpreter with workers alive, in every state we know."""
    for persistent in (False, True):
        options = {"num_workers": 1, "persistent_workers": persistent}
        unread = loader_class(Squares(1000), **options)
        half = loader_class(Squares(1000), **options)
        done = loader_class(Squares(3), **options)
        large = loader_class(Squares(2), batch_sampler=LargeBatches(), **options)
        KEEP.extend([unread, half, done, large, iter(unread), iter(half), iter(done), iter(large)])
        list(KEEP[-2])
        try:
            fail_with(KEEP[-3])
        except ValueError as error:
            KEEP.append(error)
    report()


def fail_with(iterator: Any) -> None:
    raise ValueError(next(iterator))


PROGRAMS: dict[str, Callable[..., None]] = {"interrupt": interrupt, "wait": wait, "leave": leave}

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started the tests with it ignored
    # Every 5 seconds torch's workers look for their trainer, and so long that waits for each of them at its end.
    torch_data.MP_STATUS_CHECK_INTERVAL = torch_data.worker.MP_STATUS_CHECK_INTERVAL = 0.5
    PROGRAMS[sys.argv[1]](resolve(sys.argv[2]), *sys.argv[3:])
