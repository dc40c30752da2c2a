"""The facts a process needs to use a loader's cache, and the plans it is given for each group of samples."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any, NamedTuple

from headrace.cache.backends.entry_word import LOOK
from headrace.cache.cache_options import Cache
from headrace.cache.entries.codec import Codec
from headrace.cache.peers import Unit
from headrace.cache.share import START
from headrace.caching.images import ImageKind
from headrace.caching.tensors import TensorKind
from headrace.staging.stages import Scopes


@dataclass(frozen=True, slots=True)
class Caching:
    """The cache, and what of it is this dataset's. Crosses the process boundary with the dataset."""

    options: Cache
    scopes: Scopes
    samples: int
    unit: Unit = field(default=Unit("", ""), compare=False)
    """For whom samples are made."""
    counts: str = field(default="", compare=False)
    """Where to count what was found, see ``Counts``."""
    standing: tuple[Any, ...] = ()
    """In which state data were that are read right here, see ``stages.standing``."""
    revisions: tuple[str | None, ...] = ()
    """By which those that lie behind a network were told apart, see ``stages.told_revisions``."""
    beside: str = ""
    """A fingerprint of the dataset without its store, where that lies behind a network."""
    seed: int = 0
    """What the random numbers of samples come from."""
    in_order: bool = False
    """A run shall be the same again, whoever else is there."""
    start: tuple[int, int, int] = field(default=START, compare=False)
    """How the room is divided until enough is measured to plan it."""


def codec() -> Codec:
    """The codec for what datasets of torch's users hold; one of a process's own."""
    return Codec([TensorKind(), ImageKind()])


_PLAN = struct.Struct("<QB")


class Plan(NamedTuple):
    """The plan for one sample: the word of the entry to begin with, or ``LOOK``, and the form to keep it in; 0 for
    none.
    """

    word: int
    keep: int


class CachePlace(NamedTuple):
    """The plan for one sample, and where its row lies, if one was brought."""

    plan: Plan
    row: Any = None

    @property
    def is_here(self) -> bool:
        """True if the cache has the sample: no row is needed."""
        return self.plan.word not in {0, LOOK}


def pack_plans(plans: Sequence[Plan]) -> bytes:
    """The plans packed for another process: what a cache says about the samples of a group."""
    return b"".join(starmap(_PLAN.pack, plans))


def read_plans(body: memoryview, count: int) -> list[Plan]:
    """The plans of ``count`` samples that ``pack_plans`` wrote."""
    return [Plan(*found) for found in _PLAN.iter_unpack(body[: count * _PLAN.size])]
