"""The division of what is left of an epoch among ranks: each sample to exactly one, in numbers that differ by one."""

import enum
import heapq
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from headrace.blocks.block_plan import BlockPlan
from headrace.blocks.permutation import Array
from headrace.blocks.remainder import Progression, Remainder, grouped, nothing
from headrace.core.errors import StateMismatch


class Rest(enum.Enum):
    """The treatment of samples that cannot be divided evenly."""

    DROP = "drop"
    """They are delivered to nobody, so that all ranks have the same number."""
    PAD = "pad"
    """Some samples are delivered twice, so that all ranks have the same number."""
    KEEP = "keep"
    """Some ranks have one sample more than others."""


def union(plan: BlockPlan, remainders: Sequence[Remainder], finished: int = 0) -> Remainder:
    """The union of what all ranks of one moment have still to deliver; ``finished`` more ranks have nothing left.

    Raises ``StateMismatch`` where it cannot be all.
    """
    steps = {each.tail.step for each in remainders}
    (step,) = steps if len(steps) == 1 else (0,)
    taken = {each.tail.begin % step for each in remainders} if step else set()
    if step != len(remainders) + finished or len(taken) != len(remainders):
        raise StateMismatch(
            "load_state_dict(states): these are not the states of all ranks of one moment: of each rank, one is needed"
        )
    over = [Progression(plan.count + number, step, plan.count) for number in range(step)]
    remainders = [*remainders, *(Remainder(tail) for tail in over if tail.begin % step not in taken)]
    loose = np.concatenate([part for each in remainders for part in (each.loose, each.spare)])
    tails = [each.tail for each in remainders]
    begin = max(tail.begin for tail in tails)
    end = max(begin, min(tail.end for tail in tails))
    outside = [
        numbers[(numbers < begin) | (numbers >= end)] for numbers in (_partial(tail, begin, end) for tail in tails)
    ]
    reads = np.sort(np.concatenate([*(each.reads for each in remainders), *outside]))
    if len(np.unique(loose)) < len(loose) or len(np.unique(reads)) < len(reads):
        raise StateMismatch("load_state_dict(states): two of these states have the same samples still to deliver")
    if begin == end:
        return Remainder(Progression(plan.count, 1, plan.count), loose, reads)
    early, late = reads[reads < begin], reads[reads >= begin]  # late ones: of ranks that gave none away to be even
    return Remainder(Progression(begin, 1, end), np.concatenate([loose, plan.samples(late)]), early)


def _partial(tail: Progression, begin: int, end: int) -> Array:
    """The reads of a tail that lie before ``begin`` or from ``end`` on, and perhaps one more at each side."""
    before = tail.first(max(0, -(-(begin - tail.begin) // tail.step)))
    skipped = max(len(before), -(-(end - tail.begin) // tail.step))
    return np.concatenate([before, tail.after(skipped).first(tail.size)])


def deal(plan: BlockPlan, whole: Remainder, world: int, rest: Rest = Rest.KEEP) -> list[Remainder]:
    """The share of ``whole`` that each of ``world`` ranks delivers; ``whole`` is everything, or what ``union``
    gave.

    Reads that were begun go to the rank with the fewest samples, the others in turn, and the last are cut.
    """
    if world < 1:
        raise ValueError(f"an epoch is divided among a positive number of ranks, not {world!r}")
    shares = _begun(plan, whole.loose, world)
    first = len(whole.reads)
    hands = []
    for rank in range(world):
        tail = Progression(whole.tail.begin + (rank - first) % world, world, whole.tail.end)
        hands.append(_Deal(plan, shares[rank], whole.reads[rank::world], tail))
    totals = _totals(plan, hands, whole)
    total = int(totals.sum())
    least, over = divmod(total, world)
    quotas = np.full(world, least)
    if rest is not Rest.DROP:
        quotas[:over] += 1
    moved = _moved(hands, totals - quotas)
    if rest is Rest.PAD and over:
        for rank in range(over, world):
            hands[rank].again = hands[0].first()
    found = [hand.remainder() for hand in hands]
    if len(moved):
        found[0] = replace(found[0], spare=moved)
    return found


def _moved(hands: "Sequence[_Deal]", surplus: Array) -> Array:
    """The samples that nobody lacks, after those with too many gave to those with too few."""
    moved = np.concatenate(
        [nothing(), *(hand.cut(n) for hand, n in zip(hands, surplus.tolist(), strict=True) if n > 0)]
    )
    for hand, missing in zip(hands, (-surplus).tolist(), strict=True):
        if missing > 0:
            hand.loose, moved = np.concatenate([hand.loose, moved[:missing]]), moved[missing:]
    return moved


def _begun(plan: BlockPlan, loose: Array, world: int) -> list[Array]:
    """The samples of reads that were begun: read by read, the largest first, to whoever has the fewest."""
    if world == 1:
        return [loose]
    _, counts, ordered = grouped(plan, loose)
    parts = np.split(ordered, np.cumsum(counts)[:-1]) if len(counts) else []
    heap = [(0, rank) for rank in range(world)]
    given: list[list[Array]] = [[] for _ in range(world)]
    for number in np.argsort(-counts, kind="stable").tolist():
        has, rank = heap[0]
        given[rank].append(parts[number])
        heapq.heapreplace(heap, (has + len(parts[number]), rank))
    return [np.concatenate(each) if each else nothing() for each in given]


def _totals(plan: BlockPlan, hands: Sequence["_Deal"], whole: Remainder) -> Array:
    """The number of samples of each rank, before anything is moved."""
    world = len(hands)
    own = np.array([len(hand.loose) + int(plan.sizes(hand.reads).sum()) for hand in hands], np.int64)
    begin, end = whole.tail.begin, whole.tail.end
    counted = plan.counted(begin, world)
    counted = counted - np.roll(plan.counted(end, world), (end - begin) % world) if end < plan.count else counted
    return np.asarray(own + np.roll(counted, len(whole.reads) % world))


class _Deal:
    """The part of one rank while the samples are dealt."""

    def __init__(self, plan: BlockPlan, loose: Array, reads: Array, tail: Progression) -> None:
        self._plan = plan
        self.loose, self.reads, self.tail, self.again = loose, reads, tail, nothing()

    def cut(self, count: int) -> Array:
        """The last ``count`` samples, which it has no more."""
        taken = []
        while count and (self.tail.size or len(self.reads)):
            samples = self._plan.samples(np.array([self._last()]))
            keep = max(0, len(samples) - count)
            taken.append(samples[keep:])
            count -= len(samples) - keep
            self.loose = np.concatenate([self.loose, samples[:keep]])
        if count:
            taken.append(self.loose[-count:])
            self.loose = self.loose[:-count]
        return np.concatenate(taken)

    def first(self) -> Array:
        """The first sample of this part, alone in an array; empty if the part has none."""
        reads = np.concatenate([self.reads[:1], self.tail.first(1)])[:1]
        return np.concatenate([self.loose[:1], self._plan.samples(reads)])[:1]

    def _last(self) -> int:
        """The last whole read, which it has no more."""
        if self.tail.size:
            last = self.tail.begin + self.tail.step * (self.tail.size - 1)
            self.tail = self.tail._replace(end=last)
            return last
        last = int(self.reads[-1])
        self.reads = self.reads[:-1]
        return last

    def remainder(self) -> Remainder:
        return Remainder(self.tail, self.loose, self.reads, self.again)
