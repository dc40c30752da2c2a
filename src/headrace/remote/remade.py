"""Samples made on other hosts, as a worker beside the trainer takes them up."""

import pickle
from collections.abc import Callable
from typing import Any

from headrace.cache.backends import entry_word as W
from headrace.cache.entries.codec import Corrupt
from headrace.cache.share import Share
from headrace.caching.counts import Counter
from headrace.caching.plans import CachePlace, Caching, read_plans
from headrace.caching.staged import ROW, Staged
from headrace.core.errors import RemoteError
from headrace.engine.worker.maker import Making
from headrace.engine.worker.observer import Observer
from headrace.engine.worker.randomness.seeding import untouched
from headrace.fetching import wire
from headrace.fetching.arena import Arena
from headrace.fetching.fetched import FetchedDataset
from headrace.fetching.wire import Arrived
from headrace.ondevice.pixels.bundle import named
from headrace.remote.elsewhere import sample_entry
from headrace.remote.messages import EntryKind


class Intake:
    """The values of entries that lie in the arena."""

    def __init__(self, arena: Arena, *, compares: bool, pickled: bool) -> None:
        """``compares``: the first sample that comes is made here too, and must be the same. ``pickled``: pickles are
        taken, since the user has said so.
        """
        self._arena, self._compares, self._pickled = arena, compares, pickled
        self._codec = sample_entry.codec()
        self.observer: Observer | None = None

    def value(self, index: Any, place: Arrived, make: Callable[[], Any]) -> Any:
        """The value that came. ``make``: makes the same here. Raises ``RemoteError`` for what is not to be used."""
        entry, kind = bytearray(self._arena.piece(place.offset, place.size)), place.label
        if kind == EntryKind.UNFIT:
            words = entry.decode("utf-8", "replace")
            raise RemoteError(
                f"remote=: sample {index!r} cannot be carried from another host: it {words}. "
                "headrace.Ray(pickled=True) has such samples carried as pickles"
            )
        if kind == EntryKind.PICKLED and self._pickled:
            return pickle.loads(entry)  # noqa: S301  (from this run's own lanes, and the user has said so)
        try:
            sent = sample_entry.split(entry)
            value = self._codec.rebuild(sent.layout, sent.body)
        except (Corrupt, ValueError) as error:
            raise RemoteError(
                f"remote=: what came of sample {index!r} from another host makes no sense: {error}"
            ) from error
        if self.observer is not None:
            self.observer.made_elsewhere(sent.node.decode("ascii", "replace"), place.size, place.began, place.took)
        if self._compares:
            self._compares = False
            self._compare(index, value[1] if kind == EntryKind.STAGE else value, make)
        return value

    def _compare(self, index: Any, value: Any, make: Callable[[], Any]) -> None:
        with untouched():
            mine = sample_entry.packed(self._codec, make())
        if mine != sample_entry.packed(self._codec, value):
            raise RemoteError(
                f"remote=: sample {index!r} made on another host is not the one that this host makes, with the same "
                "code, versions and seed. Does the dataset read something that is another there, draw random numbers "
                "from a source of its own, or do the CPUs round differently? headrace.Ray(compare=False) takes samples "
                "as they come"
            )


class Remade(FetchedDataset):
    """``dataset[index]``, of what another host has made of it where there is something.

    What failed there is made here, where it raises as it always would, or does not.
    """

    def __init__(self, dataset: Any, arena: Arena | None, *, compares: bool = True, pickled: bool = False) -> None:
        super().__init__(dataset, None)
        assert arena is not None
        self._intake = Intake(arena, compares=compares, pickled=pickled)

    def watched_by(self, observer: Observer) -> None:
        """See ``FetchedDataset``."""
        super().watched_by(observer)
        self._intake.observer = observer

    def __call__(self, index: Any) -> Any:
        """The sample. The random numbers of this process are seeded for it."""
        place, self.place = self.place, None
        if place is None or place.label == EntryKind.FAILED:
            return named(index, self._get(index))
        return named(index, self._intake.value(index, place, lambda: self._get(index)))


class RemadeStaged(Staged):
    """The same, beside a cache: what it has was not asked of other hosts, and what it wants they have made."""

    def __init__(
        self,
        dataset: Any,
        caching: Caching,
        counter: Counter,
        share: Share | None,
        arena: Arena | None,
        *,
        compares: bool = True,
        pickled: bool = False,
    ) -> None:
        super().__init__(dataset, caching, counter, share)
        assert arena is not None
        self._intake = Intake(arena, compares=compares, pickled=pickled)

    def watched_by(self, observer: Observer) -> None:
        """See ``Staged``."""
        super().watched_by(observer)
        self._intake.observer = observer

    def reads(self, body: memoryview, count: int) -> list[CachePlace]:
        """See ``Staged``."""
        return list(map(CachePlace, read_plans(body[count * ROW :], count), wire.read_places(body, count)))

    def __call__(self, index: Any) -> Any:
        """The sample. The random numbers of this process are seeded for it."""
        noted: Any = self.place or (None, None)
        plan, place = noted
        if isinstance(plan, CachePlace):  # in the trainer's own process, where nothing was packed
            plan = plan.plan
        if plan is None or place is None or place.label == EntryKind.FAILED:
            self.place = None if plan is None else CachePlace(plan)
            return super().__call__(index)
        self.place = None
        if place.label != EntryKind.STAGE:
            value = self._intake.value(index, place, lambda: self._get(index))
            self._counter.found(W.NOWHERE)
            return named(index, value)
        stamp, value = self._intake.value(index, place, lambda: self._stages.upto(index, plan.keep))
        return named(index, self.go_on(index, plan.keep, stamp, value))


class RemoteMaking(Making):
    """The orders by which a process takes up what other hosts have made."""

    one_by_one = True

    def __init__(self, arena: Arena, *, compares: bool, pickled: bool) -> None:
        """See ``Intake``."""
        self.arena, self._compares, self._pickled = arena, compares, pickled

    def plain(self, dataset: Any) -> Remade:
        """The maker."""
        return Remade(dataset, self.arena, compares=self._compares, pickled=self._pickled)

    def staged(
        self, dataset: Any, caching: Caching, counter: Counter, share: Share | None, arena: Arena | None
    ) -> RemadeStaged:
        """The maker beside a cache."""
        return RemadeStaged(dataset, caching, counter, share, arena, compares=self._compares, pickled=self._pickled)


def settled(place: Arrived | None) -> bool:
    """True if a sample was really made elsewhere."""
    return place is not None and place.label in {EntryKind.VALUE, EntryKind.STAGE, EntryKind.PICKLED}
