"""A sampler whose order is planned: over shards by blocks, and a rank's part of it where ranks divide an epoch."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import RandomSampler

from headrace.blocks.block_plan import BlockPlan
from headrace.blocks.deal import Rest, deal, union
from headrace.blocks.draws import Draws, pool_bytes
from headrace.blocks.remainder import Progression, Remainder
from headrace.core.errors import StateMismatch
from headrace.sampling.arranged import Arranged
from headrace.store.reading.neighbours import NeighbourBlock, marked

MOST_BLOCKS = 1 << 18
"""Samples whose blocks are remembered until they are asked for; of those that a cache had, nobody asks."""


@dataclass(frozen=True)
class RankPart:
    """The part of an epoch that one rank delivers. ``seed``: the same on all ranks."""

    rank: int = 0
    world: int = 1
    rest: Rest = Rest.PAD
    seed: int = 0


@dataclass(frozen=True)
class Left:
    """The rest of one rank's epoch: its sampler's state, and the indices that were drawn and not delivered.

    ``is_drawn``: all was drawn, and only those are left.
    """

    state: Mapping[str, Any]
    pending: Sequence[int]
    is_drawn: bool = False


class PlannedSampler(RandomSampler):
    """Indices in the order of a plan, each once. It has a state, and goes on in the same order from it.

    Without ``part``, an epoch takes one number from ``generator``, or from torch's own, as torch's does; with it, the
    order follows from seed and epoch. States of all ranks of one moment are taken up together by ``take_up``.
    """

    def __init__(
        self,
        data_source: Sized,
        arrange: Callable[[], Arranged],
        *,
        memory: int,
        generator: torch.Generator | None = None,
        shuffle: bool = True,
        part: RankPart | None = None,
    ) -> None:
        """``arrange`` is called when the first epoch begins. ``memory``: bytes of samples that a loader may hold."""
        super().__init__(data_source, generator=generator)
        self.epoch = 0
        """The epoch that begins next."""
        self._arrange, self._memory, self._shuffle, self._part = arrange, memory, shuffle, part
        self._arranged: Arranged | None = None
        self._seed: int | None = None
        self._loaded: Mapping[str, Any] | None = None
        self._running: _Pass | None = None
        self._blocks: dict[int, NeighbourBlock] = {}

    def __len__(self) -> int:
        total = len(self.data_source)
        if self._part is None:
            return total
        each, over = divmod(total, self._part.world)
        one_more = {Rest.DROP: 0, Rest.PAD: over, Rest.KEEP: self._part.rank < over}[self._part.rest]
        return each + bool(one_more)

    @property
    def arranged(self) -> Arranged:
        """The arrangement of samples; asked of the dataset's store when it is needed first."""
        if self._arranged is None:
            self._arranged = self._arrange()
        return self._arranged

    @property
    def words(self) -> str:
        """The order, as ``stats()`` says it."""
        return self.arranged.words

    def set_epoch(self, epoch: int) -> None:
        """The next epoch is that one."""
        self.epoch = epoch

    def marked(self, index: Any, key: str) -> str:
        """The key of a sample that was drawn just now, with the block that it is to be read in."""
        block = self._blocks.pop(index, None)
        return key if block is None else marked(key, block)

    def __iter__(self) -> Iterator[int]:
        running = self._running = self._begun()
        self._loaded = self._seed = None
        self.epoch = running.plan.epoch + 1
        self._blocks.clear()
        while (samples := running.step()) is not None:
            indices = self.arranged.dataset_indices(samples).tolist()
            self._note(indices, samples, running.plan)
            for index in indices:
                running.yielded += 1
                yield index
        if self._running is running:
            self._running = None

    def _note(self, indices: list[int], samples: Any, plan: BlockPlan) -> None:
        blocks = self.arranged.blocks(samples, *plan.bounds(plan.reads(samples)))
        if blocks is not None:
            if len(self._blocks) > MOST_BLOCKS:
                self._blocks.clear()
            self._blocks.update(zip(indices, blocks, strict=True))

    def state_dict(self) -> dict[str, Any]:
        """The position of the sampler, in plain data: in the middle of an epoch, or before the next."""
        return (self._running or self._begun()).state(self.identity)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on from there. Raises ``StateMismatch`` where another sampler's order would be meant."""
        here, there = self.identity, state.get("of")
        if there != here:
            raise StateMismatch(f"it is the state of samples {there!r:.300}, and these are {here!r:.300}")
        Remainder.decoded(self._plan(state), state["left"])
        self._loaded, self._running = dict(state), None

    def take_up(self, parts: "Sequence[Left]", *, finished: int = 0) -> dict[str, Any]:
        """The state of this rank in the epoch that all ranks of one moment left, whatever their number.

        ``parts``: what is left of each; ``finished`` more ranks had nothing left. Raises ``StateMismatch``.
        """
        self._check(parts, finished)
        plan, left, pending = self._plan(parts[0].state), [], [np.zeros(0, np.int64)]
        for part in parts:
            undelivered = self.arranged.samples(np.array(part.pending, np.int64))
            if part.is_drawn:
                pending.append(undelivered)
                continue
            pool, (rank, *_) = part.state["of"][-2:]
            resumed = _Pass(plan, part.state, int(pool), int(rank))
            left.append(resumed.rest().with_samples(np.setdiff1d(undelivered, resumed.again)))
        nothing = Remainder(Progression(plan.count, 1, plan.count))
        whole = union(plan, left, finished + len(pending) - 1) if left else nothing
        mine, waiting = self._part or RankPart(), np.unique(np.concatenate(pending))
        waiting = waiting[~whole.has(plan, waiting)]  # of a sample that was to be delivered twice, once is enough
        share = deal(plan, whole.with_samples(waiting), mine.world, mine.rest)[mine.rank]
        return {**parts[0].state, "of": self.identity, "left": share.encoded(plan), "before": 0, "yielded": 0}

    def _check(self, parts: "Sequence[Left]", finished: int) -> None:
        """Raise ``StateMismatch`` unless these are all ranks of one moment, over the same samples."""
        states = [part.state for part in parts]
        if any(state["of"][:-2] != self.identity[:-2] for state in states):
            raise StateMismatch(
                "load_state_dict(states): they are not of this dataset, its shards and this kind of order"
            )
        if len({(state["seed"], state["epoch"]) for state in states}) > 1:
            raise StateMismatch("load_state_dict(states): they are not all of one moment: epochs or seeds differ")
        ranks = {int(state["of"][-1][0]) for state in states}
        if len(ranks) < len(states):
            raise StateMismatch("load_state_dict(states): one rank's state is among them twice")
        if {int(state["of"][-1][1]) for state in states} != {len(parts) + finished}:
            raise StateMismatch(
                "load_state_dict(states): these are not the states of all ranks of one moment: there are "
                f"{len(parts) + finished}, and they are of {states[0]['of'][-1][1]} ranks"
            )

    @property
    def identity(self) -> list[Any]:
        """The facts that must be the same for a state to be gone on from; the last two may differ where states are
        taken up.
        """
        part, layout = self._part or RankPart(), self.arranged.layout
        pool = 0 if layout.is_single else self._pool
        return [layout.total, layout.digest, self._shuffle, pool, [part.rank, part.world, part.rest.value]]

    @property
    def _pool(self) -> int:
        return pool_bytes(self._memory)

    def _plan(self, state: Mapping[str, Any]) -> BlockPlan:
        return BlockPlan(self.arranged.layout, int(state["seed"]), int(state["epoch"]), shuffle=self._shuffle)

    def _begun(self) -> "_Pass":
        """A pass as it begins: from a state, or at the beginning."""
        part = self._part or RankPart()
        state = self._loaded
        if state is None:
            state = {"seed": self._drawn_seed(), "epoch": self.epoch if self._part else 0, "before": 0, "yielded": 0}
            plan = self._plan(state)
            mine = deal(plan, Remainder.everything(plan), part.world, part.rest)[part.rank]
            state["left"] = mine.encoded(plan)
        return _Pass(self._plan(state), state, self._pool, part.rank)

    def _drawn_seed(self) -> int:
        if self._part is not None:
            return self._part.seed
        if self._seed is None:  # once for an epoch, whoever asks first
            self._seed = int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())
        return self._seed


class _Pass:
    """A single pass over a rank's part of an epoch."""

    def __init__(self, plan: BlockPlan, state: Mapping[str, Any], pool: int, rank: int) -> None:
        self.plan = plan
        left = Remainder.decoded(plan, state["left"])
        self.again = left.again
        """Samples that others deliver, too."""
        self._draws = Draws(plan, left, pool, rank=rank, drawn=int(state["before"]))
        self._ahead = self._draws.skip(int(state["yielded"]) - int(state["before"]))
        self.yielded = int(state["yielded"])

    def step(self) -> Any:
        """The next samples; None at the end."""
        ahead, self._ahead = self._ahead, self._ahead[:0]
        if len(ahead):
            return ahead
        step = self._draws.step()
        return None if step is None else step.drawn

    def rest(self) -> Remainder:
        """The part that was not given."""
        return self._draws.remainder().with_samples(np.setdiff1d(self._ahead, self.again))

    def state(self, identity: list[Any]) -> dict[str, Any]:
        draws, plan = self._draws, self.plan
        return {
            "of": identity,
            "seed": plan.seed,
            "epoch": plan.epoch,
            "left": draws.base.encoded(plan),
            "before": draws.base_drawn,
            "yielded": self.yielded,
        }


def planned_in(index_sampler: Any) -> PlannedSampler | None:
    """The planned sampler that a loader draws from, itself or in batches."""
    inner = getattr(index_sampler, "sampler", index_sampler)
    return inner if isinstance(inner, PlannedSampler) else None
