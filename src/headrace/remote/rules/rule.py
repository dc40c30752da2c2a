"""Local first: how many groups of samples other machines should have under way. Numbers in, a number out.

The host makes what it can in time; only what is short is asked of others, early enough to be here when it is due.
"""

import math
from typing import NamedTuple

LEAST = 0.1
"""No trainer is taken for one that wants more than so many times (its inverse) what it takes now."""
STARVES = 0.5
"""A trainer that waits for more than this share of its time, with nothing ready, lacks more than rates can say."""


class Demand(NamedTuple):
    """The demand as seen on the trainer's side, in groups and seconds."""

    taken: float
    """Groups a second that the trainer takes."""
    waited: float
    """The share of its time that it waits for them."""
    local: float
    """Groups a second that this host's lanes can make."""
    ready: int
    """Groups that are made and not taken."""


class Means(NamedTuple):
    """The means of making samples elsewhere."""

    lanes: int
    """Processes that make one group at a time."""
    made: float
    """Seconds in which one of them makes a group."""
    trip: float
    """Seconds that question and answer travel."""
    ahead: int
    """Groups that should be ready."""
    most: int
    """Groups for which there is memory."""


def part(demand: Demand, others: float) -> float:
    """The share of each group that others should make, who can make ``others`` groups a second; the rest is what lanes
    here can make in time.
    """
    wants = min(demand.taken / max(LEAST, 1 - demand.waited), demand.local + others)
    return max(0.0, 1 - demand.local / wants) if wants else 1.0


def wanted(demand: Demand, means: Means) -> int:
    """Groups that should be under way elsewhere; 0 where the host suffices."""
    if not means.lanes:
        return 0
    wants = demand.taken / max(LEAST, 1 - demand.waited)  # if it never waited
    short = wants - demand.local
    if demand.waited > STARVES and not demand.ready:
        short = max(short, means.lanes / means.made)
    if short <= 0 and demand.ready >= means.ahead / 2:
        return 0
    needed = math.ceil(max(0.0, short) * (means.made + means.trip)) + means.ahead - demand.ready
    at_once = means.lanes * (1 + math.ceil(means.trip / means.made))  # one in work, and those that travel meanwhile
    return max(0, min(needed, at_once, means.most))
