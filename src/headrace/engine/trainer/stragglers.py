"""Samples known from earlier epochs to cost extraordinarily much: they are begun as soon as they are drawn."""

from collections.abc import Sequence
from typing import Any

from headrace.sched.epochs.trainer_ledger import TrainerLedger

REMEMBERED = 4096
"""Indices, at most; the ones met longest ago are forgotten."""
SHARE = 4
"""At most every so many samples of a batch are begun before their turn: if there are more, they are nothing special."""


class Stragglers:
    """A loader's memory of such samples, over all its epochs."""

    def __init__(self) -> None:
        self._known: dict[Any, None] = {}
        self._read = 0

    def learn(self, ledger: TrainerLedger) -> None:
        """Take in what lanes have noted. Without the lock: what is noted meanwhile comes with the next call."""
        if ledger.logged == self._read:
            return
        self._read, found = ledger.stragglers(self._read)
        for index in found:
            self._known.pop(index, None)
            self._known[index] = None
        while len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]

    def among(self, indices: Sequence[Any], ledger: TrainerLedger) -> list[int]:
        """Positions to begin at once: few enough that half of the lanes go on with what is due."""
        if not self._known:
            return []
        known = self._known
        found = [position for position, index in enumerate(indices) if type(index) is int and index in known]
        if len(found) > max(1, len(indices) // SHARE):
            return []
        return found[: max(0, ledger.limit // 2 - ledger.queued)]
