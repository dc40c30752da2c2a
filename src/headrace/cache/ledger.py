"""What a rank of a job does with the ledger of a shared cache. Every method is one short critical section: the caller
holds the lock. No clock, no I/O: time is an argument, nanoseconds that all jobs of the ledger count alike.

What is served is marked before it is handed out, in words that outlive the process, so no sample is served twice in an
epoch; requests are answered from what is not marked, as many as were asked for, so none is left out. A rank that dies
comes back with the samples it knows it delivered, and goes on from there.
"""

import random
from collections.abc import Iterable

import numpy as np

from headrace.cache import division
from headrace.cache import words as W
from headrace.cache.book import Answer, Entry, Grant, Serving
from headrace.cache.candidates import Candidates
from headrace.cache.division import Division, Parts
from headrace.cache.entries import Entries
from headrace.cache.policies import Policy
from headrace.cache.roster import Crowd, Roster
from headrace.cache.words import Array, Dims, Words
from headrace.core.errors import CacheError

SHED = 8
"""Of the samples of a request, one in so many may go for a division of the room that has changed."""


def found(words: Words, dims: Dims, budget: tuple[int, int, int]) -> None:
    """Lay out an empty ledger in memory that is zero: bytes for encoded, decoded and augmented samples."""
    for form, size in enumerate(budget):
        words[W.BUDGET + form] = size
    parts = division.parts_of(budget)
    for at, word in enumerate(division.pack(division.Division(0, parts, fixed=False, before=parts))):
        words[W.DIVISION + at] = word
    words[W.SAMPLES] = dims.samples


class Seat:
    """A rank of a job, sitting at the ledger. ``due``: when a single job asks for each sample next, if it knows."""

    def __init__(
        self, words: Words, view: Array, *, policy: Policy, name: int, group: int, timeout: int, seed: int
    ) -> None:
        """``name``: this rank's own, at random; ``group``: the same for all ranks of a job; neither is 0."""
        self.w, self.r, self.dims = words, view, Dims(int(view[W.SAMPLES]))
        self.policy, self.name, self.group, self.timeout = policy, name, group, timeout
        rng = random.Random(seed)
        self.entries = Entries(words, view, self.dims, policy, rng)
        self._roster = Roster(view, self.dims)
        self.number = -1
        self.due: Array | None = None
        self._rng = rng
        self._candidates = Candidates(self.entries, 0, rng)

    @property
    def _at(self) -> int:
        return self.dims.seat(self.number)

    @property
    def seated(self) -> bool:
        """Whether the seat is still this rank's: one that was silent for long may have lost it."""
        return self.number >= 0 and int(self.r[self._at + W.J_NAME]) == self.name

    def join(self, now: int) -> list[Entry]:
        """Take a free seat, or that of who was silent for longest; what silent ranks were writing must be deleted.

        For a rank that had another one before, everything that is here counts as used: nobody knows what it had.
        """
        again = self.number >= 0
        with self.entries.changing():
            vacant = self._roster.vacant(now - self.timeout)
            if vacant is None:
                msg = f"the cache is used by {W.SEATS} ranks at once, and takes no more"
                raise CacheError(msg + ": give this job a cache of its own")
            self.number = vacant
            at, bit = self._at, 1 << self.number
            self.w[at + W.J_STATE] = W.EMPTY
            self.w[at + W.J_NAME] = 0
            abandoned = self.entries.abandon(self.number)
            for silent in self._roster.silent(now - self.timeout):
                abandoned += self.entries.abandon(silent)
            place, used = self.entries.place, self.entries.used
            settled = (place & W.ARRIVING) == 0
            for sample in np.flatnonzero(settled & (used & bit != 0)).tolist():
                self.w[self.dims.used + sample] = int(used[sample]) & ~bit
            for sample in np.flatnonzero(settled & (place & W.FORM == W.AUGMENTED)).tolist() if again else ():
                self.w[self.dims.used + sample] = int(used[sample]) | bit
            for fact in range(W.J_RANK, W.J_RANK + W.J_FACTS):
                self.w[at + fact] = 0
            self.w[at + W.J_GROUP] = self.group
            self.w[at + W.J_BEAT] = now
            self.w[at + W.J_NAME] = self.name
        self._candidates = Candidates(self.entries, self.number, self._rng)
        return abandoned

    def leave(self) -> list[Entry]:
        """Give the seat up; what it was writing must be deleted."""
        if not self.seated:
            return []
        with self.entries.changing():
            self.w[self._at + W.J_STATE] = W.EMPTY
            abandoned = self.entries.abandon(self.number)
            self.w[self._at + W.J_NAME] = 0
        self.number = -1
        return abandoned

    def begin(self, epoch: int, now: int, *, members: Array | None = None, done: Iterable[int] = ()) -> None:
        """An epoch of the samples ``members`` (None: all), of which ``done`` were delivered before, in another life."""
        bit = 1 << self.number
        with self.entries.changing():
            self.w[self._at + W.J_STATE] = W.TURNING
            self.w[self._at + W.J_EPOCH] = epoch
            self.w[self._at + W.J_BEAT] = now
            seen = self.entries.seen & ~bit if members is None else self.entries.seen | bit
            if members is not None:
                seen[members] &= ~bit
            past = np.fromiter(done, np.int64)
            seen[past] |= bit
            self.w[self.dims.seen : self.dims.seen + self.dims.samples] = seen
            self.w[self._at + W.J_SERVED] = len(past)
            self.w[self._at + W.J_STATE] = W.READY
        self._candidates.restart()

    def beat(self, now: int) -> None:
        """Say that this rank lives; every request does."""
        self.w[self._at + W.J_BEAT] = now

    def crowd(self, now: int) -> Crowd:
        """All ranks that were heard of lately and are in an epoch."""
        crowd = self._roster.crowd(now - self.timeout, self.due)
        self._candidates.kin = crowd.kin.get(self.group, 0) | 1 << max(0, self.number)
        return crowd

    def request(self, asked: Array, now: int, *, exchange: bool = True) -> Answer:
        """As many samples as were asked for, none of them seen by this rank in this epoch, and all marked seen.

        ``asked``: what the rank's sampler drew, without repeats, of its members. ``exchange``: others may be served in
        their place, if the policy exchanges.
        """
        with self.entries.changing():
            self.beat(now)
            crowd = self.crowd(now)
            shed = self.entries.shed(-(-len(asked) // SHED), crowd)
            hits, misses = self._candidates.chosen(asked, crowd, exchange=exchange and self.policy.exchanges)
            self._mark(hits, misses)
            keep = self._keep(misses, crowd)
            servings = [Serving(sample, int(self.entries.place[sample]) & W.FORM, W.NOWHERE) for sample in hits]
            servings += [Serving(sample, W.NOWHERE, form) for sample, form in zip(misses, keep, strict=True)]
            self.entries.count(W.EXCHANGED, len({*hits, *misses}.difference(asked.tolist())))
            dropped, refills = self._drop(hits, crowd) if self.policy.drops else ([], [])
        return Answer(servings, [*shed, *dropped], refills)

    def _keep(self, misses: list[int], crowd: Crowd) -> list[int]:
        """In which form each is worth keeping, as far as can be told before its size is known."""
        if not misses:
            return []
        room = [form for form in (W.AUGMENTED, W.DECODED, W.ENCODED) if self.entries.room(form)]
        if room and not self.policy.drops:
            return [room[0]] * len(misses)
        worth = self.entries.fresh(np.array(misses, np.int64), crowd)
        if room:
            return [room[0] if value > 0 else W.NOWHERE for value in worth.tolist()]
        victims, values = self.entries.least(len(misses), W.FORMS, crowd)
        keep = [W.NOWHERE] * len(misses)
        order = np.argsort(-worth, kind="stable").tolist()
        for at, victim, value in zip(order, victims.tolist(), values.tolist(), strict=False):
            if worth[at] > value:
                keep[at] = int(self.entries.place[victim]) & W.FORM
        return keep

    def _mark(self, hits: list[int], misses: list[int]) -> None:
        bit, seen = 1 << self.number, self.entries.seen
        for sample in (*hits, *misses):
            self.w[self.dims.seen + sample] = int(seen[sample]) | bit
        for sample in hits:
            self.entries.serve(sample, self.number)
        self.entries.count(W.MISSES, len(misses))
        self.entries.count(self._at + W.J_SERVED, len(hits) + len(misses))

    def _drop(self, hits: list[int], crowd: Crowd) -> tuple[list[Entry], list[Serving]]:
        some = np.array(hits, np.int64)
        spent = some[self.policy.worth(self.entries.standing(some, crowd)) <= 0].tolist()
        dropped = [self.entries.remove(sample) for sample in spent]
        self.entries.count(W.EVICTED, len(dropped))
        if not self.policy.refills or not dropped:
            return dropped, []
        refills: list[Serving] = []
        taken: set[int] = set()
        for entry in dropped:
            for _ in range(32):  # where nearly all is cached a slot may wait for the next miss
                sample = self._rng.randrange(self.dims.samples)
                if not self.entries.place[sample] and sample not in taken:
                    taken.add(sample)
                    refills.append(Serving(sample, W.NOWHERE, entry.form))
                    break
        self.entries.count(W.REFILLED, len(refills))
        return dropped, refills

    def agree(self, parts: Parts | None, room: int, now: int) -> None:
        """This rank has come, and its user wants ``room`` bytes divided so, if he says; see ``division.agree``."""
        with self.entries.changing():
            alone = not self._roster.anybody(now - self.timeout, self.number)
            division.agree(self.w, self.r, parts, room, alone=alone)

    def divide(self, new: Division) -> bool:
        """Have a new division hold; False if another came first, or a user has fixed one."""
        with self.entries.changing():
            before = division.current(self.r)
            if before.fixed or before.number != new.number - 1:
                return False
            division.divide(self.w, self.r, new, int(self.r[W.ROOM]))
            division.fade(self.w, self.r)
        return True

    def reserve(self, sample: int, form: int, size: int, now: int, writer: int = 0) -> Grant:
        """Room for an entry of ``size`` bytes; see ``Entries.reserve``. Follow it by ``settle`` or ``cancel``."""
        with self.entries.changing():
            crowd = self.crowd(now)
            return self.entries.reserve(Entry(sample, form), size, self.number, crowd, writer)

    def settle(self, sample: int, *, served: bool = True) -> bool:
        """What was reserved has been written. False: somebody took this rank for dead; delete what was written."""
        with self.entries.changing():
            return self.seated and self.entries.settle(sample, self.number, served=served)

    def adopt(self, sample: int, form: int, size: int, now: int) -> bool:
        """Take in an entry that is there already, from another life of the cache, if there is room for it."""
        with self.entries.changing():
            free = int(self.r[W.BUDGET + form - 1]) - int(self.r[W.BYTES + form - 1])
            if form == W.AUGMENTED or size > free:  # nobody knows who was served that augmentation
                return False
            granted = self.entries.reserve(Entry(sample, form), size, self.number, self.crowd(now)).granted
            return granted and self.entries.settle(sample, self.number, served=False)

    def cancel(self, sample: int) -> None:
        """What was reserved could not be written."""
        with self.entries.changing():
            word = int(self.entries.place[sample])
            if word & W.ARRIVING and word >> W.SEAT_SHIFT & W.SEAT_MASK == self.number and self.seated:
                self.entries.remove(sample)

    def bury(self, samples: Iterable[int]) -> list[Entry]:
        """Forget what processes of this rank had reserved that are gone; it must be deleted."""
        with self.entries.changing():
            writing = {sample for sample, _ in self.entries.writing(self.number)} if self.seated else set()
            return [self.entries.remove(sample) for sample in samples if sample in writing]

    def lost(self, sample: int, form: int) -> None:
        """What was served as a hit in that form is not there, or not what it should be."""
        with self.entries.changing():
            word = int(self.entries.place[sample])
            if word & W.FORM == form and not word & W.ARRIVING:
                self.entries.remove(sample)
                self.entries.count(W.LOST)
