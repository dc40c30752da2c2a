"""The maker of samples in a process: ``dataset[index]``, or whatever a feature puts in its place."""

from collections.abc import Callable, Sequence
from functools import partial
from operator import getitem
from typing import Any, Protocol

from headrace.engine.worker.observer import Observer


class Maker(Protocol):
    """Makes the samples of one process, one by one."""

    place: Any
    """The note about the next sample that its group's source wrote, if it wrote one."""

    def watched_by(self, observer: Observer) -> None:
        """Tell it what samples are made of, and let it see how."""

    def reads(self, body: memoryview, count: int) -> Sequence[Any]:
        """The notes that were written for ``count`` samples: see ``Group.notes``."""

    def begin(self) -> None:
        """A batch begins, in the trainer's own process."""

    def settle(self) -> None:
        """The samples at hand are made: what is to be done for several at once is done now."""

    def __call__(self, index: Any) -> Any:
        """The sample."""


class DatasetMaker:
    """``dataset[index]``."""

    def __init__(self, dataset: Any) -> None:
        self.place: Any = None
        self._get: Callable[[Any], Any] = partial(getitem, dataset)

    def watched_by(self, observer: Observer) -> None:
        """Tell it what samples are made of, and let it see how."""
        self._get = observer.getter()

    def reads(self, body: memoryview, count: int) -> Sequence[Any]:
        """No notes."""
        return ()

    def begin(self) -> None:
        """Do nothing."""

    def settle(self) -> None:
        """Do nothing: nothing is kept."""

    def __call__(self, index: Any) -> Any:
        """The sample."""
        return self._get(index)


class Making:
    """The orders by which a process makes its maker. They cross the process boundary once, with its task."""

    one_by_one = False
    """Something stands between dataset and samples, so that they are not made in bulk."""

    def look(self, dataset: Any) -> Any:
        """The facts about the dataset before ``worker_init_fn`` runs, for ``maker``."""
        return None

    def maker(self, dataset: Any, lane: int, seen: Any, *, late: bool) -> Maker:
        """The maker of worker ``lane``. Raises ``HeadraceError`` where ``worker_init_fn`` made the dataset unfit.

        ``seen``: what ``look`` gave, None where there is no such function. ``late``: the worker was started in
        mid-epoch, and the dataset may be another by now.
        """
        return self.plain(dataset)

    def plain(self, dataset: Any) -> Maker:
        """The maker that does without whatever may be refused."""
        return DatasetMaker(dataset)

    def here(self, dataset: Any) -> Maker:
        """The maker in the trainer's own process."""
        return self.plain(dataset)
