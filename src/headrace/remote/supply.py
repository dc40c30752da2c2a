"""Groups of an epoch of which some are made on other hosts: the oldest here, those farthest ahead elsewhere."""

import time
import warnings
from contextlib import suppress
from typing import Any

from headrace.core.errors import RemoteError, StoreError
from headrace.core.stats import RemoteUse
from headrace.engine.trainer.counters import LoaderCounters
from headrace.fetching.arriving import AHEAD, ArrivingGroups, SampleKey
from headrace.fetching.fetcher import Fetcher
from headrace.fetching.wire import Arrived
from headrace.remote import rule
from headrace.remote.rates import LocalRates
from headrace.remote.remade import settled
from headrace.sched.epochs.trainer_commands import Arrangement
from headrace.sched.hand import NotYet
from headrace.sched.source import Group, Source

FIRST = 2
"""So many groups for each lane here are drawn first, in every epoch."""
UNKNOWN_SECONDS = 0.01
"""A sample takes so long until one was made."""
PATIENCE_SECONDS = 2.0
"""A group that is waited for and has not come is made here after so long, or twice what it should take."""


class Crowd:
    """The knowledge of a loader's other hosts, over its epochs."""

    def __init__(self, memory: int, workers: int) -> None:
        self.memory, self.workers = memory, workers
        self.rates: LocalRates | None = None
        self.given_back = self.made = self.bytes = 0
        self.told = 0  # of the news
        self.is_gone = False

    def wanted(self, fetcher: Fetcher, counters: LoaderCounters, size: int, ready: int) -> int:
        """Groups of ``size`` samples that should be under way elsewhere."""
        now = time.monotonic()
        if self.rates is None:
            self.rates = LocalRates(now, counters.batches, counters.wait_seconds)
        self.rates.look(now, counters.batches, counters.wait_seconds)
        told = fetcher.facts.get("remote")
        if told is None or self.is_gone or not told["lanes"]:
            return 0
        if not self.rates.is_known and counters.batches and self.workers:
            return 0
        # Lanes make a group together, each a part of it; one has a part in work, and another waits there.
        parts = -(-size // told["unit"])
        made = max(1e-6, (told["made"] or UNKNOWN_SECONDS) * size / parts)
        room = max(1, int(self.memory / max(1.0, told["size"] * size)))
        ahead = max(2, self.workers)
        means = rule.Means(-(-2 * told["lanes"] // parts), made, told["trip"], ahead, room)
        return rule.wanted(self._demand(self.rates, ready), means)

    def _demand(self, rates: LocalRates, ready: int) -> rule.Demand:
        """The trainer's demand. One without lanes leaves all to others, and waits for them until more is known."""
        if self.workers:
            return rates.demand(ready)
        return rates.demand(ready)._replace(local=0.0) if rates.is_known else rule.Demand(0.0, 1.0, 0.0, ready)

    def patience(self, fetcher: Fetcher) -> float:
        """Seconds to wait for a group that should be here."""
        told = fetcher.facts.get("remote") or {"made": 0.0, "trip": 0.0}
        return PATIENCE_SECONDS + 2.0 * (float(told["made"]) * fetcher.batch + float(told["trip"]))

    def came(self, place: Arrived) -> None:
        """A sample, or why there is none."""
        if settled(place):
            self.made += 1
            self.bytes += place.size
        else:
            self.given_back += 1

    def hear(self, fetcher: Fetcher) -> None:
        """Say what is new. Raises ``RemoteError`` where samples would be others."""
        told = fetcher.facts.get("remote")
        if told is None:
            return
        if told["refused"]:
            raise RemoteError(f"remote=: {told['refused']}{WAY_OUT}")
        for each in told["news"][self.told :]:
            self.told += 1
            warnings.warn(f"remote=: {each}", RuntimeWarning, stacklevel=2)
        if told["gone"]:
            self.gone(told["gone"])

    def count(self, fetcher: Fetcher, counters: LoaderCounters) -> None:
        """Bring what is known of other hosts into the counters."""
        told = fetcher.facts.get("remote")
        if told is not None:
            counters.remote = RemoteUse(
                samples=self.made,
                given_back=self.given_back,
                nodes=tuple(sorted(told["nodes"].items())),
                lanes=0 if self.is_gone else told["lanes"],
                by_ray=told["carried"],
                bytes=self.bytes,
                sample_seconds=told["made"],
            )

    def gone(self, why: str) -> None:
        """Note that nobody makes samples elsewhere any more."""
        if not self.is_gone:
            self.is_gone = True
            warnings.warn(
                f"remote=: all samples are made on this host from now on: {why}", RuntimeWarning, stacklevel=2
            )


WAY_OUT = ". Bring code and packages there with headrace.Ray(runtime_env=...), or install the same"


class RemoteGroups(ArrivingGroups):
    """``Groups`` of which some are made on other hosts. It never waits."""

    def __init__(
        self,
        groups: Source,
        fetcher: Fetcher,
        key: SampleKey,
        arrangement: Arrangement,
        displacement: int,
        crowd: Crowd,
        counters: LoaderCounters,
    ) -> None:
        """``key``: as the fetcher is asked for a sample; raises for what cannot be asked for."""
        super().__init__(groups, fetcher, key, arrangement, displacement)
        self._crowd, self._counters = crowd, counters
        self._drawn = 0  # groups
        self._wanted = 0
        self._elsewhere = False  # where the group is made that is drawn next
        self._own = range(0)  # numbers of the group drawn last of those to be made here
        self._waits: tuple[int, float] = (-1, 0.0)  # for which number, and since when

    def next(self) -> Group | NotYet | None:
        """See ``Source``."""
        try:
            group = super().next()
        except StoreError as error:  # the fetching process ends, again and again
            self._crowd.gone(str(error))
            self._take_back(self._arrivals.all_missing())
            group = super().next()
        if isinstance(group, Group) and self._crowd.rates is not None:
            here = sum(not settled(each[1] if type(each) is tuple else each) for each in group.made_of)
            self._crowd.rates.made_here(here / max(1, len(group.made_of)))
            self._crowd.count(self._fetcher, self._counters)
        return group

    def ask(self) -> None:
        """Have as many groups made elsewhere as should be under way, and have one to make here."""
        self._pump()
        size = self._fetcher.batch
        self._wanted = self._crowd.wanted(self._fetcher, self._counters, size, self._ready // size)
        while not self.is_drawn and (self._is_short or self._lacks_own):
            self._elsewhere = self._is_short
            self._draw()
        self._pump()

    def _pump(self) -> None:
        if not self._crowd.is_gone:
            self._fetcher.pump()
            self._crowd.hear(self._fetcher)

    @property
    def _ready(self) -> int:
        """Samples that other hosts have made, or a cache has, and that are not published."""
        arrivals = self._arrivals
        return arrivals.drawn - arrivals.missing - arrivals.held(self._own)

    @property
    def _is_short(self) -> bool:
        """True if the next group should be made elsewhere: lanes here have the first ones of an epoch."""
        if self._drawn < FIRST * self._crowd.workers:
            return False
        size = self._fetcher.batch
        # Of groups that a cache has, none is under way: they are not drawn without end.
        return -(-self._arrivals.missing // size) < self._wanted and self._ready // size <= AHEAD * self._wanted

    @property
    def _lacks_own(self) -> bool:
        """True if the next group should be made here: lanes here have none. Without lanes, the trainer makes one where
        nobody else makes any.
        """
        if not self._crowd.workers:
            return not self._arrivals.drawn
        return not self._arrivals.held(self._own)

    def _request(self, numbers: range, indices: list[Any]) -> None:
        """Have a group that was drawn made."""
        self._drawn += 1
        if self._elsewhere:
            super()._request(numbers, indices)
        else:
            self._own = numbers
            self._arrivals.arrive_at_once(numbers, None)

    def _arrived(self, place: Arrived) -> None:
        self._crowd.came(place)
        super()._arrived(place)

    def wakes(self) -> tuple[int, int]:
        """A descriptor, and events of it, by which more groups announce themselves. Whoever asks for it waits."""
        self._look()
        if self._crowd.is_gone:
            return -1, 0
        with suppress(RemoteError):  # raised again where the next group is drawn
            self._crowd.hear(self._fetcher)
        return super().wakes()

    def _look(self) -> None:
        """Have what has been waited for too long made here."""
        missing, now = self._arrivals.first_missing(), time.monotonic()
        if not missing:
            return
        if missing[0] != self._waits[0]:
            self._waits = missing[0], now
        elif now - self._waits[1] > self._crowd.patience(self._fetcher):
            self._take_back(missing)

    def _take_back(self, numbers: list[int]) -> None:
        self._crowd.given_back += len(numbers)
        self._fetcher.drop(numbers)
        for number in numbers:
            self._arrivals.arrive(number, None)

    def put_back(self, groups: list[list[Any]]) -> None:
        """See ``Source``."""
        super().put_back(groups)
        self._drawn, self._own = 0, range(0)
