"""The same program with torch's loader and with ours: what each took, and what that means."""

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.core.errors import HeadraceError
from headrace.running.meter import Neighbours
from headrace.running.orders import AUTOMATIC, RunOrders
from headrace.running.program import Ran, run

LOADERS = ("torch", "headrace")
BY_ITSELF = (*LOADERS, AUTOMATIC)
"""With headrace's loader once more, which then chooses its workers."""
WORTH = 1.03
"""A gain below this is within what two runs of the same thing differ by."""


class NothingToCompare(HeadraceError, ValueError):
    """The program failed, or asked for too few batches; ``code`` is its exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class LoaderFigures:
    """Figures of a program's batches with one loader: medians over its runs, the slowest rank of each."""

    batches: int
    first: float
    rate: float
    wait: float
    """Share of the time between the first batch and the last that was spent in ``next()``."""
    cpu: float
    """CPU seconds per batch, of all processes; 0 where a program ran to its end."""
    spread: float
    """The fastest run's rate over the slowest's."""
    workers: int

    @classmethod
    def of(cls, runs: Sequence[Ran]) -> "LoaderFigures":
        """The figures of at least one run, each with a process that was given two batches."""
        slowest = [max(ran.reports, key=lambda report: report.seconds / max(report.batches - 1, 1)) for ran in runs]
        rates = [(report.batches - 1) / report.seconds for report in slowest]
        return cls(
            batches=min(report.batches for report in slowest),
            first=statistics.median(report.first for report in slowest),
            rate=statistics.median(rates),
            wait=statistics.median(report.wait / report.seconds for report in slowest),
            cpu=statistics.median(ran.cpu for ran in runs),
            spread=max(rates) / min(rates),
            workers=max(report.workers for report in slowest),
        )


@dataclass(frozen=True)
class BothLoaders:
    """Figures of both loaders."""

    torch: LoaderFigures
    headrace: LoaderFigures
    left_alone: tuple[str, ...] = ()
    """Loaders that stayed torch's."""
    others: float = 0.0
    """Cores that other programs kept busy meanwhile."""
    automatic: LoaderFigures | None = None
    """Of headrace's with ``num_workers=None``, where that was tried."""

    @property
    def best(self) -> LoaderFigures:
        """Figures of headrace's loader: with workers of its own choice where that is worth it."""
        worth = self.automatic is not None and self.automatic.rate >= WORTH * self.headrace.rate
        return self.automatic if worth and self.automatic is not None else self.headrace

    @property
    def gain(self) -> float:
        """Batches per second with ours over those with torch's."""
        return self.best.rate / self.torch.rate

    @property
    def verdict(self) -> str:
        """The gain, or that there is none, and why: from what was measured alone."""
        torch, ours, gain = self.torch, self.best, self.gain
        chosen = f"with num_workers=None (it came to {ours.workers}): " if ours is not self.headrace else ""
        waits = (
            f"the program waited {torch.wait:.0%} of the time with torch's loader and {ours.wait:.0%} with headrace's"
        )
        spread = max(torch.spread, ours.spread)
        doubt = "" if spread < max(gain, 1 / gain) else f", but runs of one loader differ by {spread:.2f}"
        if gain >= WORTH:
            return f"{chosen}{gain:.2f} times as fast{doubt}: {waits}"
        if gain > 1 / WORTH:
            if torch.wait < 0.05:
                return f"nothing is gained: {waits}, so the program itself is what takes the time"
            return (
                f"nothing is gained: {waits}; both are bound by the same thing. See: headrace run --trace FILE -- ..."
            )
        return f"{1 / gain:.2f} times as slow{doubt}: {waits}. See why: headrace run --trace FILE -- ..."


def in_turn(loaders: Sequence[str]) -> list[str]:
    """Each loader twice, from the first to the last and back: what a run leaves warm for the next helps all alike."""
    return [*loaders, *reversed(loaders)]


def compare(
    program: Sequence[str],
    limits: Mapping[str, float],
    tell: Callable[[str], None],
    trace: str | None = None,
    loaders: Sequence[str] = LOADERS,
) -> BothLoaders:
    """Run the program with each loader, as ``in_turn`` has it.

    ``limits``: ``batches`` or ``seconds`` of the orders. ``trace``: where the first run of torch's loader is recorded.
    ``tell`` is given a line before each run. Raises ``CannotRun``, or ``NothingToCompare``.
    """
    neighbours = Neighbours()
    runs: dict[str, list[Ran]] = {loader: [] for loader in loaders}
    order = in_turn(loaders)
    for number, loader in enumerate(order, 1):
        tell(f"{number} of {len(order)}, {_NAMES[loader]}")
        with tempfile.TemporaryDirectory(prefix="headrace-run-") as folder:
            orders = RunOrders(folder, loader, measure=True, **limits)  # type: ignore[arg-type]
            ran = run(program, orders, trace if number == 1 else None, quiet=True)
        if ran.code:
            raise NothingToCompare(f"with {_NAMES[loader]} the program ended with exit code {ran.code}", ran.code)
        timed = tuple(report for report in ran.reports if report.batches > 1)
        if not timed:
            raise NothingToCompare("the program asked torch's DataLoader for fewer than two batches", 2)
        runs[loader].append(Ran(0, timed))
    left = {what for ran in runs["headrace"] for report in ran.reports for what in report.left_alone}
    torch, ours = LoaderFigures.of(runs["torch"]), LoaderFigures.of(runs["headrace"])
    automatic = LoaderFigures.of(runs[AUTOMATIC]) if AUTOMATIC in runs else None
    return BothLoaders(torch, ours, tuple(sorted(left)), neighbours.cores(), automatic)


_NAMES = {
    "torch": "torch's loader",
    "headrace": "headrace's loader",
    AUTOMATIC: "headrace's loader with num_workers=None",
}
