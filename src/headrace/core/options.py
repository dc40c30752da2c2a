"""What a user can choose beyond torch's arguments. Values: frozen, compared by content, validated on creation."""

import enum
from dataclasses import dataclass


class Seeding(enum.Enum):
    """Whose the random numbers are that a dataset draws from ``torch``, ``random`` and ``numpy.random``."""

    SAMPLE = "sample"
    """Reseeded before every sample by (seed, epoch, index): the same on any worker, in any order, after a resume."""
    WORKER = "worker"
    """Seeded once per worker, as torch does: about 7 microseconds less per sample, results depend on the workers."""


@dataclass(frozen=True, slots=True)
class Loading:
    """How samples are made and held.

    ``memory_limit`` bounds, in bytes, the shared memory that holds batches, those the user keeps included; ``None``
    is a quarter of what is free when the iteration starts. Once it is reached, batches are copied out.
    """

    seeding: Seeding = Seeding.SAMPLE
    memory_limit: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be honoured, by name."""
        seeding: object = self.seeding
        if not isinstance(seeding, Seeding):
            msg = f"Loading(seeding=...) takes Seeding.SAMPLE or Seeding.WORKER, not {self.seeding!r}"
            raise TypeError(msg)
        if self.memory_limit is not None and self.memory_limit <= 0:
            msg = f"Loading(memory_limit=...) takes a positive number of bytes, not {self.memory_limit!r}"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class Raise:
    """A sample that fails raises out of ``next()``, as with torch's DataLoader."""


@dataclass(frozen=True, slots=True)
class Skip:
    """A sample that fails is left out, counted and kept with its exception in ``stats().skipped``.

    Once more than ``max_fraction`` of an epoch's samples have failed, ``next()`` raises ``TooManyErrors``.
    """

    max_fraction: float = 0.01

    def __post_init__(self) -> None:
        """A fraction is between nothing and everything."""
        if not 0 <= self.max_fraction <= 1:
            msg = f"Skip(max_fraction=...) takes a number from 0 to 1, not {self.max_fraction!r}"
            raise ValueError(msg)


OnError = Raise | Skip
