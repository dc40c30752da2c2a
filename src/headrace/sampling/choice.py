"""The choice of a loader's order: torch's, or a planned one."""

import os
from functools import partial
from typing import Any

import torch
import torch.distributed
from torch.utils.data import IterableDataset

from headrace.blocks.deal import Rest
from headrace.core.options import Ranks
from headrace.sampling.arranged import in_shards, plain
from headrace.sampling.planned import PlannedSampler, RankPart

GLOBAL = "global"
"""What ``shuffle=`` takes to have every sample of shards read by itself."""


def planned(
    dataset: Any, shuffle: Any, ranks: Ranks | None, *, memory: int, generator: torch.Generator | None
) -> PlannedSampler | None:
    """The planned order of a loader that has no sampler of its user's; None where torch has one for it."""
    if isinstance(shuffle, str) and shuffle != GLOBAL:
        raise ValueError(f"DataLoader(shuffle=...) takes True, False or 'global', not {shuffle!r}")
    if isinstance(dataset, IterableDataset):
        if ranks is not None:
            raise ValueError(
                "DataLoader(ranks=...): an iterable dataset divides itself, see torch.utils.data.get_worker_info; "
                "ranks= is for datasets with a length"
            )
        return None
    part = None if ranks is None else part_of(ranks)
    arrange = in_shards(dataset, memory, singly=shuffle == GLOBAL) if shuffle else None
    if arrange is None:
        if part is None:
            return None
        return PlannedSampler(dataset, partial(plain, len(dataset)), memory=memory, shuffle=bool(shuffle), part=part)
    return PlannedSampler(dataset, arrange, memory=memory, generator=generator, part=part)


def part_of(ranks: Ranks) -> RankPart:
    """The part of this process: as given, as ``torch.distributed`` knows it, or as the launcher says."""
    rest = Rest(ranks.rest)
    if ranks.rank is not None and ranks.world is not None:
        return RankPart(ranks.rank, ranks.world, rest, ranks.seed)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return RankPart(torch.distributed.get_rank(), torch.distributed.get_world_size(), rest, ranks.seed)
    told = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE")]
    if not any(told):
        return RankPart(0, 1, rest, ranks.seed)
    if not all(each.isascii() and each.isdecimal() for each in told) or int(told[0]) >= int(told[1]):
        raise ValueError(
            f"DataLoader(ranks=...): the launcher says RANK={told[0]!r} and WORLD_SIZE={told[1]!r}, and there is no "
            "such rank; give Ranks(rank=..., world=...)"
        )
    return RankPart(int(told[0]), int(told[1]), rest, ranks.seed)
