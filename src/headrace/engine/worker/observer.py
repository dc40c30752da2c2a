"""The observer of the samples that a process makes: it accounts for their sizes; a trace's sees more."""

import time
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from operator import getitem
from typing import TYPE_CHECKING, Any, Protocol

from headrace.plan import operation_costs

if TYPE_CHECKING:
    from headrace.engine.worker.memory import WorkerMemory

Get = Callable[[Any], Any]
TELL_NS = 100_000_000
"""The account is for people to look at: it need not be newer than this."""


class SampleRecords(Protocol):
    """A stream of a trace, as far as a worker's own steps are written to it."""

    def run(self, number: int, now: int) -> None:
        """Name the run that the next records are of."""

    def rows(self, batch: int, first: int, count: int, start: int, elapsed: int) -> None:
        """So many samples were written to rows."""

    def collate(self, batch: int, samples: int, start: int, elapsed: int) -> None:
        """A batch was collated."""


class Observer:
    """Looks at every sample of one process, without changing any."""

    stream: Any = None
    """See ``SampleRecords``; None where nothing is recorded."""
    repeated = False
    """Whether the next sample is made again, after a death."""
    tier = 0
    """The form in which a cache had the sample being made."""
    noted: Any = None
    """The function that looks at a dataset's stages, if anybody does."""

    def __init__(self, dataset: Any, memory: "WorkerMemory | None" = None, operations: int = 0) -> None:
        """``memory``: a worker's; None in the process that trains. ``operations``: how many are accounted for."""
        self._dataset = dataset
        self._pending: list[int] = []
        self._shared = None if memory is None else memory.facts.account(operations)
        self._account = [] if self._shared is None else self._shared.tolist()
        self._told, self._news = time.monotonic_ns(), False

    def undo(self) -> None:
        """Look no more."""

    def getter(self) -> Get:
        """``dataset[index]``."""
        return partial(getitem, self._dataset)

    def stages(self) -> Any:
        """The dataset's stages, seen; None where it is not made of stages, or nobody looks."""
        return None

    def samples(self, get: Get) -> Get:
        """``get``, noted."""
        return get

    def bulk(self, get: Get) -> Get:
        """``get``, which makes several samples in one call, noted."""
        return get

    def items(self) -> Callable[[Iterator[Any]], Any]:
        """``next``, noted."""
        return next

    def collated(self, batch: int, samples: int, start: int) -> None:
        """The last ``samples`` became a batch in this process, which began at ``start`` and is done."""

    def brought(self, size: int, retries: int, began: int, took: int) -> None:
        """The sample being made comes from ``size`` bytes that were asked for over a network at ``began``."""

    def made_elsewhere(self, node: str, size: int, began: int, took: int) -> None:
        """The sample being made was made on another host, and asked for there at ``began``."""

    def tell(self, samples: int, size: int) -> None:
        """Note that so many samples of about that many bytes were made; the account is brought up to date now and
        then.
        """
        if size:  # of the first sample it is not known yet
            operation_costs.count(self._account, 0, size, samples)
        if self._pending:
            self._count(self._pending)
        self._news = True
        if time.monotonic_ns() - self._told > TELL_NS:
            self.settle()

    def _count(self, pending: list[int]) -> None:
        """Account for what was noted of operations."""

    def settle(self) -> None:
        """Bring the account up to date, for others to see."""
        if self._news and self._shared is not None:
            self._shared[:] = array("q", self._account)
            self._told, self._news = time.monotonic_ns(), False


class Observing:
    """The orders by which a process makes its observer. They cross the process boundary once, with its task."""

    def observer(self, dataset: Any, memory: "WorkerMemory") -> Observer:
        """The observer of a worker."""
        return Observer(dataset, memory)
