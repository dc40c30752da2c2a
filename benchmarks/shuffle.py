"""How random an epoch over shards is: the entropy of labels in a batch, over that of a uniform shuffle.

Shards of 64 MiB in which samples lie sorted by class, a thousand classes, as datasets are usually written; the mean
entropy of labels over batches of 256, as a part of what batches of a uniform shuffle have. 1 is uniform; a batch of one
class has 0. No bytes are read: orders are computed. headrace's is that of its planner, with three quarters of the
memory for what it holds, as a loader does it. MosaicML Streaming: py1e, shards in random order, each sample moved
within a block that takes the memory. WebDataset: shards in random order, dealt to workers, each with a buffer of its
part of the memory, or of a thousand samples, from which it gives one at random for each that comes. LitData: chunks in
random order, dealt to workers, samples in random order within each. A batch of the last two comes from one worker.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.clock import shared
from benchmarks.report import Check, Report, Table
from benchmarks.scope import Scope
from headrace.blocks.block_layout import BlockLayout, block_bytes
from headrace.blocks.block_plan import BlockPlan
from headrace.blocks.draws import Draws, pool_bytes
from headrace.blocks.permutation import Array
from headrace.blocks.remainder import Remainder

SHARD, BATCH, CLASSES, WORKERS, GOAL = 64 << 20, 256, 1000, 8, 0.98
MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True)
class Case:
    """A dataset, and the memory that a loader may take."""

    total: int
    size: int
    memory: int

    @property
    def name(self) -> str:
        return f"{self.total // GIB} GB of {self.size // 1000} KB, {self.memory // MIB} MB"

    @property
    def samples(self) -> int:
        return self.total // SHARD * self.per_shard

    @property
    def per_shard(self) -> int:
        return SHARD // self.size

    @property
    def shards(self) -> int:
        return self.total // SHARD


EVERY = (
    Case(10 * GIB, 10_000, 128 * MIB),
    Case(10 * GIB, 10_000, 256 * MIB),
    Case(10 * GIB, 10_000, 512 * MIB),
    Case(10 * GIB, 10_000, GIB),
    Case(20 * GIB, 100_000, GIB),
    Case(4 * GIB, 1000, 256 * MIB),
)
CASES = tuple(case.name for case in EVERY)


def run(report: Report, scope: Scope) -> None:
    """Each order on each dataset."""
    cases = [case for case in EVERY if case.name in scope.chosen(CASES)]
    if scope.quick:
        cases = [Case(GIB, case.size, case.memory // 10) for case in cases[-3:]]
    found: dict[str, list[float]] = {arm: [] for arm in ORDERS}
    for case in shared(cases):
        for arm, order in ORDERS.items():
            found[arm].append(entropy(case, order(case)) / entropy(case, uniform(case)))
            scope.say(f"{case.name}: {arm}: {found[arm][-1]:.3f}")
    table = Table("entropy of labels in a batch, of a uniform shuffle's", ["", *(case.name for case in cases)])
    for arm, values in found.items():
        table.add(arm, *(f"{value:.3f}" for value in values))
    report.tables.append(table)
    report.raw["entropy"] = {
        arm: dict(zip((case.name for case in cases), values, strict=True)) for arm, values in found.items()
    }
    for case, ours in zip(cases, found["headrace"], strict=True):
        if case.memory == GIB:
            report.checks.append(Check(case.name, ours, GOAL, False))


def entropy(case: Case, order: Array) -> float:
    """The mean entropy of labels in a batch, in bits, over a few thousand batches of an order."""
    batches = (order * CLASSES // case.samples)[: len(order) // BATCH * BATCH].reshape(-1, BATCH)
    found = []
    for batch in batches[:: max(1, len(batches) // 4000)]:
        shares = np.bincount(batch, minlength=CLASSES) / BATCH
        shares = shares[shares > 0]
        found.append(-(shares * np.log2(shares)).sum())
    return float(np.mean(found))


def uniform(case: Case) -> Array:
    """Every order is as likely as any other."""
    return np.random.default_rng(0).permutation(case.samples)


def pool(case: Case) -> Array:
    """headrace's planner."""
    layout = BlockLayout(
        [case.per_shard] * case.shards, [case.per_shard * case.size] * case.shards, block=block_bytes(case.memory)
    )
    plan = BlockPlan(layout, 0, 0)
    draws = Draws(plan, Remainder.everything(plan), pool_bytes(case.memory))
    parts = []
    while (step := draws.step()) is not None:
        parts.append(step.drawn)
    return np.concatenate(parts)


def py1e(case: Case) -> Array:
    """Shards in random order; each sample moves by up to half of what a block has beside its shard."""
    rng = np.random.default_rng(0)
    shards = rng.permutation(case.shards)
    samples = (shards[:, None] * case.per_shard + np.arange(case.per_shard)).ravel()
    reach = max(0, case.memory // case.size - case.per_shard) / 2
    begins = np.repeat(np.arange(case.shards) * case.per_shard, case.per_shard)
    within = rng.random(len(samples)) * case.per_shard
    return samples[np.argsort(begins + within + rng.uniform(-reach, reach, len(samples)))]


def buffered(case: Case, workers: int, room: int | None = None) -> Array:
    """WebDataset's: each worker has its shards, and a buffer that it fills before it gives anything."""
    rng = np.random.default_rng(0)
    shards = rng.permutation(case.shards)
    room = room or case.memory // case.size // workers
    return by_workers([_from_buffer(case, shards[worker::workers], room, worker) for worker in range(workers)])


def _from_buffer(case: Case, shards: Array, room: int, seed: int) -> Iterator[int]:
    draw = random.Random(seed)
    held: list[int] = []
    for shard in shards.tolist():
        for sample in range(shard * case.per_shard, (shard + 1) * case.per_shard):
            if len(held) < room:
                held.append(sample)
                continue
            place = int(draw.random() * room)
            yield held[place]
            held[place] = sample
    draw.shuffle(held)
    yield from held


def chunked(case: Case) -> Array:
    """LitData's: each worker has its chunks, one after the other, each in random order."""
    rng = np.random.default_rng(0)
    chunks = rng.permutation(case.shards)
    return by_workers(
        [
            (
                chunk * case.per_shard + place
                for chunk in chunks[worker::WORKERS].tolist()
                for place in rng.permutation(case.per_shard).tolist()
            )
            for worker in range(WORKERS)
        ]
    )


def by_workers(streams: list[Iterator[int]]) -> Array:
    """Batches of several workers in turn, whole ones; as many as say enough."""
    found: list[int] = []
    while streams and len(found) < 4000 * BATCH:
        for stream in tuple(streams):
            batch = [sample for sample, _ in zip(stream, range(BATCH), strict=False)]
            if len(batch) < BATCH:
                streams.remove(stream)
            else:
                found += batch
    return np.array(found, np.int64)


ORDERS: dict[str, Callable[[Case], Array]] = {
    "headrace": pool,
    "MosaicML Streaming, py1e": py1e,
    "WebDataset, one worker": partial(buffered, workers=1),
    "WebDataset, eight workers": partial(buffered, workers=WORKERS),
    "WebDataset, eight workers, 1000 samples each": partial(buffered, workers=WORKERS, room=1000),
    "LitData, eight workers": chunked,
}
