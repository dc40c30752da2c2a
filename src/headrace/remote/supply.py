"""Groups of an epoch of which some are made on other hosts: the oldest here, those farthest ahead elsewhere."""

import time
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from headrace.cache.backends.entry_word import ENCODED, NOWHERE
from headrace.core.errors import RemoteError, StoreError
from headrace.core.stats import RemoteUse
from headrace.engine.trainer.counters import LoaderCounters
from headrace.fetching.arriving import AHEAD, ArrivingGroups
from headrace.fetching.fetcher import Fetcher
from headrace.fetching.wire import Arrived
from headrace.remote.remade import settled
from headrace.remote.rules import rule
from headrace.remote.rules.rates import LaneSpeed, LocalRates
from headrace.sched.epochs.trainer_commands import Arrangement
from headrace.sched.hand import NotYet
from headrace.sched.source import Group, Source

FIRST = 2
"""So many groups for each lane here are drawn first, in every epoch."""
UNKNOWN_SECONDS = 0.01
"""A sample takes so long until one was made."""
PATIENCE_SECONDS = 2.0
"""A group that is waited for and has not come is made here after so long, or twice what it should take."""


BEHIND = 2
"""Groups that could be given to lanes here, and are not taken: lanes have more than they can do."""


FormKey = Callable[[Any, int], str]
"""The key of a sample in a form, by its index. Raises for what cannot be asked for."""


class GroupShare(NamedTuple):
    """The share of other hosts in the work."""

    groups: int
    """That should be under way, in whole ones."""
    part: float
    """Of each group, the share of its samples that they make."""


NOTHING = GroupShare(0, 0.0)


class Crowd:
    """The knowledge of a loader's other hosts, over its epochs."""

    def __init__(self, memory: int, workers: int) -> None:
        self.memory, self.workers = memory, workers
        self.rates: LocalRates | None = None
        self.speed = LaneSpeed()
        self.given_back = self.made = self.bytes = 0
        self.told = 0  # of the news
        self.is_gone = False

    def share(
        self, fetcher: Fetcher, counters: LoaderCounters, size: int, ready: int, publishable: Callable[[], int]
    ) -> "GroupShare":
        """Others' share in groups of ``size`` samples, of which they have made ``ready``. ``publishable``: the groups
        that could be given to lanes here.
        """
        now = time.monotonic()
        if self.rates is None:
            self.rates = LocalRates(now, counters.batches, counters.wait_seconds)
        rates, is_new = self.rates, self.rates.look(now, counters.batches, counters.wait_seconds)
        told = fetcher.facts.get("remote")
        if told is None or self.is_gone or not told["lanes"]:
            return NOTHING
        if not rates.is_known and counters.batches and self.workers:
            return NOTHING
        # Lanes make a group together, each a part of it; one has a part in work, and another waits there.
        parts = -(-size // told["unit"])
        made = max(1e-6, (told["made"] or UNKNOWN_SECONDS) * size / parts)
        room = max(1, int(self.memory / max(1.0, told["size"] * size)))
        ahead = max(2, self.workers)
        means = rule.Means(-(-2 * told["lanes"] // parts), made, told["trip"], ahead, room)
        if not self.workers:  # all is left to others, and waited for until more is known
            demand = rates.demand(ready)._replace(local=0.0) if rates.is_known else rule.Demand(0.0, 1.0, 0.0, ready)
            return GroupShare(rule.wanted(demand, means), 1.0)
        demand = rates.demand(ready)
        if not rates.is_known or not told["made"]:
            return GroupShare(rule.wanted(demand, means), 1.0)
        lanes = max(1, int(counters.lane_changes.last))
        demand = demand._replace(local=self.speed.of(lanes, told["made"]) / size)
        part = rule.part(demand, told["lanes"] / told["made"] / size)
        if is_new:
            self.speed.learn(demand, is_behind=publishable() >= BEHIND, suffices=part * size < 1)
        return GroupShare(rule.wanted(demand, means), part)

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
        key: FormKey,
        arrangement: Arrangement,
        displacement: int,
        crowd: Crowd,
        counters: LoaderCounters,
    ) -> None:
        """``key``: as the fetcher is asked for a sample; raises for what cannot be asked for."""
        super().__init__(groups, fetcher, lambda index: key(index, NOWHERE), arrangement, displacement)
        self._key_of_form = key
        self._crowd, self._counters = crowd, counters
        self._drawn = 0  # groups
        self._share = NOTHING
        self._elsewhere = False  # whether others have part in the group that is drawn next
        self._own: set[int] = set()  # numbers to be made here, and not published
        self._later: deque[int] = deque()  # those of them that come among what others make: see ``_request``
        self._credit = self._due = 0.0  # fractions of samples, to be drawn for lanes here, and to be given to them
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
        """Have as many groups under way elsewhere as should be, and have one to make here."""
        self._pump()
        size, publishable = self._fetcher.batch, self._arrivals.publishable
        self._own = set(filter(self._arrivals.holds, self._own)) if self._own else self._own
        self._share = self._crowd.share(self._fetcher, self._counters, size, self._ready // size, publishable)
        while not self.is_drawn and (self._is_short or self._lacks_own):
            self._elsewhere = self._is_short
            self._draw()
        if self._later and (self._asked == 0 or not publishable()):
            self._release(len(self._later))  # lanes here have nothing else to do
        self._pump()

    def _pump(self) -> None:
        if not self._crowd.is_gone:
            self._fetcher.pump()
            self._crowd.hear(self._fetcher)

    @property
    def _asked(self) -> int:
        """Samples that others were asked for, and that have not come."""
        return self._arrivals.missing - len(self._later)

    @property
    def _ready(self) -> int:
        """Samples that other hosts have made, or a cache has, and that are not published."""
        return self._arrivals.here - (len(self._own) - len(self._later))

    @property
    def _is_short(self) -> bool:
        """True if others should have part in the next group. Until rates are known, the first ones of an epoch are made
        here.
        """
        size, share, rates = self._fetcher.batch, self._share, self._crowd.rates
        if (rates is None or not rates.is_known) and self._drawn < FIRST * self._crowd.workers:
            return False
        if share.part * size < 1:
            return False
        # Of groups that a cache has, nothing is under way: they are not drawn without end.
        return -(-self._asked // size) < share.groups and self._ready // size <= AHEAD * share.groups

    @property
    def _lacks_own(self) -> bool:
        """True if the next group should be made here as a whole: lanes here have none, and no part of another."""
        if self._share.groups and self._share.part * self._fetcher.batch >= 1:
            return not self._arrivals.drawn
        return not (self._own if self._crowd.workers else self._arrivals.drawn)

    def _request(self, numbers: range, indices: list[Any]) -> None:
        """Have a group that was drawn made: the first of its samples here, the others elsewhere.

        Where batches are made of what comes first, those to be made here are given to lanes as others come: batches of
        nothing else would keep lanes from taking up what is there.
        """
        self._drawn += 1
        here = len(numbers)
        if self._elsewhere:
            self._credit += (1 - self._share.part) * len(numbers)
            here = min(here, int(self._credit))
            self._credit -= here
            super()._request(numbers[here:], indices[here:])
        own = numbers[:here]
        self._own.update(own)
        if self._elsewhere and self._arrangement is Arrangement.FREE:
            self._later.extend(own)
        else:
            self._arrivals.arrive_at_once(own, None)

    def _named(self, number: int, index: Any) -> str:
        """The key of a sample, or of the form of it that a cache wants to keep.

        The stored form is not asked for: it is read and decoded at once where the sample is made.
        """
        note = self._notes.get(number)
        form = NOWHERE if note is None or note.plan.keep == ENCODED else note.plan.keep
        return self._key_of_form(index, form)

    def _arrived(self, place: Arrived) -> None:
        self._crowd.came(place)
        super()._arrived(place)
        if self._later:
            self._due += len(self._later) / max(1, self._asked)
            due = int(self._due)
            self._due -= due
            self._release(due)

    def _release(self, count: int) -> None:
        """Let lanes have so many of the samples that are to be made here."""
        for _ in range(min(count, len(self._later))):
            self._arrivals.arrive(self._later.popleft(), None)

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
        self._crowd.given_back += len(set(numbers).difference(self._later))
        self._later = deque(sorted(set(self._later).difference(numbers)))
        self._own.update(numbers)
        self._fetcher.drop(numbers)
        for number in numbers:
            self._arrivals.arrive(number, None)

    def put_back(self, groups: list[list[Any]]) -> None:
        """See ``Source``."""
        super().put_back(groups)
        self._drawn = 0

    def close(self) -> None:
        """See ``Source``."""
        super().close()
        self._own.clear()
        self._later.clear()
