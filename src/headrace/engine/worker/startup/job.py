"""The orders that a worker is given when it starts. Everything in them crosses the process boundary once."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headrace.engine.memory.lock import Bell, Lock, Mutex
from headrace.engine.memory.reservation import Reservation
from headrace.engine.worker.maker import Making
from headrace.engine.worker.observer import Observing
from headrace.sched.resume import Resume


@dataclass(frozen=True, slots=True)
class Wiring:
    """The memory, lock and bell that all processes of a run share."""

    memory: Reservation
    lock: Lock | Mutex
    trainer: Bell
    """Rung when something the trainer waits for is there."""


@dataclass(frozen=True, slots=True)
class Task:
    """The user's part: what to call, in which way."""

    dataset: Any
    collate_fn: Callable[[Any], Any]
    worker_init_fn: Callable[[int], Any] | None
    batched: bool
    """False: one sample is one batch (``batch_size=None``)."""
    iterable: bool
    standard_collate: bool
    """``default_collate`` as torch ships it: samples may be written to rows directly."""
    batch_size: int | None
    """For iterable datasets: how many items make a batch."""
    drop_last: bool
    seed_samples: bool
    keep_partial: bool
    """Failures are skipped: what was made beside one stays in the batch."""
    making: Making
    """What makes the samples."""
    observing: Observing
    """What looks at them."""


@dataclass(frozen=True, slots=True)
class Job:
    """The assignment of one worker."""

    lane: int
    lanes: int
    parent: int
    base_seed: int
    wiring: Wiring
    bell: Bell
    """Rung to wake this worker."""
    task: Task
    mask: frozenset[int] = frozenset()
    """The trainer's signal mask: signals are held while a process is forked."""
    resume: Resume = field(default_factory=Resume)
    late: bool = False
    """Whether the dataset may be another by now than the first workers have: a cache is none of its business."""
