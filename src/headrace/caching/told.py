"""Checks that a dataset, and what it reads, are still as they were when told: what changed is neither kept nor
served.
"""

import logging
from typing import Any

from headrace.cache.fingerprints.fingerprint import Remembered
from headrace.core.errors import CacheError, StoreError
from headrace.staging.stages import are_told, quick, standing

WRITTEN = "the store was written to in the middle of the epoch: nothing more of it is kept until the next one"
log = logging.getLogger("headrace.cache")
_said: set[str] = set()


class ToldDataset:
    """A dataset as it is when this is made."""

    def __init__(
        self, dataset: Any, data: tuple[Any, ...], revisions: tuple[str | None, ...] = (), *, here: bool
    ) -> None:
        """``data``: what is said of their state, see ``stages.standing``. ``revisions``: of those that this process
        reads over a network by itself. ``here``: this is the trainer's own process, in which the dataset may be changed
        between any two batches.
        """
        self._dataset, self._data, self._revisions = dataset, data, revisions
        self._remembered = Remembered() if here else None
        self._was = self._look()

    def _look(self) -> str:
        return "" if self._remembered is None else quick(self._dataset, self._remembered)

    def is_same(self) -> bool:
        """True if the dataset is the same. Takes most of a millisecond, whatever its size."""
        try:
            same = self._look() == self._was
        except CacheError:  # something is in it now that cannot be told
            same = False
        except RuntimeError as error:
            if "changed size" not in str(error):  # it is a handler's
                raise
            same = False  # another thread is at it
        if not same:
            say("the dataset was changed in the middle of the epoch, the rest of which goes on without the cache")
        return same

    def holds(self) -> bool:
        """True if the dataset and the data are the same: asked before anything that was made of them can be found."""
        if not self.is_same():
            return False
        try:
            same = not any(self._data) or standing(self._dataset) == self._data
            same = same and (not any(self._revisions) or are_told(self._dataset, self._revisions))
        except StoreError:
            same = False
        if not same:
            say(WRITTEN)
        return same


def say(what: str) -> None:
    """Log a warning once in a process."""
    if what not in _said:
        _said.add(what)
        log.warning("%s", what)
