"""Groups of indices whose rows come over a network: drawn ahead, published when they are here."""

from collections.abc import Callable
from typing import Any

from headrace.engine.consumer.fetching import Fetcher
from headrace.engine.consumer.order import NOT_YET, Groups, NotYet
from headrace.engine.fetcher.wire import Arrived
from headrace.sched.arrivals import Arrivals, Grouping


class Planned(list[Any]):
    """Indices of a group, and where the row of each lies; None: the worker gets it by itself."""

    def __init__(self, indices: list[Any], places: list[Arrived | None], free: Callable[[list[Arrived]], None]) -> None:
        """``free``: called with the places that are not needed any more."""
        super().__init__(indices)
        self.places, self._free = places, free

    def settled(self, position: int | None = None) -> None:
        """A sample was delivered or given up; None: all of them."""
        places = self.places if position is None else [self.places[position]]
        self._free([place for place in places if place is not None])


class ArrivingGroups:
    """``Groups`` between which and the workers there is a network. As patient as they are: it never waits."""

    def __init__(
        self, groups: Groups, fetcher: Fetcher, key: Callable[[Any], str], grouping: Grouping, displacement: int
    ) -> None:
        """``key``: of a sample, by its index. ``displacement``: see ``Arrivals``."""
        self._groups, self._fetcher, self._key = groups, fetcher, key
        self._grouping, self._displacement = grouping, displacement
        self._arrivals: Arrivals[Arrived | None] = Arrivals(grouping, displacement=displacement)
        self._live: dict[int, Arrived] = {}  # published and not settled, by offset
        self._exhausted = False

    def next(self) -> list[Any] | NotYet | None:
        """The next group that is here; None at the end of the epoch, ``NOT_YET`` while rows are under way."""
        self._fetcher.pump()
        while not self._exhausted and self._arrivals.missing < self._fetcher.appetite:
            self._draw()
        self._fetcher.pump()
        group = self._arrivals.next()
        if group is None:
            return None if self._exhausted and self._arrivals.is_empty else NOT_YET
        self._live.update((place.offset, place) for place in group.payloads if place is not None)
        self._arrivals.published(group)
        self._fetcher.taken(len(group.indices))
        return Planned(group.indices, group.payloads, self._free)

    def _draw(self) -> None:
        group = self._groups.next()
        if group is None:
            self._exhausted = True
            return
        first = self._fetcher.number(len(group))
        numbers = self._arrivals.draw(group, first)
        keys: dict[int, str] = {}
        for number, index in zip(numbers, group, strict=True):
            try:
                keys[number] = self._key(index)
            except Exception:  # noqa: BLE001  (an index the dataset has not: the worker will raise what it says)
                self._arrivals.arrive(number, None)
        self._fetcher.ask(keys, self._arrived)

    def _arrived(self, place: Arrived) -> None:
        if not self._arrivals.arrive(place.number, place):
            self._fetcher.free([place])

    def _free(self, places: list[Arrived]) -> None:
        for place in places:
            self._live.pop(place.offset, None)
        self._fetcher.free(places)

    def again(self, pending: list[list[Any]]) -> "ArrivingGroups":
        """The same, but ``pending`` first."""
        self.abandon()
        return ArrivingGroups(self._groups.again(pending), self._fetcher, self._key, self._grouping, self._displacement)

    def abandon(self) -> None:
        """Nothing of this epoch is needed any more."""
        absent, here = self._arrivals.give_up()
        self._fetcher.drop(absent)
        self._free([*self._live.values(), *(place for place in here if place is not None)])

    def order_state(self) -> dict[str, Any]:
        """Where the draw stands."""
        return self._groups.order_state()

    def waiting(self) -> list[list[Any]]:
        """Indices drawn from the order and not handed out yet."""
        return self._arrivals.waiting() + self._groups.waiting()
