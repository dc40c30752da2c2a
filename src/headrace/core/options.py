"""Options beyond torch's arguments: frozen values, compared by content, validated on creation."""

import enum
from dataclasses import dataclass
from typing import Literal, get_args

UnevenRest = Literal["pad", "drop", "keep"]
"""What becomes of samples that cannot be divided evenly among ranks."""

LanesRule = Literal["climb", "formula"]
"""How an automatic number of workers follows demand."""


TRACE_VARIABLE = "HEADRACE_TRACE"
"""The variable of the environment that names a trace for all loaders of a process and of those it starts."""


class Seeding(enum.Enum):
    """Seeding of the random numbers that a dataset draws from ``torch``, ``random`` and ``numpy.random``."""

    SAMPLE = "sample"
    """Reseeded before every sample by (seed, epoch, index): the same on any worker, in any order, after a resume."""
    WORKER = "worker"
    """Seeded once per worker, as torch does: about 7 microseconds less per sample, results depend on the workers."""


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Reading ahead from a store behind a network: how far before their use samples are fetched.

    ``window``: batches requested and not yet delivered, at most, but two (one in use, one coming); ``None`` follows
    bandwidth × delay by itself. ``ramp``: one extra batch is requested for every so many delivered until the window is
    open, so that a start is no burst; 0 opens it at once. ``memory``: bytes of samples fetched or being fetched, at
    most, whatever the window, but those of two batches.
    """

    window: int | None = None
    ramp: int = 4
    memory: int = 512 * 2**20

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(f"Prefetch(window=...) takes a positive number of batches, not {self.window!r}")
        if self.ramp < 0:
            raise ValueError(f"Prefetch(ramp=...) takes a number of batches, or 0, not {self.ramp!r}")
        if self.memory <= 0:
            raise ValueError(f"Prefetch(memory=...) takes a positive number of bytes, not {self.memory!r}")


@dataclass(frozen=True, slots=True)
class Ranks:
    """The division of an epoch among ranks, by the loader itself: each has a part of the same random order.

    ``rank`` and ``world`` are those of ``torch.distributed``, or of the launcher (``RANK`` and ``WORLD_SIZE``), where
    they are not given. ``rest``: samples that cannot be divided evenly are delivered twice, some of them ("pad", so
    that all ranks have the same number), or to nobody ("drop"), or to some ranks one more than to others ("keep").
    ``seed``: of the order, the same on all ranks; each epoch has another order.
    """

    rank: int | None = None
    world: int | None = None
    rest: UnevenRest = "pad"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rest not in get_args(UnevenRest):
            raise ValueError(f"Ranks(rest=...) takes 'pad', 'drop' or 'keep', not {self.rest!r}")
        if (self.rank is None) != (self.world is None):
            raise ValueError("Ranks(rank=..., world=...) takes both or none of them")
        if self.rank is not None and self.world is not None and not 0 <= self.rank < self.world:
            raise ValueError(f"Ranks(rank=...) takes a number from 0 to {self.world - 1}, not {self.rank!r}")


@dataclass(frozen=True, slots=True)
class Retry:
    """Repetition of requests that failed for a passing reason.

    Pauses double from ``first`` to at most ``ceiling`` seconds, each shortened at random, so that many clients do not
    come back at once. It ends after ``attempts``, or when the next one would begin more than ``budget`` seconds after
    the first. ``patience``: seconds that one attempt may take.
    """

    attempts: int = 10
    budget: float = 60.0
    first: float = 0.05
    ceiling: float = 5.0
    patience: float = 20.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"Retry(attempts=...) takes a positive number, not {self.attempts!r}")
        for name in ("budget", "first", "ceiling", "patience"):
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"Retry({name}=...) takes a positive number of seconds, not {value!r}")


@dataclass(frozen=True, slots=True)
class Loading:
    """Making and holding of samples.

    ``memory_limit`` bounds, in bytes, the shared memory that holds batches, those the user keeps included; ``None``
    is a quarter of what is free when the iteration starts, shared by the ranks of a host. Once it is reached, batches
    are copied out.
    ``prefetch``: for datasets whose samples come from a store behind a network.
    ``repeats``: of an iterable dataset, whether a worker that iterates over it anew gets the same items in the same
    order: then one that dies is replaced, and its stream passed over again. Without it that raises ``WorkerDied``, as
    torch raises, unless the dataset or its iterator has a state.
    """

    seeding: Seeding = Seeding.SAMPLE
    memory_limit: int | None = None
    prefetch: Prefetch = Prefetch()
    repeats: bool = False

    def __post_init__(self) -> None:
        seeding: object = self.seeding
        if not isinstance(seeding, Seeding):
            raise TypeError(f"Loading(seeding=...) takes Seeding.SAMPLE or Seeding.WORKER, not {self.seeding!r}")
        prefetch: object = self.prefetch
        if not isinstance(prefetch, Prefetch):
            raise TypeError(f"Loading(prefetch=...) takes Prefetch(...), not {self.prefetch!r}")
        if self.memory_limit is not None and self.memory_limit <= 0:
            raise ValueError(f"Loading(memory_limit=...) takes a positive number of bytes, not {self.memory_limit!r}")
        repeats: object = self.repeats
        if not isinstance(repeats, bool):
            raise TypeError(f"Loading(repeats=...) takes True or False, not {self.repeats!r}")


@dataclass(frozen=True, slots=True)
class Scheduling:
    """Treatment of slow samples.

    ``max_displacement``: in completion order, a sample is overtaken by at most this many batches; then the batch waits
    for it. ``None`` is no bound. The smaller it is, the closer batches are to those of a plain shuffle.
    ``hand_off``: a worker whose sample is slow keeps it, and another process takes the worker's place meanwhile.
    ``spares``: how many such samples there may be at once; ``None`` is a quarter of the workers, at least one. The
    processes are started when the first slow sample is met; their worker ids follow those of the others.
    ``lanes``: with ``num_workers=None``, how the number of workers follows demand. ``"climb"`` adds workers while you
    wait and each step raises the measured rate; ``"formula"`` is MinatoLoader's rule, for comparison.
    ``story``: keep a log of what workers did with each sample and why, for ``loader.story(index)``; the newest 20,000
    events. It is added to the error of a ``timeout``, and what went wrong to a trace.
    """

    max_displacement: int | None = 64
    hand_off: bool = True
    spares: int | None = None
    lanes: LanesRule = "climb"
    story: bool = False

    def __post_init__(self) -> None:
        if self.max_displacement is not None and self.max_displacement < 1:
            raise ValueError(
                f"Scheduling(max_displacement=...) takes a positive number of batches, not {self.max_displacement!r}"
            )
        if self.spares is not None and self.spares < 0:
            raise ValueError(f"Scheduling(spares=...) takes a number of processes, not {self.spares!r}")
        if self.lanes not in get_args(LanesRule):
            raise ValueError(
                f"Scheduling(lanes=...) takes one of {', '.join(map(repr, get_args(LanesRule)))}, not {self.lanes!r}"
            )

    def spares_for(self, workers: int) -> int:
        """Processes beside ``workers`` that may be started."""
        if not self.hand_off:
            return 0
        return max(1, workers // 4) if self.spares is None else self.spares


@dataclass(frozen=True, slots=True)
class Raise:
    """A sample that fails raises out of ``next()``, as with torch's DataLoader."""


@dataclass(frozen=True, slots=True)
class Skip:
    """A sample that fails is left out and counted; ``stats().skipped`` has the newest ones with their exceptions.

    Once more than ``max_fraction`` of an epoch's samples have failed, ``next()`` raises ``TooManyErrors``.
    """

    max_fraction: float = 0.01

    def __post_init__(self) -> None:
        """A fraction is between nothing and everything."""
        if not 0 <= self.max_fraction <= 1:
            raise ValueError(f"Skip(max_fraction=...) takes a number from 0 to 1, not {self.max_fraction!r}")


OnError = Raise | Skip
