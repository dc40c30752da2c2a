"""Groups of indices whose rows come over a network: drawn ahead, published when they are here."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from headrace.cache.words import LOOK
from headrace.core.errors import StoreError
from headrace.engine.consumer.supply.exchange import ExchangedGroups
from headrace.engine.consumer.supply.fetching import Fetcher
from headrace.engine.fetcher import wire
from headrace.engine.fetcher.wire import Arrived
from headrace.engine.staging.caching import Allotted, Plan, pack_plans
from headrace.sched.acts import Arrangement
from headrace.sched.arrivals import Arrivals, ArrivedGroup
from headrace.sched.groups import Groups
from headrace.sched.hand import NOT_YET, NotYet

AHEAD = 2
"""Of samples that a cache has, so many times what the fetcher would like to be asked for are drawn, at most."""


class Planned(list[Any]):
    """Indices of a group, and where the row of each lies; None: the worker gets it by itself."""

    def __init__(
        self, group: ArrivedGroup[Arrived | None], free: Callable[[Iterable[Arrived]], None], plans: Sequence[Plan]
    ) -> None:
        """``free``: called with the places that are not needed any more. ``plans``: of a cache, where there is one."""
        super().__init__(group.indices)
        self.group, self._free, self._plans = group, free, plans

    @property
    def places(self) -> list[Arrived | None]:
        """Of the rows, one for each index."""
        return self.group.payloads

    def packed(self) -> bytes:
        """For a worker: the places, and then the plans."""
        return wire.places(self.places) + (pack_plans(self._plans) if self._plans else b"")

    def settled(self, positions: Iterable[int]) -> None:
        """These samples were delivered or given up. Saying it again changes nothing."""
        places = [self.places[position] for position in positions]
        self._free(place for place in places if place is not None)


class ArrivingGroups:
    """``Groups`` with a network between the sampler and the workers. It never waits.

    What was drawn is in one place at any moment, whatever interrupts it: with the groups it draws from, or among the
    arrivals until it was published.
    """

    def __init__(
        self,
        groups: Groups | ExchangedGroups,
        fetcher: Fetcher,
        key: Callable[[Any], str],
        arrangement: Arrangement,
        displacement: int,
    ) -> None:
        """``key``: of a sample, by its index. ``displacement``: see ``Arrivals``."""
        self._groups, self._fetcher, self._key = groups, fetcher, key
        self._arrangement, self._displacement = arrangement, displacement
        self._arrivals: Arrivals[Arrived | None] = Arrivals(arrangement, displacement=displacement)
        self._head: Planned | None = None
        self._plans: dict[int, Plan] = {}  # of what was drawn and not published, where there is a cache
        self._live: dict[int, Arrived] = {}  # published and not settled, by offset
        self.is_drawn = False
        """Whether all of the epoch was asked for."""
        self._before: ArrivingGroups | None = None  # what this one takes over from

    def head(self) -> Planned | NotYet | None:
        """The next group that is here, the same one until it was ``taken``; ``NOT_YET`` while rows are under way."""
        if self.drawn is not None:
            return self.drawn
        if self._before is not None:
            self._before.abandon()
            self._before = None
        self.ask()
        group = self._arrivals.next()
        if group is None:
            return None if self.is_drawn and self._arrivals.is_empty else NOT_YET
        self._live.update((place.offset, place) for place in group.payloads if place is not None)
        plans = [self._plans[number] for number in group.numbers] if self._plans else []
        self._head = Planned(group, self._free, plans)
        return self._head

    @property
    def _asks_for_more(self) -> bool:
        """Whether the fetcher would like to be asked for more; what a cache has is not drawn much further ahead."""
        missing, most = self._arrivals.missing, self._fetcher.ask_for
        return missing < most and (not self._plans or len(self._plans) - missing < AHEAD * most)

    @property
    def drawn(self) -> Planned | None:
        """The head, while it is nobody else's."""
        head = self._head
        return None if head is None or self._arrivals.is_published(head.group) else head

    def taken(self) -> None:
        """The head is in somebody else's care."""
        if self._head is not None:
            self._arrivals.publish(self._head.group)
            self._fetcher.taken(place for place in self._head.places if place is not None)
            for number in self._head.group.numbers:
                self._plans.pop(number, None)
            self._head = None

    def ask(self) -> None:
        """Have as many rows brought as the fetcher would like to be asked for."""
        self._fetcher.pump()
        while not self.is_drawn and self._asks_for_more:
            self._draw()
        self._fetcher.pump()

    def _draw(self) -> None:
        """Draw a group and ask for its rows; one that an interrupt broke off is asked for now."""
        group = self._groups.head()
        if group is None:
            self.is_drawn = True
            return
        if not any(drawn is group for drawn in self._arrivals.drawn):
            self._arrivals.draw(group, self._fetcher.number(len(group)))
        self._ask()
        self._groups.taken()

    def _ask(self) -> None:
        """Have what was drawn last brought."""
        keys: dict[int, str] = {}
        unasked: list[int] = []
        newest, group = self._arrivals.newest(), self._arrivals.drawn[-1]
        if isinstance(group, Allotted):
            self._plans.update(zip((number for number, _ in newest), group.plans, strict=True))
        for number, index in newest:
            plan = self._plans.get(number)
            if plan is not None and plan.word not in {0, LOOK}:  # the cache has it
                unasked.append(number)
                continue
            try:
                keys[number] = self._key(index)
            except Exception:  # noqa: BLE001  (whatever the dataset says of it)
                unasked.append(number)  # an index the dataset has not: the worker will raise what it says
        self._arrivals.arrive_at_once(unasked, None)
        self._fetcher.ask(keys, self._arrived)

    def _arrived(self, place: Arrived) -> None:
        if not self._arrivals.arrive(place.number, place):
            self._fetcher.free([place])

    def _free(self, places: Iterable[Arrived]) -> None:
        freed = list(places)
        for place in freed:
            self._live.pop(place.offset, None)
        self._fetcher.free(freed)

    def waited_for(self) -> tuple[int, int]:
        """A descriptor, and events of it, by which more groups announce themselves. Whoever asks for it waits."""
        if len(self._live) <= self._fetcher.batch:  # workers have next to nothing: it is the network that is waited for
            self._fetcher.waits()
        with suppress(StoreError):  # raised again where the next group is drawn
            self._fetcher.pump()  # or what is still to be said or heard would end every sleep at once
        return self._fetcher.waited_for()

    def again(self, pending: list[list[Any]]) -> "ArrivingGroups":
        """The same, but ``pending`` first: their rows are asked for again. This one stays as it is until then."""
        groups = self._groups.again(pending)
        following = ArrivingGroups(groups, self._fetcher, self._key, self._arrangement, self._displacement)
        following._before = self
        return following

    def abandon(self) -> None:
        """Nothing of this epoch is needed any more, nor of what it took over from and has not yet abandoned."""
        if self._before is not None:
            self._before.abandon()
        self._arrivals.give_up()
        self._fetcher.forget(self._arrived)  # which knows more than is noted here, if an interrupt came

    def progress(self, held: list[list[Any]], besides: list[Any] | None = None) -> dict[str, Any]:
        """For a resume: ``held``, drawn and not delivered, and what waits here; not the head if it is ``besides``."""
        head, drawn = self.drawn, self._arrivals.drawn
        is_held = head is not None and any(head is group for group in besides or ())
        elsewhere = frozenset(head.group.numbers) if head is not None and is_held else frozenset[int]()
        return self._groups.progress(held + self._arrivals.waiting(elsewhere), drawn)
