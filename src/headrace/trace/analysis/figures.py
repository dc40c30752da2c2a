"""The figures of one loader's part of a trace. Plain values; seconds unless a name says otherwise."""

from dataclasses import dataclass
from typing import Any

from headrace.trace.analysis.operation_times import OperationFigures, SlowSample
from headrace.trace.analysis.spread import Spread

FULL = 0.9
"""Cores that workers keep this busy have no room for more of them."""
TAKEN = 0.15
"""A share of the samples' time without a core that is worth a word: some is spent at every change of turns."""


@dataclass(frozen=True)
class RunFigures:
    """Figures of an epoch."""

    number: int
    """What ``--run`` takes."""
    epoch: int
    seconds: float
    """From the first request to the last batch."""
    batches: int
    samples: int
    rate: float
    """Samples a second."""
    first_wait: float
    wait: Spread
    """Without the first."""
    delay: Spread
    work: Spread


@dataclass(frozen=True)
class Steady:
    """All batches but the first of each epoch."""

    batches: int
    samples: int
    seconds: float
    rate: float
    step: Spread
    """What the trainer did between two batches."""
    wait: Spread
    wait_share: float
    """Of the time."""
    waited_for: float
    """Share of the batches that the trainer had to wait for noticeably."""
    lay_ready: float
    """Share of the batches that lay ready for as long."""
    wait_over_1ms: float
    wait_over_500ms: float
    delay: Spread
    delay_over_1ms: float
    delay_over_500ms: float
    blocked_share: float
    """Share of the time that the trainer waited for a batch while a later one was ready."""


@dataclass(frozen=True)
class Lane:
    """Figures of a worker."""

    lane: int
    """-1: the trainer's own process."""
    busy: float
    """Share of the time."""
    samples: int
    cpu: float | None


@dataclass(frozen=True)
class FormFigures:
    """Samples of which a cache had this form."""

    form: str
    samples: int
    share: float
    time: Spread


@dataclass(frozen=True)
class NodeFigures:
    """Samples that were made on one other host."""

    node: str
    samples: int
    share: float
    """Of all samples."""
    time: Spread
    """From asking for them to having them here."""


@dataclass(frozen=True)
class Figures:
    """Figures of one loader in one process, over all its epochs."""

    name: str
    process: int
    facts: dict[str, Any]
    cores: int | None
    runs: tuple[RunFigures, ...]
    seconds: float
    batches: int
    samples: int
    startup: float
    """The wait for the very first batch."""
    startup_idle: float
    """The part of it before any sample was begun."""
    startup_store: float
    """The part of it before any row of a store was here."""
    startup_first: float
    """The part of it by which a worker's first sample took longer than others do."""
    epoch_starts: float
    """Waits for the first batches of later epochs, added up."""
    steady: Steady
    work: Spread
    """Of each batch: the time of its samples, their writing and collation added up."""
    span: Spread
    """Of each batch: from the start of its first sample until it was ready."""
    out_of_order: float
    """Share of the batches that were ready before the one delivered before them."""
    lanes: tuple[Lane, ...]
    cpu: float | None
    """Share of the samples' time that their threads' CPU clocks advanced."""
    queued: float | None
    """Share of the samples' time that their threads could have run and had no core; None where nobody noted it."""
    operations: tuple[OperationFigures, ...]
    slow: int
    slowest: tuple[SlowSample, ...]
    cache: tuple[FormFigures, ...]
    elsewhere: tuple[NodeFigures, ...]
    bytes_in: int
    bytes_out: int
    copies: Spread
    """To a device: beside the trainer where the loader does it, in the trainer's own time where that does it."""
    copied_bytes: int
    retries: int
    failures: int
    deaths: int
    hand_offs: int
    repeats: int
    divisions: tuple[str, ...]
    """How the cache was divided and why, one after the other."""

    @property
    def workers(self) -> int:
        """Workers the loader was asked for or chose; those that were seen where it does not say."""
        said = self.facts.get("workers")
        return said if isinstance(said, int) else sum(lane.lane >= 0 for lane in self.lanes)

    @property
    def busy(self) -> float:
        """Share of the workers' time that they worked."""
        working = [lane.busy for lane in self.lanes if lane.lane >= 0]
        return min(1.0, sum(working) / max(1, min(self.workers, len(working))))

    @property
    def running(self) -> float:
        """Cores that the workers kept busy."""
        working = self.busy * min(self.workers, sum(lane.lane >= 0 for lane in self.lanes))
        return working * (1.0 if self.cpu is None else self.cpu)

    @property
    def taken(self) -> bool:
        """True if workers had to wait for cores that others had: they could not have filled them themselves."""
        full = self.cores is not None and self.running >= FULL * self.cores
        return self.queued is not None and self.queued >= TAKEN and not full

    @property
    def transfer(self) -> float:
        """Share of the time between the first batches and the last that the trainer itself copied to a device."""
        own = self.copies.total if self.facts.get("torch") else 0.0
        return min(1.0, own / self.steady.seconds) if self.steady.seconds else 0.0

    @property
    def rate(self) -> float:
        """Samples a second, start-up included."""
        return sum(run.samples for run in self.runs) / self.seconds if self.seconds else 0.0
