"""Groups of indices whose rows come over a network: drawn ahead, published when they are here."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from headrace.core.errors import StoreError
from headrace.fetching import wire
from headrace.fetching.arrivals import Arrivals
from headrace.fetching.fetcher import Fetcher
from headrace.fetching.wire import Arrived
from headrace.sched.epochs.trainer_commands import Arrangement
from headrace.sched.hand import NOT_YET, NotYet
from headrace.sched.source import Group, Source

AHEAD = 2
"""Samples that are here anyway are drawn ahead up to so many times what the fetcher would like to be asked for."""


class ArrivingGroups:
    """Groups with a network between their source and the workers: a ``Source`` that never waits."""

    def __init__(
        self, groups: Source, fetcher: Fetcher, key: Callable[[Any], str], arrangement: Arrangement, displacement: int
    ) -> None:
        """``key``: of a sample, by its index. ``displacement``: see ``Arrivals``."""
        self._groups, self._fetcher, self._key = groups, fetcher, key
        self._arrangement, self._displacement = arrangement, displacement
        self._arrivals: Arrivals[Arrived | None] = Arrivals(arrangement, displacement=displacement)
        self._notes: dict[int, Any] = {}  # of the source before, on what was drawn and not published
        self._pack: Callable[[Sequence[Any]], bytes] | None = None  # writes them
        self._live: dict[int, Arrived] = {}  # published and not settled, by offset
        self.is_drawn = False

    def next(self) -> Group | NotYet | None:
        """The next group that is here; ``NOT_YET`` while rows are under way, None at the end."""
        self.ask()
        group = self._arrivals.next()
        if group is None:
            return None if self.is_drawn and self._arrivals.is_empty else NOT_YET
        self._arrivals.publish(group)
        places = [place for place in group.payloads if place is not None]
        self._live.update((place.offset, place) for place in places)
        self._fetcher.taken(places)
        release = partial(self._settle, group.payloads)
        if self._pack is None:
            return Group(group.indices, group.payloads, wire.places, release)
        notes = [self._notes.pop(number, None) for number in group.numbers]
        return Group(
            group.indices, list(zip(notes, group.payloads, strict=True)), partial(_packed, self._pack), release
        )

    @property
    def _asks_for_more(self) -> bool:
        """True if the fetcher would like to be asked for more; what is here anyway is not drawn much further ahead."""
        missing, most = self._arrivals.missing, self._fetcher.ask_for
        return missing < most and (not self._notes or len(self._notes) - missing < AHEAD * most)

    def ask(self) -> None:
        """Have as many rows brought as the fetcher would like to be asked for."""
        self._fetcher.pump()
        while not self.is_drawn and self._asks_for_more:
            self._draw()
        self._fetcher.pump()

    def _draw(self) -> None:
        """Draw a group and ask for its rows."""
        group = self._groups.next()
        if group is None or group is NOT_YET:
            self.is_drawn = group is None
            return
        numbers = self._arrivals.draw(group.indices, self._fetcher.number(len(group.indices)))
        if group.made_of:
            self._notes.update(zip(numbers, group.made_of, strict=True))
            self._pack = group.pack
        self._request(numbers, group.indices)

    def _request(self, numbers: range, indices: list[Any]) -> None:
        """Ask for the rows of a group that was drawn."""
        keys: dict[int, str] = {}
        unasked: list[int] = []
        for number, index in zip(numbers, indices, strict=True):
            note = self._notes.get(number)
            if note is not None and note.is_here:
                unasked.append(number)
                continue
            try:
                keys[number] = self._named(number, index)
            except Exception:  # noqa: BLE001  (an index the dataset has not: the worker will raise what it says)
                unasked.append(number)
        self._arrivals.arrive_at_once(unasked, None)
        self._fetcher.ask(keys, self._arrived)

    def _named(self, number: int, index: Any) -> str:
        """The key of what is to be brought for a sample. Raises for an index that there is not."""
        return self._key(index)

    def _arrived(self, place: Arrived) -> None:
        if not self._arrivals.arrive(place.number, place):
            self._fetcher.free([place])

    def _settle(self, places: Sequence[Arrived | None], positions: Iterable[int]) -> None:
        """Free the payloads of samples of a group that were delivered or given up. Saying it again changes nothing."""
        settled = [place for position in positions if (place := places[position]) is not None]
        # Those that are not live were forgotten, and what lies there now is another's.
        freed = [place for place in settled if self._live.get(place.offset) is place]
        for place in freed:
            del self._live[place.offset]
        self._fetcher.free(freed)

    def wakes(self) -> tuple[int, int]:
        """A descriptor, and events of it, by which more groups announce themselves. Whoever asks for it waits."""
        if len(self._live) <= self._fetcher.batch:  # workers have next to nothing: it is the network that is waited for
            self._fetcher.waits()
        with suppress(StoreError):  # raised again where the next group is drawn
            self._fetcher.pump()  # or what is still to be said or heard would end every sleep at once
        return self._fetcher.waited_for()

    def put_back(self, groups: list[list[Any]]) -> None:
        """See ``Source``: their rows are asked for again, with those of what waits here."""
        waiting = self._arrivals.waiting()
        self.close()
        self._groups.put_back(groups + waiting)
        self._arrivals = Arrivals(self._arrangement, displacement=self._displacement)
        self.is_drawn = False

    def close(self) -> None:
        """See ``Source``."""
        self._arrivals.give_up()
        self._notes.clear()
        self._live.clear()
        self._fetcher.forget(self._arrived)

    def state(self, owed: list[list[Any]]) -> dict[str, Any]:
        """See ``Source``."""
        return self._groups.state(owed + self._arrivals.waiting())


def _packed(pack: Callable[[Sequence[Any]], bytes], made_of: Sequence[tuple[Any, Arrived | None]]) -> bytes:
    """The bytes for a worker: the places, and then the notes of the source before."""
    return wire.places([place for _, place in made_of]) + pack([note for note, _ in made_of])
