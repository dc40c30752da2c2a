"""The choice of samples that a rank is served: of those it has still to serve, the cached ones, and for the rest
those that others need most.

Which samples were served the rank knows itself (``remaining.py``). What is asked of the cache here is only which of
them are held, and in which form: a wrong answer costs time.
"""

import math
import secrets
import time
from collections import deque
from typing import NamedTuple

import numpy as np

from headrace.cache.backends import entry_word as W
from headrace.cache.backends.backend import Entry, blocks
from headrace.cache.backends.entry_word import Array, Words
from headrace.cache.division import Rank
from headrace.cache.peers import JobReport
from headrace.cache.policies import standing
from headrace.cache.remaining import Remaining, RemainingPool
from headrace.cache.share import Share

AHEAD = 8
"""Misses looked at for each one that is fetched."""
SHED = 8
"""Of the samples of a request, one in so many may go for a division of the room that has changed."""
LITTLE, SELDOM = 0.001, 20
"""Publishing that takes longer, in seconds, is done again after so many times what it took beyond that."""


class Answer(NamedTuple):
    """Samples to be delivered, each with the word of the entry to begin with and the form to keep it in. The word
    is ``LOOK`` where an entry may be there by the time the sample is made; 0: from the store.
    """

    samples: Array
    words: Words
    keep: Array


def unanswered(asked: Array, remaining: Remaining | None) -> Answer:
    """An answer of which the cache says nothing: the samples asked for, or with ``remaining`` what there is of
    them, and others.
    """
    if remaining is not None:
        drawn = remaining.of(asked)
        asked = np.concatenate([drawn, remaining.some(len(asked) - len(drawn), drawn)])
    return Answer(asked, np.zeros(len(asked), np.uint64), np.zeros(len(asked), np.int64))


class Serving:
    """The serving of one rank. Used by one thread of one process."""

    def __init__(self, share: Share, most: float = math.inf, *, takes_augmented: bool = True) -> None:
        """The share stays the caller's. ``most``: times as many cached samples as chance would have are served.

        ``takes_augmented``: what others have augmented may be served. Not where a run shall be the same again.
        """
        self._takes_augmented = takes_augmented
        self.share, self._backend, self._peers = share, share.backend, share.peers
        self._name = f"{share.unit}.{secrets.token_hex(6)}"
        self._rng = np.random.default_rng()
        self._pool, self._logged, self._most = RemainingPool(self._rng), -1, most
        self._turn, self._rank = -1, Rank()
        self._mirror = np.zeros(0, np.uint8)
        self._served, self._found = 0, set[int]()  # samples of this epoch; of the last request those with a word
        self._unread: deque[tuple[int, Array]] = deque()  # such ones; and what ``_served`` was with them
        self._told, self._again = True, 0.0  # whether all but the newest is published; not before
        self._off: tuple[int, ...] | None = None
        self._given: dict[int, int] = {}  # by sample, the augmented entry that this rank was given last
        self.report(Rank())

    def report(self, rank: Rank) -> None:
        """Publish this rank's facts about itself."""
        # LoaderResources, for a new epoch says it again before anything new is known.
        self._rank = rank
        if not self._backend.rests:
            self._backend.report(self._name, JobReport(self._turn, rank).packed())

    @property
    def _epoch(self) -> str:
        return f"{self.share.unit}.{self._turn}"

    def begin(self, outside: Array | None = None) -> None:
        """Begin an epoch. ``outside``: samples that nobody of this job will see in it."""
        if self._turn >= 0:
            self._backend.forget(self._epoch)
        self._turn += 1
        self._mirror = np.zeros(-(-self._backend.samples // 8), np.uint8)
        self._told = True
        self._served, self._logged = 0, -1
        self._unread.clear()
        self._pool = RemainingPool(self._rng)
        self.report(self._rank)
        self._peers.look(now=True)
        if outside is not None and len(outside):
            self._tell(outside)

    def end(self) -> None:
        """End the epoch, if one is under way, and leave."""
        if self._turn >= 0:
            self._backend.forget(self._epoch)
        self._backend.leave(self._name)

    def saw(self, samples: Array, made: float = math.inf) -> None:
        """Note that these samples, which were requested last, are served: others may know.

        ``made``: as many samples of this epoch were made so far. Those that are to be had from the cache, or looked for
        there, nobody is told of before: what is still to be read must not give way.
        """
        self._served += len(samples)
        # Sets, for a batch is small: numpy's own takes 50 µs to begin.
        cached = np.fromiter(map(self._found.__contains__, samples.tolist()), np.bool_, len(samples))
        self._unread.append((self._served, samples[cached]))
        parts = [samples[~cached]]
        while self._unread and self._unread[0][0] <= made:
            parts.append(self._unread.popleft()[1])
        self._tell(np.concatenate(parts))

    def _tell(self, samples: Array) -> None:
        """Publish them. Nobody is told while nobody else is there."""
        np.bitwise_or.at(self._mirror, samples >> 3, np.left_shift(1, samples & 7).astype(np.uint8))
        if not self._peers.others or self._backend.rests or time.monotonic() < self._again:
            self._told = False
            return
        clock = time.monotonic if self._backend.slow else time.thread_time  # a busy machine makes nothing expensive
        began = clock()
        fresh = samples if self._told else np.flatnonzero(np.unpackbits(self._mirror, bitorder="little"))
        self._backend.saw(self._epoch, fresh, self._mirror)
        self._told, took = True, clock() - began
        self._again = time.monotonic() + SELDOM * (took - LITTLE) if took > LITTLE else 0.0

    def request(self, asked: Array, remaining: Remaining | None) -> Answer:
        """Choose as many samples as were asked for: those, or with ``remaining`` others of it. Marks nothing: see
        ``saw``.
        """
        answer = self._answer(asked, remaining)
        self._found = set(answer.samples[answer.words > 0].tolist())
        return answer

    def _answer(self, asked: Array, remaining: Remaining | None) -> Answer:
        self._peers.look()
        if self._backend.rests or self.share.is_left:
            return unanswered(asked, remaining)
        self.share.shed(-(-len(asked) // SHED))
        if remaining is None:
            return self._looked_up(asked)
        drawn = remaining.of(asked)
        if not self._peers.others or not self.share.policy.exchanges:
            more = remaining.some(len(asked) - len(drawn), drawn) if len(drawn) < len(asked) else drawn[:0]
            return self._looked_up(np.concatenate([drawn, more]))
        return self._exchanged(len(asked), drawn, remaining)

    def _looked_up(self, samples: Array) -> Answer:
        words = self._backend.words(samples)
        need = self._peers.need(samples) if self._peers.others else None
        found = self._looking(self._usable(samples, words), words, need)
        return Answer(samples, found, self._keep(need, words))

    def _exchanged(self, count: int, drawn: Array, remaining: Remaining) -> Answer:
        words = self._usable(drawn, self._backend.words(drawn))
        self._notice(remaining)
        hits, found = [drawn[words > 0]], [words[words > 0]]
        others, theirs = self._others(self._fair(count, remaining) - len(hits[0]), drawn, remaining)
        hits.append(others)
        found.append(theirs)
        lacking = count - len(hits[0]) - len(others)
        misses = self._misses(lacking, np.concatenate(hits), drawn[words == 0], remaining)
        held, need = self._backend.words(misses), self._peers.need(misses)
        found.append(self._looking(self._usable(misses, held), held, need))
        keep = self._keep(need, held)
        served = np.concatenate([*hits, misses])
        return Answer(served, np.concatenate(found), np.concatenate([np.zeros(count - lacking, np.int64), keep]))

    def _fair(self, count: int, remaining: Remaining) -> int:
        """Cached samples that a request may be served, as far as is known."""
        if self._most == math.inf:
            return count
        # Rounded at random: a share of a small batch is seldom a whole number.
        return min(count, int(count * self._most * self._pool.count / remaining.count + self._rng.random()))

    def _others(self, count: int, besides: Array, remaining: Remaining) -> tuple[Array, Words]:
        """Samples, up to ``count``, that are cached, and were not drawn."""
        samples, words = [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
        found = 0
        # Twice as many as are lacking: some have been served or replaced since. What is left over goes back.
        while found < count and len(some := self._pool.draw(2 * (count - found))):
            left = np.unique(remaining.of(some))
            left = left[~np.isin(left, np.concatenate([besides, *samples]))]
            usable = self._usable(left, self._backend.words(left))
            good = self._rng.permutation(np.flatnonzero(usable))
            self._pool.add(left[good[count - found :]])
            good = good[: count - found]
            samples.append(left[good])
            words.append(usable[good])
            found += len(good)
        return np.concatenate(samples), np.concatenate(words)

    def _notice(self, remaining: Remaining) -> None:
        """Take in what was added to the cache since the last time; the first time, all that there is."""
        arrived, self._logged = self._backend.arrivals(self._logged)
        if arrived is not None:
            self._pool.add(remaining.of(arrived))
            return
        # Few are left: to ask for their words costs less than to read the table.
        if remaining.count < self._backend.samples // 16:
            left = remaining.all()
            self._pool.fill(left[self._backend.words(left) > 0])
            return
        parts = [remaining.of(first + np.flatnonzero(words)) for first, words in blocks(self._backend)]
        self._pool.fill(np.concatenate(parts))

    def _misses(self, count: int, besides: Array, drawn: Array, remaining: Remaining) -> Array:
        """The misses that most others need too, first; of equals, those that were drawn."""
        if not count:
            return drawn[:0]
        taken = np.concatenate([besides, drawn])
        some = np.concatenate([drawn, remaining.some(AHEAD * count, taken)])
        urgency = self.share.policy.urgency(standing(self._peers.need(some), self._peers.units)).astype(np.float64)
        # Need is a whole number: what was drawn wins among equals, and chance where all else is the same.
        urgency[: len(drawn)] += 0.5
        urgency += self._rng.random(len(some)) * 0.4
        return some[np.argsort(-urgency, kind="stable")[:count]]

    def _usable(self, samples: Array, words: Words) -> Words:
        """The words of entries that may be served: of augmented ones, those that this job never had."""
        augmented = np.flatnonzero(W.forms(words) == W.AUGMENTED)
        if not len(augmented):
            return words
        if not self._takes_augmented:
            return np.where(W.forms(words) == W.AUGMENTED, np.uint64(0), words)
        entries = [Entry(int(samples[at]), int(words[at])) for at in augmented.tolist()]
        fresh = np.array(self._backend.claim(self.share.unit.job, entries), bool)
        fresh &= [self._given.get(entry.sample) != entry.word for entry in entries]  # whatever others say
        self._given.update(entries)
        found = words.copy()
        found[augmented[~fresh]] = 0
        return found

    def _looking(self, found: Words, held: Words, need: Array | None) -> Words:
        """The words ``found``, but ``LOOK`` for what another has taken on, and may have brought by the time it is
        made.

        ``need``: see ``_keep``.
        """
        if need is None:
            return found
        return np.where((held == 0) & (need < self._peers.others), np.uint64(W.LOOK), found)

    def _keep(self, need: Array | None, held: Words) -> Array:
        """The form in which each miss is worth keeping, as far as can be told before its size is known.

        ``need``: how many others have still to see each; None: nobody else is there.
        """
        keep = np.zeros(len(held), np.int64)
        absent = held == 0
        if not absent.any():
            return keep
        room, terms = self.share.room(), self.share.terms()
        budget = [
            size if self._peers.jobs > 1 or form != W.AUGMENTED else 0  # of no use to the job itself
            for form, size in zip(W.FORMS, terms.budget[:3], strict=True)
        ]
        free = terms.limit - sum(room.held[:3]) - room.others
        typical = self.share.typical()
        fit = [
            form
            for form in (W.AUGMENTED, W.DECODED, W.ENCODED)
            if room.held[form - 1] + max(1, typical[form - 1]) <= budget[form - 1] and typical[form - 1] <= free
        ]
        if fit and free > 0:
            keep[absent] = fit[0]
            return keep
        some = [form for form in W.FORMS if budget[form - 1]]
        if not some:
            return keep
        # Full: newcomers come in the forms' own proportions, and take the place of their like.
        form = int(self._rng.choice(some, p=np.array([budget[each - 1] for each in some]) / sum(budget)))
        if need is not None:
            keep[absent & (need > 0)] = form
        if (self.share.disk is not None and room.held[3] < terms.budget[3]) or self.share.may_take(room):
            keep[absent] = form
        return keep

    def recount(self) -> None:
        """Put right what is counted as held, after deaths and damage: by what two looks at the table agree about."""
        if self._backend.rests:
            return
        held = np.zeros(4, np.int64)
        for _, words in blocks(self._backend):
            held += W.sums(words[words > 0])
        off = tuple(int(there) - counted for there, counted in zip(held, self._backend.room().held, strict=True))
        if self._off is not None:
            # What is on its way shows in one look and not in the other.
            both = [min(a, b, key=abs) if a * b > 0 else 0 for a, b in zip(off, self._off, strict=True)]
            if any(both):
                self._backend.correct(both)
                off = tuple(a - b for a, b in zip(off, both, strict=True))
        self._off = off
