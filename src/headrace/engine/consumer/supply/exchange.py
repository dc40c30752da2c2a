"""Groups of indices as a shared cache answers them: what it has of each, and in completion order others in exchange."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from headrace.cache.book import Answer, Serving
from headrace.cache.words import NOWHERE, Array
from headrace.core.errors import StateMismatch
from headrace.engine.consumer.ordering.groups import Groups
from headrace.engine.consumer.ordering.saved import bitmap
from headrace.engine.consumer.supply.hits import Hits
from headrace.engine.staging.plans import LOOK, Allotted


class Answering(Protocol):
    """Who answers requests: a share in a cache, or nobody's."""

    @property
    def badge(self) -> tuple[int, int]:
        """Of the rank that is answered."""

    def begin(self, epoch: int, *, members: Array | None = None, done: Iterable[int] = ()) -> None:
        """See ``Share``."""

    def request(self, asked: Array, *, exchange: bool = True) -> Answer:
        """See ``Share``."""


class Unshared:
    """For an epoch that was begun with a cache and goes on without: the rest of it, as asked as far as possible."""

    badge = (-1, 0)

    def __init__(self) -> None:
        """An epoch of nothing."""
        self._left: dict[int, None] = {}

    def begin(self, epoch: int, *, members: Array | None = None, done: Iterable[int] = ()) -> None:
        """See ``Share``."""
        assert members is not None
        self._left = dict.fromkeys(members.tolist())
        for sample in done:
            self._left.pop(sample, None)

    def request(self, asked: Array, *, exchange: bool = True) -> Answer:
        """See ``Share``."""
        found = [sample for sample in asked.tolist() if sample in self._left and self._left.pop(sample, 0) is None]
        while len(found) < len(asked):
            found.append(self._left.popitem()[0])
        return Answer([Serving(sample, NOWHERE, NOWHERE) for sample in found], [], [])


class Numbering(NamedTuple):
    """The samples that an epoch is of, and what the cache calls them."""

    members: Array | None
    """Indices, each of them once in an epoch; None where the sampler may repeat some or leave some out."""
    origins: Array | None
    """The cache's number of each index; None: the same."""
    length: int
    """Indices that the dataset has."""
    total: int
    """Numbers that the cache has for its samples."""

    def knows(self, indices: list[Any]) -> bool:
        """Whether the cache has numbers for all of these."""
        return all(type(index) is int and 0 <= index < self.length for index in indices)

    def samples(self, indices: Array) -> Array:
        """What the cache calls them."""
        found: Array = indices if self.origins is None else self.origins[indices]
        return found


class Pending(list[list[Any]]):
    """Batches to be made, and what of the epoch was delivered when they were: only together do they make sense."""

    def __init__(self, groups: Iterable[list[Any]], done: Array) -> None:
        super().__init__(groups)
        self.done = done


class _At(NamedTuple):
    """Changed by one store."""

    head: list[Any] | None
    answered: list[Any] | None
    """The group of the order that the newest head stands for; it may still be the order's head."""
    served: int
    """Samples so far."""


class ExchangedGroups:
    """``Groups`` with a cache between the sampler and the workers.

    What was served is noted here, by one store together with the group it is in. Until that is done the ledger's word
    does not count: after an interrupt it is told anew what was served. So a sample is served once, whatever happens.
    """

    def __init__(
        self, groups: Groups, share: Answering, numbering: Numbering, epoch: int, hits: Hits, done: Array | None
    ) -> None:
        """``done``: indices that were delivered of this epoch; samples are exchanged. None: they are not."""
        self._groups, self._share, self._numbering, self._epoch, self._hits = groups, share, numbering, epoch, hits
        self._done = _NOTHING if done is None else done
        self._exchanges = done is not None
        members = numbering.members
        if done is not None:
            assert members is not None
            if not np.isin(done, members).all():
                msg = "load_state_dict(state): samples were delivered that this loader's sampler does not draw"
                raise StateMismatch(msg)
        self._index: Array | None = None
        if members is not None and numbering.origins is not None:
            self._index = np.full(int(numbering.origins.max()) + 1, -1, np.int64)
            self._index[numbering.samples(members)] = members
        self._served = np.empty(0 if members is None or done is None else len(members), np.int64)  # in the order served
        self._looked = np.zeros(0 if self._exchanges else numbering.total, bool)  # samples that were asked for
        self._at = _At(None, None, 0)
        self._agreed = False  # whether the ledger's word is what is noted here

    def head(self) -> list[Any] | None:
        """The next group, or None at the end of the epoch; the same one until it was ``taken``."""
        at = self._at
        if at.head is not None:
            return at.head
        drawn = self._groups.head()
        if drawn is not None and drawn is at.answered:
            self._groups.taken()
            drawn = self._groups.head()
        if drawn is None:
            return None
        if not self._agreed:
            self._begin()
        self._agreed = False
        head, served = self._answered(drawn)
        end = at.served + len(served)
        self._served[at.served : end] = served
        self._at = _At(head, drawn, end)
        self._agreed = True
        return head

    def _begin(self) -> None:
        members = self._numbering.members
        known = None if members is None else self._numbering.samples(members)
        self._share.begin(self._epoch, members=known, done=self._numbering.samples(self._so_far()).tolist())

    def _so_far(self) -> Array:
        """All that was served."""
        found: Array = np.concatenate([self._done, self._served[: self._at.served]])
        return found

    def _answered(self, drawn: list[Any]) -> tuple[list[Any], Array]:
        """The group to hand out, and the indices that were served by it in exchange."""
        if not self._numbering.knows(drawn):
            return list(drawn), _NOTHING
        if self._exchanges:
            return self._exchanged(np.array(drawn, np.int64))
        samples = self._numbering.samples(np.array(drawn, np.int64))
        found = {each.sample: each for each in self._request(np.unique(samples[~self._looked[samples]]))}
        self._looked[samples] = True
        plans = [(LOOK, NOWHERE) if each is None else (each.form, each.keep) for each in _once(found, samples.tolist())]
        return Allotted(drawn, plans, self._share.badge), _NOTHING

    def _exchanged(self, indices: Array) -> tuple[list[Any], Array]:
        servings: list[Serving] = []
        asked = self._numbering.samples(indices)
        while len(asked):  # what is left of an epoch that was broken off may be drawn again beside it
            _, at = np.unique(asked, return_index=True)
            servings += self._request(asked[np.sort(at)])
            asked = np.delete(asked, at)
        samples = np.array([each.sample for each in servings], np.int64)
        served: Array = samples if self._index is None else self._index[samples]
        plans = [(each.form, each.keep) for each in servings]
        return Allotted(served.tolist(), plans, self._share.badge), served

    def _request(self, asked: Array) -> list[Serving]:
        if not len(asked):
            return []
        servings = self._share.request(asked, exchange=self._exchanges).servings
        self._hits.count(servings, asked)
        return servings

    @property
    def drawn(self) -> list[Any] | None:
        """The head, if it was drawn."""
        return self._at.head

    def waited_for(self) -> tuple[int, int]:
        """Nothing announces itself."""
        return -1, 0

    def abandon(self) -> None:
        """Nothing more is needed."""

    def taken(self) -> None:
        """The head is in somebody else's care."""
        self._at = self._at._replace(head=None)

    def again(self, pending: list[list[Any]]) -> "ExchangedGroups":
        """The same, but ``pending`` first, which ``progress`` gave: they are asked for again."""
        groups = self._groups.again(pending)
        done = pending.done if isinstance(pending, Pending) else None
        return ExchangedGroups(groups, self._share, self._numbering, self._epoch, self._hits, done)

    def progress(self, held: list[list[Any]], besides: list[list[Any]] | None = None) -> dict[str, Any]:
        """For a resume: ``held``, served and not delivered, and what waits here; not the head if it is ``besides``."""
        at = self._at
        head = [list(at.head)] if at.head and not any(at.head is group for group in besides or ()) else []
        rest = self._groups.progress([], [] if at.answered is None else [at.answered])
        pending = held + head + rest["pending"]
        if not self._exchanges:
            return rest | {"pending": pending}
        done = np.concatenate([self._done, self._served[: at.served]])
        owed = [index for group in held + head for index in group]
        done = np.setdiff1d(done, np.array(owed, np.int64))
        return rest | {"pending": Pending(pending, done), "exchanged": bitmap(done)}


_NOTHING: Array = np.empty(0, np.int64)


def _once(found: dict[int, Serving], samples: list[int]) -> Iterator[Serving | None]:
    """What was found of each sample, where it is first listed."""
    return (found.pop(sample, None) for sample in samples)
