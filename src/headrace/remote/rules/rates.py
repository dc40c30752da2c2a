"""The rates at which a trainer takes, waits for and makes samples by itself, measured from counts. Time is an
argument.
"""

from headrace.remote.rules.rule import Demand

LEAST_SECONDS = 0.5
"""Between two looks."""
WAITS = 0.05
"""A trainer that waits for more of its time than this has lanes that do all they can."""


class LocalRates:
    """Groups a second, brought up to date now and then."""

    def __init__(self, now: float, taken: int, waited: float) -> None:
        """``taken`` groups and ``waited`` seconds were counted until ``now``."""
        self._last = now, taken, waited, 0.0
        self._local = 0.0
        self._taken, self._waited, self._can = 0.0, 0.0, 0.0
        self.is_known = False
        """Whether anything was measured."""

    def made_here(self, share: float) -> None:
        """Note that so much of a group is made by this host's lanes."""
        self._local += share

    def look(self, now: float, taken: int, waited: float) -> bool:
        """Bring the rates up to date with what is counted ``now``, if it is time to; whether it was."""
        then, before, waits, local = self._last
        passed = now - then
        if passed < LEAST_SECONDS or taken == before:
            return False
        self._last = now, taken, waited, self._local
        share = min(1.0, (waited - waits) / passed)
        made = (self._local - local) / passed
        weight = 1.0 if not self.is_known else 0.5
        self._taken += weight * ((taken - before) / passed - self._taken)
        self._waited += weight * (share - self._waited)
        # Lanes that nobody waits for may do more than they are asked for: what they can is known from before.
        self._can = self._can + weight * (made - self._can) if share > WAITS else max(self._can, made)
        self.is_known = True
        return True

    def demand(self, ready: int) -> Demand:
        """The demand, in the form the rule wants it."""
        return Demand(self._taken, self._waited, self._can, ready)


class LaneSpeed:
    """The samples a second that this host's lanes can make beside taking up what comes: as many as others' would in as
    many lanes, corrected by what is seen.
    """

    def __init__(self) -> None:
        self._factor = 0.9

    def learn(self, demand: Demand, *, is_behind: bool, suffices: bool) -> None:
        """Take in what was seen. ``is_behind``: groups are there and wait for lanes. ``suffices``: by what was thought,
        nothing is asked of others.
        """
        if demand.waited > WAITS and (is_behind or suffices):
            self._factor *= 0.8
        elif demand.waited > WAITS:
            self._factor = min(2.0, 1.1 * self._factor)
        else:
            self._factor = min(2.0, 1.02 * self._factor)

    def of(self, lanes: int, seconds: float) -> float:
        """The rate of so many lanes, where a sample takes others so many seconds."""
        return self._factor * lanes / seconds
