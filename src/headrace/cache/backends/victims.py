"""Entries that may give way to a newcomer: those worth least of what a few looks found, remembered for a moment."""

import time
from collections.abc import Sequence

import numpy as np

from headrace.cache.backends import entry_word as W
from headrace.cache.backends.backend import Backend, Entry
from headrace.cache.peers import Peers
from headrace.cache.policies import Policy, standing

BLOCK = 512
"""Samples in a row among which something is sought that may give way."""
LOOKS = 3
MOMENT, REMOTE_MOMENT = 0.02, 0.2
"""Seconds for which a look is good, here and over a network. What is chosen may have gone, or be worth more, by then:
the one costs a newcomer its place, the other somebody a read."""


class Victims:
    """Entries that may give way, as one process sees them. A look costs as much as keeping a sample, and finds
    enough for many.
    """

    def __init__(self, backend: Backend, peers: Peers, policy: Policy) -> None:
        """``policy``: says what an entry is worth."""
        self._backend, self._peers, self._policy = backend, peers, policy
        self._rng = np.random.default_rng()
        self._until, self._forms = 0.0, tuple[int, ...]()
        self._found: list[tuple[int, Entry]] = []  # by what they are worth, the least one last
        self._in_vain = 0  # nothing was found that is worth less than this
        self.going: list[Entry] = []
        """Those that newcomers have been promised the place of, which are still there."""

    def choose(self, forms: Sequence[int], size: int, worth: int) -> list[Entry] | None:
        """Entries of these forms and of less worth which take at least ``size`` bytes; None where there are too few."""
        now = time.monotonic()
        if now >= self._until or self._forms != tuple(forms):
            moment = REMOTE_MOMENT if self._backend.slow else MOMENT
            self._until, self._forms, self._found, self._in_vain = now + moment, tuple(forms), [], 0
        chosen, total, looks = list[tuple[int, Entry]](), 0, LOOKS if worth > self._in_vain else 0
        while total < size:
            if self._found and self._found[-1][0] < worth:
                chosen.append(self._found.pop())
                total += W.size_of(chosen[-1][1].word)
            elif looks:
                looks -= 1
                known = {entry for _, entry in (*self._found, *chosen)}
                self._found += [each for each in self.look(forms, worth) if each[1] not in known]
                self._found.sort(key=lambda each: -each[0])
            else:
                # Back to where they were taken from, the least one last again.
                self._found += reversed(chosen)
                self._in_vain = max(self._in_vain, worth)
                return None
        return [entry for _, entry in chosen]

    def look(self, forms: Sequence[int], worth: int) -> list[tuple[int, Entry]]:
        """Entries of less worth than that among samples at random, in any order, each with its worth."""
        backend = self._backend
        # From a whole byte of the bitmaps on.
        first = int(self._rng.integers(max(1, backend.samples - BLOCK + 1))) // 8 * 8
        words = backend.block(first, min(BLOCK, backend.samples - first))
        held = np.flatnonzero(np.isin(W.kinds(words), forms))
        if not len(held):
            return []
        values = self._policy.worth(standing(self._peers.need_of(first, len(words)), self._peers.units))
        held = self._rng.permutation(held[values[held] < worth])
        found = [(int(values[at]), Entry(first + at, int(words[at]))) for at in held.tolist()]
        return [each for each in found if each[1] not in self.going] if self.going else found

    def worth(self, sample: int) -> int:
        """The worth of an entry of a sample that was just served to one."""
        return int(self._policy.worth(standing(np.array([self._peers.need_one(sample)]), self._peers.units))[0])
