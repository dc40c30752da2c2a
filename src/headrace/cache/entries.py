"""What the cache holds, in the ledger's words: entries come, settle and go. The caller holds the lock.

Primary is the place word of each sample. The dense list of entries, positions in it and sums of bytes are derived.
Whoever changes anything sets DIRTY before and clears it after; whoever finds it set computes the derived facts again,
so a death between two stores costs time, not truth.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from math import gcd

import numpy as np

from headrace.cache import division
from headrace.cache import words as W
from headrace.cache.book import Entry, Grant
from headrace.cache.policies import NEVER, Policy, Standing
from headrace.cache.roster import Crowd
from headrace.cache.words import Array, Dims, Words

PROBES = 256
"""Entries looked at, at random, for one worth least."""


class Entries:
    """One process's hands on the entries. Nothing is remembered here."""

    def __init__(self, words: Words, view: Array, dims: Dims, policy: Policy, rng: random.Random) -> None:
        """``words`` to store through, ``view`` to read from: the same memory."""
        self.w, self.r, self.dims, self.policy, self.rng = words, view, dims, policy, rng
        end = dims.samples
        self.seen, self.place = view[dims.seen : dims.seen + end], view[dims.place : dims.place + end]
        self.used = view[dims.used : dims.used + end]
        self._dense, self._where = view[dims.dense : dims.dense + end], view[dims.where : dims.where + end]

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Derived facts hold at entry and, unless its process dies within, after."""
        self.heal()
        self.w[W.DIRTY] = 1
        yield
        self.w[W.DIRTY] = 0

    def heal(self) -> None:
        """If somebody died inside a method: compute again all that is derived."""
        if not self.r[W.DIRTY]:
            return
        forms = self.place & W.FORM
        held = np.flatnonzero(forms)
        sizes = self.place[held] >> W.BYTES_SHIFT
        for form in (W.ENCODED, W.DECODED, W.AUGMENTED):
            self.w[W.BYTES + form - 1] = int(sizes[forms[held] == form].sum())
        settled = held[(self.place[held] & W.ARRIVING) == 0]
        first = self.dims.dense
        self.w[first : first + len(settled)] = settled
        for position, sample in enumerate(settled.tolist()):
            self.w[self.dims.where + sample] = position
        self.w[W.COUNT] = len(settled)
        self.w[W.LOGGED] = int(self.r[W.LOGGED]) + W.LOG + 1
        if self.r[W.ROOM]:
            division.settle(self.w, self.r)
        self.w[W.REBUILT] = int(self.r[W.REBUILT]) + 1
        self.w[W.DIRTY] = 0

    def count(self, what: int, by: int = 1) -> None:
        """Add to a counter."""
        if by:
            self.w[what] = int(self.r[what]) + by

    def cached(self) -> Array:
        """All entries' samples, in no order. A copy."""
        return self._dense[: self.r[W.COUNT]].copy()

    def standing(self, samples: Array, crowd: Crowd) -> Standing:
        """What policies ask for. An augmented entry is of no more use to a job that was served it."""
        unseen = ~self.seen[samples] & crowd.live
        once = (self.place[samples] & W.FORM) == W.AUGMENTED
        if once.any():
            for kin in crowd.kin.values():
                unseen[once & ((self.used[samples] & kin) != 0)] &= ~kin
        need = W.ones(unseen)
        times = np.full(len(samples), NEVER, np.int64) if crowd.due is None else crowd.due[samples]
        return Standing(need, self.place[samples] >> W.SEAT_SHIFT & W.SEAT_MASK, times, crowd.jobs)

    def fresh(self, samples: Array, crowd: Crowd) -> Array:
        """What samples would be worth as entries that one job made and was served."""
        now = self.standing(samples, crowd)
        return self.policy.worth(Standing(now.need, np.ones_like(now.uses), now.due, now.jobs))

    def least(self, count: int, forms: tuple[int, ...], crowd: Crowd) -> tuple[Array, Array]:
        """About ``count`` entries worth least of a random choice, least first, and what each is worth."""
        held, looked = int(self.r[W.COUNT]), max(PROBES, 4 * count)
        some = self._of(forms, self._dense[self._chance(held, looked)])
        if not len(some) and held > looked:  # a form of few entries
            some = self._of(forms, self._dense[self._chance(held, held)])
        worth = self.policy.worth(self.standing(some, crowd))
        first = np.argsort(worth, kind="stable")[:count]
        return some[first], worth[first]

    def _chance(self, held: int, count: int) -> Array:
        """Up to ``count`` positions of so many, each once, as chance will have it."""
        step = 1
        while held > 2 and gcd(step := self.rng.randrange(1, held), held) > 1:
            pass
        found: Array = (self.rng.randrange(max(1, held)) + step * np.arange(min(held, count))) % max(1, held)
        return found

    def _of(self, forms: tuple[int, ...], some: Array) -> Array:
        """Those held in one of these forms."""
        if len(forms) == len(W.FORMS):
            return some
        among = np.zeros(W.FORM + 1, bool)
        among[list(forms)] = True
        found: Array = some[among[self.place[some] & W.FORM]]
        return found

    def reserve(self, entry: Entry, size: int, seat: int, crowd: Crowd, writer: int = 0) -> Grant:
        """Make room for a newcomer worth more than what goes for it. It is served to nobody before it is settled.

        ``writer``: the process that will write it.
        """
        sample, form = entry
        if self.place[sample] or not 0 < size <= min(int(self.r[W.BUDGET + form - 1]), W.MOST_BYTES):
            self.count(W.REFUSED)
            return Grant(granted=False, evicted=[])
        victims = self._victims(form, size, int(self.fresh(np.array([sample]), crowd)[0]), crowd)
        if victims is None:
            self.count(W.REFUSED)
            return Grant(granted=False, evicted=[])
        evicted = [self.remove(victim) for victim in victims]
        self.count(W.EVICTED, len(evicted))
        self.w[self.dims.used + sample] = writer
        self.w[self.dims.place + sample] = form | W.ARRIVING | seat << W.SEAT_SHIFT | size << W.BYTES_SHIFT
        self.count(W.BYTES + form - 1, size)
        return Grant(granted=True, evicted=evicted)

    def room(self, form: int) -> bool:
        """Room for one more of the size that entries of this form have on average; of all forms, until it is known."""
        held, budget = int(self.r[W.BYTES + form - 1]), int(self.r[W.BUDGET + form - 1])
        typical = division.typical(self.r, form)
        return held + (held // max(1, int(self.r[W.COUNT])) if typical is None else typical) < budget

    def over(self) -> tuple[int, ...]:
        """Forms that hold more than their share: the room was divided anew."""
        return tuple(form + 1 for form in range(3) if self.r[W.BYTES + form] > self.r[W.BUDGET + form])

    def shed(self, count: int, crowd: Crowd) -> list[Entry]:
        """Have up to ``count`` entries go that are over their form's share, those worth least first."""
        gone: list[Entry] = []
        for sample in self.least(count, over, crowd)[0].tolist() if (over := self.over()) else ():
            if int(self.place[sample]) & W.FORM in self.over():
                gone.append(self.remove(sample))
        self.count(W.EVICTED, len(gone))
        return gone

    def _victims(self, form: int, size: int, worth: int, crowd: Crowd) -> list[int] | None:
        held = [int(count) for count in self.r[W.BYTES : W.BYTES + 3]]
        budget = [int(count) for count in self.r[W.BUDGET : W.BUDGET + 3]]
        chosen: list[int] = []
        freed = self._free(held[form - 1] + size - budget[form - 1], (form,), worth, chosen, crowd)
        if freed is None:
            return None
        # Another form may not yet have shrunk to a smaller share: its entries go, whatever they are worth.
        lacking = sum(held) + size - sum(budget) - freed
        return chosen if self._free(lacking, self.over(), NEVER, chosen, crowd) is not None else None

    def _free(self, lacking: int, forms: tuple[int, ...], worth: int, chosen: list[int], crowd: Crowd) -> int | None:
        freed = 0
        while lacking > freed:
            candidates, values = self.least(16 + len(chosen), forms, crowd)
            found = False
            for sample, value in zip(candidates.tolist(), values.tolist(), strict=True):
                if value >= worth or lacking <= freed:
                    break
                if sample not in chosen:
                    chosen.append(sample)
                    freed += int(self.place[sample]) >> W.BYTES_SHIFT
                    found = True
            if not found:
                return None
        return freed

    def settle(self, sample: int, seat: int, *, served: bool) -> bool:
        """The bytes are there. ``served``: the seat that made it was served it. False: it was taken away meanwhile."""
        word = int(self.place[sample])
        if not word & W.ARRIVING or word >> W.SEAT_SHIFT & W.SEAT_MASK != seat:
            return False
        self.w[self.dims.used + sample] = 1 << seat if served else 0
        position, logged = int(self.r[W.COUNT]), int(self.r[W.LOGGED])
        self.w[self.dims.place + sample] = word & ~W.WRITER | int(served) << W.SEAT_SHIFT
        self.w[self.dims.dense + position] = sample
        self.w[self.dims.where + sample] = position
        self.w[W.COUNT] = position + 1
        self.w[self.dims.log + logged % W.LOG] = sample
        self.w[W.LOGGED] = logged + 1
        self.count(W.ADMITTED)
        return True

    def serve(self, sample: int, seat: int) -> None:
        """A settled entry is served to this seat."""
        word = int(self.place[sample])
        self.w[self.dims.used + sample] = int(self.used[sample]) | 1 << seat
        if word >> W.SEAT_SHIFT & W.SEAT_MASK < W.SEAT_MASK:
            self.w[self.dims.place + sample] = word + (1 << W.SEAT_SHIFT)
        self.count(W.HITS + (word & W.FORM) - 1)

    def remove(self, sample: int) -> Entry:
        """Forget what is held of a sample, settled or on its way."""
        word = int(self.place[sample])
        form = word & W.FORM
        self.w[self.dims.place + sample] = W.NOWHERE
        self.count(W.BYTES + form - 1, -(word >> W.BYTES_SHIFT))
        if not word & W.ARRIVING:
            last, position = int(self.r[W.COUNT]) - 1, int(self._where[sample])
            moved = int(self._dense[last])
            self.w[self.dims.dense + position] = moved
            self.w[self.dims.where + moved] = position
            self.w[W.COUNT] = last
        return Entry(sample, form)

    def writing(self, seat: int) -> list[tuple[int, int]]:
        """Samples that a seat has reserved and not settled, and the process that writes each."""
        arriving = (self.place & W.WRITER) == W.ARRIVING | seat << W.SEAT_SHIFT
        samples = np.flatnonzero(arriving & (self.place & W.FORM > 0))
        return list(zip(samples.tolist(), self.used[samples].tolist(), strict=True))

    def abandon(self, seat: int) -> list[Entry]:
        """Forget what a seat was writing when its process died."""
        return [self.remove(sample) for sample, _ in self.writing(seat)]
