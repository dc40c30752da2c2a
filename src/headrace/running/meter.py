"""Time that a program waits for its batches, whichever loader makes them."""

import os
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

from headrace.engine.trainer.cores import machine
from headrace.running.orders import CommonEnd, ProcessReport, RunOrders


class Meter:
    """Times every batch of a process's loaders, and ends the process when it has had what was ordered.

    Loaders that are used at the same time (training and validation) are counted together. ``end`` is called before the
    process is ended.
    """

    def __init__(self, report: Callable[[], ProcessReport], orders: RunOrders, end: Callable[[], None]) -> None:
        self._report, self._orders, self._end = report, orders, end
        self._began: float | None = None
        self._first = self._cpu = 0.0
        self._common = CommonEnd(orders.reports) if os.environ.get("WORLD_SIZE", "1") != "1" else None

    def timed(self, begin: Callable[[], Iterator[Any]], loader: Any) -> Iterator[Any]:
        """The iteration that ``begin`` begins; what is asked of it but batches goes to it."""
        if self._began is None:
            self._began, self._cpu = time.perf_counter(), cpu_time()
        return TimedIteration(begin(), loader, self)

    def came(self, asked: float, loader: Any) -> None:
        now, report = time.perf_counter(), self._report()
        assert self._began is not None
        report.batches += 1
        report.workers = max(report.workers, loader.num_workers)
        if report.batches == 1:
            report.first, self._first = now - self._began, now
        else:
            report.wait += now - asked
            report.seconds = now - self._first

    @property
    def is_enough(self) -> bool:
        """True once the process has had what was asked for."""
        report, orders = self._report(), self._orders
        if 0 < orders.batches <= report.batches:
            return True
        is_over = report.batches > 1 and 0 < orders.seconds <= report.seconds
        if self._common is None or orders.seconds == 0:
            return is_over
        if is_over:
            self._common.agree(report.batches)
        return self._common.is_after(report.batches)

    def stop(self, iteration: Any, loader: Any) -> None:
        """End the workers, so that their CPU time is known, and the process."""
        if hasattr(loader, "stats"):
            self._report().workers = max(loader.stats().lanes, 1)
        close = getattr(loader, "close", None) or getattr(iteration, "_shutdown_workers", None)
        if close is not None:
            close()
        self._report().cpu = cpu_time() - self._cpu
        self._end()
        raise SystemExit(0)


class TimedIteration:
    """An iteration whose batches are timed."""

    def __init__(self, iteration: Iterator[Any], loader: Any, meter: Meter) -> None:
        self._iteration, self._loader, self._meter = iteration, loader, meter

    def __iter__(self) -> "TimedIteration":
        return self

    def __next__(self) -> Any:
        if self._meter.is_enough:
            self._meter.stop(self._iteration, self._loader)
        asked = time.perf_counter()
        batch = next(self._iteration)
        self._meter.came(asked, self._loader)
        return batch

    def __len__(self) -> int:
        return len(self._iteration)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iteration, name)


class Neighbours:
    """Load of other programs on this machine from now on: a time that was measured beside them says little."""

    WORTH_SAYING = 0.2

    def __init__(self) -> None:
        self._busy, self._own, self._began = machine()[0], cpu_time(), time.perf_counter()

    def cores(self) -> float:
        """Cores that they kept busy so far. Children of ours that nobody has waited for count among them."""
        busy, own = machine()[0] - self._busy, cpu_time() - self._own
        # The kernel counts a machine's time in hundredths of a second: over a short time own may be the larger.
        return max(busy - own, 0.0) / max(time.perf_counter() - self._began, 1e-9)

    @classmethod
    def remark(cls, cores: float) -> str | None:
        """A remark on times that were measured beside so much load; None beside little."""
        if cores <= cls.WORTH_SAYING:
            return None
        return f"Other programs used {cores:.1f} cores meanwhile: times are not to be trusted."


def cpu_time() -> float:
    """CPU seconds of this process and the children it has waited for (loaders wait for theirs)."""
    usage = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(item.ru_utime + item.ru_stime for item in usage)
