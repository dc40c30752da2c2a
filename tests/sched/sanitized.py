"""Runs the native twin under sanitizers, in a process that has neither torch nor pytest: see ``test_sanitizers``.

``python -m tests.sched.sanitized MODULE SECONDS``: MODULE is the native part built with sanitizers, which end the
process where memory is read or written that is not the ledger's, or arithmetic is undefined.
"""

import importlib.util
import random
import sys
import time
from array import array
from collections.abc import Callable
from typing import Any

NUMBERS = [-(1 << 63), -(1 << 31), -2, -1, 0, 1, 2, 3, 5, 7, 8, 23, 24, 25, 255, 256, 1 << 20, 1 << 31, (1 << 63) - 1]
REFUSALS = (IndexError, ValueError, TypeError, OverflowError, OSError, MemoryError)


def load(path: str) -> Any:
    """The module, in place of the one that was installed."""
    spec = importlib.util.spec_from_file_location("headrace.sched.native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["headrace.sched.native"] = module
    return module


def run_worlds(until: float) -> int:
    """Whole runs with deaths and interrupts, of all arrangements, one of each however long it takes; how many."""
    from headrace.sched.epochs.trainer_commands import Arrangement
    from tests.sched.epochs import Plan
    from tests.sched.model import World

    runs = 0
    kinds = ["row"] * 6 + ["other", "object", "raises", "kills once", "misfit", "too large"]
    while runs < len(Arrangement) or time.monotonic() < until:
        rng, collate = random.Random(runs), runs % 4 == 3
        behaviour = {index: rng.choice(kinds) for index in range(30)}
        batches = tuple(tuple(range(5 * first, 5 * first + 5)) for first in range(6))
        arrangement = list(Arrangement)[runs % 3]
        ahead = frozenset(rng.sample(range(30), 3))
        plan = Plan(arrangement, batches, behaviour, threshold=5, collate=collate, whole=collate, ahead=ahead)
        after = Plan(arrangement, ((100, 101, 102, 103, 104),), collate=collate, whole=collate)
        world = World([plan, after], native=True, paces=runs)
        kills = {rng.randrange(300): rng.randrange(30) for _ in range(3)}
        world.shuffle(rng, kills, set(), 0.5, 400)
        world.finish(early=True)
        world.verify()
        runs += 1
    return runs


def call_at_random(until: float) -> int:
    """Every operation, with whatever numbers, on fresh words: it is done or refused; how many calls."""
    from headrace.sched import native_ledger
    from headrace.sched.ledger_layout import Dims

    rng, calls, dims = random.Random(1), 0, Dims(lanes=3, groups=24, slots=24, rows=8)

    def number() -> Any:
        return rng.choice(NUMBERS) if rng.random() < 0.3 else rng.randrange(4) if rng.random() < 0.97 else "no number"

    def some(count: int) -> list[Any]:
        return [number() for _ in range(count)]

    def written() -> Any:
        return (*some(5), rng.choice([None, some(rng.randrange(5))])) if rng.random() < 0.95 else some(6)

    operations: dict[str, Callable[[], list[Any]]] = {
        "visit": lambda: [number(), rng.choice([None, written()]), rng.choice([None, tuple(some(3))]), *some(5)],
        "finish": lambda: [number(), written()],
        "claim": lambda: some(5),
        "shape": lambda: some(3),
        "reserve": lambda: some(3),
        "ready": lambda: some(5),
        "wake": lambda: some(1),
        "publish": lambda: [*some(11), some(rng.randrange(3))],
        "look": lambda: [some(rng.randrange(3))],
        "is_busy": lambda: some(2),
    }
    while not calls or time.monotonic() < until:
        words = memoryview(array("q", bytes(8 * dims.words)))
        native_ledger.mutex(words).make()
        ledger = native_ledger.NativeLane(words, dims, 0, native_ledger.mutex(words))._native
        for _ in range(20):
            name = rng.choice(list(operations))
            calls += 1
            try:
                getattr(ledger, name)(*operations[name]())
            except REFUSALS:
                continue
    return calls


def main() -> None:
    """Half of the time for each."""
    module, seconds = load(sys.argv[1]), float(sys.argv[2])
    from headrace.sched import native_ledger

    assert native_ledger.module is module
    assert "torch" not in sys.modules
    runs = run_worlds(time.monotonic() + seconds / 2)
    calls = call_at_random(time.monotonic() + seconds / 2)
    sys.stdout.write(f"{runs} runs, {calls} calls\n")


if __name__ == "__main__":
    main()
