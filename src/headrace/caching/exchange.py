"""Groups of indices as a shared cache answers them: what it has of each, and in completion order others in exchange."""

from collections.abc import Sequence
from itertools import starmap
from typing import Any, NamedTuple

import numpy as np

from headrace.cache.backends.entry_word import LOOK, NOWHERE, Array
from headrace.cache.entries.entry import Bytes
from headrace.cache.remaining import Remaining
from headrace.cache.serving import Answer, unanswered
from headrace.caching.membership import Hits, Membership
from headrace.caching.plans import CachePlace, Plan, pack_plans
from headrace.core.errors import StateMismatch
from headrace.engine.ordering.saved import bitmap
from headrace.sched.hand import NOT_YET, NotYet
from headrace.sched.source import Group, Source


class NoCache:
    """Substitute for a membership, for an epoch that was begun with a cache and goes on without: the rest of it, as
    asked as far as possible.
    """

    def begin(self, outside: Array | None) -> None:
        """Do nothing: nobody is told."""

    def request(self, asked: Array, remaining: Remaining | None) -> Answer:
        """The answer for the samples asked for, of what remains."""
        return unanswered(asked, remaining)

    def saw(self, samples: Array) -> None:
        """Do nothing: nobody is told."""


class SampleIds(NamedTuple):
    """The samples that an epoch is of, and what the cache calls them."""

    members: Array | range | None
    """Indices, each of them once in an epoch; None where the sampler may repeat some or leave some out."""
    origins: Array | None
    """The cache's number of each index; None: the same."""
    length: int
    """Indices that the dataset has."""
    total: int
    """Numbers that the cache has for its samples."""

    @property
    def is_all(self) -> bool:
        """True if the epoch is of all that the cache has numbers for."""
        return isinstance(self.members, range) and self.origins is None and len(self.members) == self.total

    @property
    def is_plain(self) -> bool:
        """True if each index has a number of its own: a subset may have a sample twice."""
        return self.origins is None or len(np.unique(self.origins)) == len(self.origins)

    def known(self) -> Array:
        """The members, as an array."""
        assert self.members is not None
        found: Array = np.asarray(self.members, np.int64)
        return found

    def knows(self, indices: list[Any]) -> bool:
        """True if the cache has numbers for all of these."""
        return all(type(index) is int and 0 <= index < self.length for index in indices)

    def samples(self, indices: Array) -> Array:
        """The numbers that the cache has for these indices."""
        found: Array = indices if self.origins is None else self.origins[indices]
        return found


class ExchangedGroups:
    """Groups with a cache between their source and the workers: a ``Source``.

    What was served is noted here, so a sample is served once, whatever a cache says.
    """

    def __init__(
        self,
        groups: Source,
        place: Membership | NoCache,
        numbering: SampleIds,
        hits: Hits,
        done: Array | None,
        job: str = "",
        *,
        strayed: bool = False,
    ) -> None:
        """``done``: indices that were delivered of this epoch; samples are exchanged. None: they are not.

        ``job``: what a state says of whose it is. ``strayed``: others than those drawn were served of this epoch.
        """
        self._place, self._numbering, self._hits, self._job = place, numbering, hits, job
        self._groups = groups
        self._asked: list[Any] | None = None  # drawn, and not answered yet
        self._done = _NOTHING if done is None else done
        self._exchanges, self._strayed = done is not None, strayed
        members = numbering.members
        if done is not None:
            assert members is not None
            if isinstance(members, range):
                drawn = not len(done) or int(done.max()) < len(members)
            else:
                drawn = bool(np.isin(done, members).all())
            if not drawn:
                raise StateMismatch(
                    "load_state_dict(state): samples were delivered that this loader's sampler does not draw"
                )
        self._index: Array | None = None
        if members is not None and numbering.origins is not None:
            self._index = np.full(int(numbering.origins.max()) + 1, -1, np.int64)
            known = numbering.known()
            self._index[numbering.samples(known)] = known
        small = numbering.length < 1 << 31
        self._served = np.empty(  # in the order served
            0 if members is None or done is None else len(members), np.int32 if small else np.int64
        )
        self._count = 0  # of those
        self._remaining: Remaining | None = None
        self._begun = False

    def next(self) -> Group | NotYet | None:
        """The next group, answered; None at the end of the epoch."""
        if self._asked is None:
            drawn = self._groups.next()
            if drawn is None or drawn is NOT_YET:
                return drawn
            self._asked = drawn.indices
        if not self._begun:
            self._place.begin(self._outside())
            self._begun = True
        group, served = self._answered(self._asked)
        self._asked = None
        self._served[self._count : self._count + len(served)] = served
        self._count += len(served)
        if self._remaining is not None:
            self._remaining.take(self._numbering.samples(served))
        return group

    def _outside(self) -> Array | None:
        """Samples of the cache that this job will not see in the epoch: others than the dataset's, and what it saw."""
        done = self._numbering.samples(self._so_far())
        origins = self._numbering.origins
        if origins is None:
            return done
        seen = np.ones(self._numbering.total, bool)
        seen[origins] = False
        seen[done] = True
        return np.flatnonzero(seen)

    def _so_far(self) -> Array:
        """All that was served so far."""
        found: Array = np.concatenate([self._done, self._served[: self._count].astype(np.int64)])
        return found

    def _left(self) -> Remaining:
        if self._remaining is None:
            numbering = self._numbering
            known = None if numbering.is_all else numbering.samples(numbering.known())
            done = numbering.samples(self._so_far())
            self._remaining = Remaining(numbering.total, known, done, np.random.default_rng())
        return self._remaining

    def _answered(self, drawn: list[Any]) -> tuple[Group, Array]:
        """The group to hand out, and the indices that were served by it in exchange."""
        if not self._numbering.knows(drawn):
            return Group(list(drawn)), _NOTHING
        indices = np.array(drawn, np.int64)
        if self._exchanges:
            return self._exchanged(indices)
        # A sampler may repeat a sample within a batch; the cache is asked once.
        samples, first = np.unique(self._numbering.samples(indices), return_index=True)
        answer = self._place.request(samples, None)
        self._place.saw(samples)
        plans = [Plan(LOOK, NOWHERE)] * len(drawn)  # where it is drawn again in a group, whoever makes it looks
        for at, word, keep in zip(first.tolist(), answer.words.tolist(), answer.keep.tolist(), strict=True):
            plans[at] = Plan(word, keep)
        return _allotted(drawn, plans), _NOTHING

    def _exchanged(self, indices: Array) -> tuple[Group, Array]:
        # What is left of an epoch that was broken off may be drawn again beside it, and counts as a draw.
        asked, remaining = self._numbering.samples(indices), self._left()
        unique = np.array(list(dict.fromkeys(asked.tolist())), np.int64)
        answer = self._place.request(unique, remaining)
        extra = len(asked) - len(unique)
        if extra:
            more = unanswered(remaining.some(extra, answer.samples), None)
            answer = Answer(
                np.concatenate([answer.samples, more.samples]),
                np.concatenate([answer.words, more.words]),
                np.concatenate([answer.keep, more.keep]),
            )
        self._place.saw(answer.samples)
        exchanged = len(set(answer.samples.tolist()).difference(asked.tolist()))
        self._hits.exchanged += exchanged
        self._strayed = self._strayed or bool(exchanged)
        served = answer.samples if self._index is None else self._index[answer.samples]
        plans = list(starmap(Plan, zip(answer.words.tolist(), answer.keep.tolist(), strict=True)))
        return _allotted(served.tolist(), plans), served

    def put_back(self, groups: list[list[Any]]) -> None:
        """See ``Source``: they are asked for again."""
        if self._exchanges:
            self._done = np.flatnonzero(np.unpackbits(self._delivered(groups), count=self._numbering.length))
            self._count, self._remaining, self._begun = 0, None, False
        self._groups.put_back(groups + ([] if self._asked is None else [self._asked]))
        self._asked = None

    def state(self, owed: list[list[Any]]) -> dict[str, Any]:
        """See ``Source``."""
        rest = self._groups.state([] if self._asked is None else [list(self._asked)])
        found = rest | {"pending": owed + rest["pending"]} | ({"job": self._job} if self._job else {})
        # As long as nothing but what was drawn came, what was delivered follows from the order.
        strayed = self._exchanges and self._strayed
        return found | ({"exchanged": bitmap(self._delivered(owed))} if strayed else {})

    def wakes(self) -> tuple[int, int]:
        """No descriptor: nothing announces itself."""
        return self._groups.wakes()

    def close(self) -> None:
        """See ``Source``."""
        self._groups.close()

    def _delivered(self, held: list[list[Any]]) -> Bytes:
        """A bit for each index: whether it was served, and is not ``held``."""
        waiting = np.array([index for group in held for index in group], np.int64)
        if self._remaining is not None and self._numbering.origins is None:
            bits = self._remaining.served()
            np.bitwise_and.at(bits, waiting >> 3, ~(128 >> (waiting & 7)).astype(np.uint8))
            return bits
        # Samples are served in no order: to mark 50 million of them takes half a second.
        delivered = np.zeros(self._numbering.length, bool)
        delivered[self._done] = True
        delivered[self._served[: self._count]] = True
        delivered[waiting] = False
        return np.packbits(delivered)


def _allotted(indices: list[Any], plans: list[Plan]) -> Group:
    """A group, with what the cache says of each sample; no row was brought for it."""
    return Group(indices, [CachePlace(plan) for plan in plans], _packed)


def _packed(made_of: Sequence[CachePlace | None]) -> bytes:
    return pack_plans([Plan(0, 0) if place is None else place.plan for place in made_of])


_NOTHING: Array = np.empty(0, np.int64)
