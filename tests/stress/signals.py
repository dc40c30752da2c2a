"""Real signals shot at loaders of every kind, for as long as wanted: ``python -m tests.stress.signals --minutes 30``.

A thread and another process send two kinds of signals, one at a time and several at once. Handlers do nothing, look at
the state, raise, or do both, wherever in an iteration they run. Each sample must come exactly once, also where workers
are killed meanwhile, where the loop is left early, and where another loader goes on from a state. No handler may run
inside a step. Whatever takes longer than two minutes is a hang: all stacks are printed, and the process ends.
"""

import argparse
import faulthandler
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import torch
from torchvision import transforms

import headrace
from headrace.cache.backends import shm
from headrace.engine.iteration import Iteration
from tests.engine.pictures import encoded, picture
from tests.loader import test_interrupts as of
from tests.loader.steps import FINALIZERS
from tests.loader.test_on_device import Files

HANG_SECONDS = 120
DEEPEST = 5
"""Handlers within each other at most."""
SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
CALLS = {method.__code__ for method in (Iteration.__next__, Iteration.reset)}
SHOOTER = """
import os, random, sys, time
rng, target = random.Random(int(sys.argv[2])), int(sys.argv[1])
while os.getppid() == target:
    time.sleep(rng.random() * 0.004)
    for kind in rng.choices([int(each) for each in sys.argv[3:]], k=rng.choice([1, 1, 2, 3])):
        os.kill(target, kind)
"""


class Pictures(Files):
    """As many as there are samples elsewhere."""

    def __init__(self) -> None:
        chain = transforms.Compose([transforms.RandomResizedCrop(8), transforms.ToTensor()])
        super().__init__([encoded(picture(20 + at, 24, at)) for at in range(of.SAMPLES)], chain)


KINDS = (
    of.KINDS
    | of.FETCHED
    | {
        "new workers": of.KINDS["free"] | {"persistent_workers": False},
        "new workers' streams": of.KINDS["streams"] | {"persistent_workers": False},
        "repeating streams": of.KINDS["streams"] | {"loading": headrace.Loading(repeats=True)},
        "streams as ready": of.KINDS["streams"] | {"in_order": False},
        "on device": of.KINDS["strict"] | {"dataset": Pictures, "device": "cpu", "on_device": True},
        "inline on device": of.KINDS["inline"] | {"dataset": Pictures, "device": "cpu", "on_device": True},
    }
)
MORTAL = ("strict", "free", "batches", "collated", "cached", "fetched", "repeating streams", "on device")
"""Kinds whose workers may be killed."""
STANDING = ("stateful sampler", "inline stateful", "stateful stream")
"""Kinds where a new epoch goes on in the middle, since an object of the user's knows where it stood."""


def made(kind: str) -> headrace.DataLoader:
    arguments = dict(KINDS[kind])
    if "sampler" in arguments:
        arguments["sampler"] = arguments["sampler"]()
    return headrace.DataLoader(arguments.pop("dataset", of.Numbers)(), **arguments)


class Session(of.Session):
    """One epoch, whose batches may be on a device."""

    def __init__(self, loader: headrace.DataLoader, iterator: Any) -> None:
        self.loader, self.iterator = loader, iterator
        self.rows, self.failed = [], []

    def step(self) -> bool:
        """See there; a device's batch has its numbers beside the pictures."""
        if not self.loader.on_device:
            return super().step()
        batch = next(self.iterator, None)
        self.rows += [] if batch is None else batch[1].tolist()
        return batch is not None


class Range:
    """One loader that is shot at, over several epochs, and what has come of it."""

    def __init__(self, kind: str, rng: random.Random, counts: Counter[str]) -> None:
        self.kind, self.rng, self.counts = kind, rng, counts
        self.loader = made(kind)
        self.states: list[tuple[dict[str, Any], of.Session | None]] = []
        self.session: Session | None = None
        self.depth = 0

    def handle(self, _: int, frame: FrameType | None) -> None:
        """The handler. It raises only inside our calls: what comes after is the loop's own."""
        if self.depth == DEEPEST:  # it takes longer than the next signal
            return
        self.depth += 1
        try:
            self._act(frame)
        finally:
            self.depth -= 1

    def _act(self, frame: FrameType | None) -> None:
        latest = self.loader._latest
        if latest is not None and latest.step._inside and latest.step.caller == threading.get_ident():
            sys.exit(f"{self.kind}: a handler ran inside a step")
        self.counts["signals"] += 1
        does = self.rng.random()
        if does < 0.3:
            self.states.append((self.loader.state_dict(), None if self.session is None else self.session.copy()))
        # An epoch that cannot begin starts its workers again, which takes many signals' time.
        raises = (does < 0.02 and self.kind not in STANDING) if self.session is None else does < 0.5
        if raises and self._may_raise(frame):
            raise of.Interrupt

    def _may_raise(self, frame: FrameType | None) -> bool:
        while frame is not None and frame.f_code not in CALLS:
            if frame.f_code in FINALIZERS:
                return False
            frame = frame.f_back
        return frame is not None

    def begin(self) -> Session:
        """A session of an epoch that has begun, however often that was interrupted."""
        self.session = None
        while True:
            try:
                iterator = iter(self.loader)
            except of.Interrupt:
                self.counts["interrupted beginnings"] += 1
            else:
                return Session(self.loader, iterator)

    def epoch(self, workers: list[int]) -> None:
        """One epoch, left early at times."""
        session = self.session = self.begin()
        stays = self.kind in STANDING or self.rng.random() < 0.9
        leaves = of.SAMPLES + 1 if stays else self.rng.randrange(of.SAMPLES)
        kills = self.rng.randrange(of.SAMPLES) if self.kind in MORTAL and self.rng.random() < 0.1 else of.SAMPLES + 1
        going = True
        while going:
            faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
            self.states.clear()
            if workers and len(session.rows) >= kills:
                kills = of.SAMPLES + 1
                with suppress(ProcessLookupError):
                    os.kill(self.rng.choice(workers), signal.SIGKILL)
                    self.counts["workers killed"] += 1
            try:
                going = session.step() and len(session.rows) < leaves
            except of.Interrupt:
                self.counts["interrupts"] += 1
            self.look(session)
        if leaves > of.SAMPLES:
            session.check(self.kind)
        self.counts["epochs"] += 1

    def look(self, session: Session) -> None:
        """What handlers saw is how things stood before the batch was delivered, or after."""
        for state, seen in self.states:
            if seen is None:
                continue
            self.counts["states"] += 1
            try:
                of.check_state(self.kind, state, seen, fully=False)
            except AssertionError:
                of.check_state(self.kind, state, session, fully=False)

    def go_on_elsewhere(self) -> None:
        """Some of an epoch here, the rest in a loader made from the state."""
        session = self.session = self.begin()
        for _ in range(self.rng.randrange(of.SAMPLES // of.SIZE)):
            with suppress(of.Interrupt):
                session.step()
        state = self.loader.state_dict()
        if state["finished"]:
            return
        other = made(self.kind)
        with other:
            other.load_state_dict(state)
            self.loader, before = other, self.loader
            rest, going = self.begin(), True
            while going:
                with suppress(of.Interrupt):
                    going = rest.step()
            self.loader = before
        rest.rows, rest.failed = session.rows + rest.rows, session.failed + rest.failed
        rest.check(self.kind if "failing" in self.kind else "free")
        self.counts["resumed"] += 1


@contextmanager
def shots(seed: int, handler: Any) -> Iterator[None]:
    """Signals from a thread and from another process."""
    over, rng = threading.Event(), random.Random(seed)

    def shoot() -> None:
        while not over.wait(rng.random() * 0.004):
            for kind in rng.choices(SIGNALS, k=rng.choice([1, 1, 2, 3])):
                os.kill(os.getpid(), kind)

    before = [signal.signal(kind, handler) for kind in SIGNALS]
    told = [str(number) for number in (os.getpid(), seed, *map(int, SIGNALS))]
    thread, process = threading.Thread(target=shoot), subprocess.Popen([sys.executable, "-c", SHOOTER, *told])
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        process.kill()
        process.wait()
        for kind, earlier in zip(SIGNALS, before, strict=True):
            signal.signal(kind, earlier)


def shoot(minutes: float, seed: int, kinds: list[str]) -> Counter[str]:
    """Shoot at one loader after the other; what was done. Raises where a sample is lost or comes twice."""
    rng, counts, ends = random.Random(seed), Counter[str](), time.monotonic() + 60 * minutes
    targets: list[Range] = []
    with shots(seed, lambda kind, frame: targets[-1].handle(kind, frame) if targets else None):
        while time.monotonic() < ends:
            kind = rng.choice(kinds)
            faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
            target = Range(kind, rng, counts)
            targets[:] = [target]
            try:
                for _ in range(rng.randint(1, 12)):
                    pool = getattr(target.loader._latest, "pool", None)
                    target.epoch([] if pool is None else pool.pids())
                if rng.random() < 0.3 and kind != "streams as ready":
                    target.go_on_elsewhere()
            except BaseException as error:
                error.add_note(f"with {kind}, seed {seed}, after {dict(counts)}")
                raise
            finally:
                targets.clear()
                target.loader.close()
            counts[f"{kind}: loaders"] += 1
    faulthandler.cancel_dump_traceback_later()
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    try:
        sys.stdout.write(f"{dict(shoot(chosen.minutes, chosen.seed, chosen.kinds))}\n")
    finally:
        shm.remove(of.CACHE.name)


if __name__ == "__main__":
    main()
