"""The trainer's oversight of lanes: who is woken, whose sample is slow, whose place or work goes to others.

The lock is held, where nothing else is said.
"""

from collections.abc import Iterator

from headrace.sched import encoding as E
from headrace.sched import ledger_layout as W
from headrace.sched.epochs.repair import holds, push
from headrace.sched.epochs.slots import TrainerView


def rouse(ledger: TrainerView, lanes: int, most: int = W.NEVER) -> list[int]:
    """The lanes that sleep and have a place; they count as awake from now on, so each must be woken.

    For work, ``most`` of them; all where some will lose their place when they come for it.
    """
    w, found = ledger.w, []
    # Fewer than none: the limit was lowered. Who is to be parked must come and see.
    places = w[W.LIMIT] - w[W.FOREGROUND]
    if places < 0:
        most = lanes
    for lane in range(lanes):
        at = ledger.dims.lane(lane)
        if not w[at + W.L_WAITING]:
            continue
        if w[at + W.L_WAITING] == W.FOR_WORK:
            if most <= 0:
                continue
            if w[at + W.L_ROLE] != W.WORKING:
                if places <= 0:
                    continue
                places -= 1
            most -= 1
        w[at + W.L_WAITING] = 0
        found.append(lane)
    return found


def becomes_slow(
    ledger: TrainerView, lanes: int, now: int, threshold: int, *, before_others: bool = False
) -> int | None:
    """The time when the first sample under way will have taken ``threshold``; None while all lanes sleep or are
    aside.

    ``before_others``: only those that their lanes took with others, which wait. Without the lock: a hint.
    """
    soonest = None
    for _, at, due in _under_way(ledger, lanes, now, threshold):
        if (soonest is None or due < soonest) and (not before_others or _has_rest(ledger, at)):
            soonest = due
    return soonest


def relieve(ledger: TrainerView, lanes: int, now: int, threshold: int) -> tuple[int, int | None]:
    """Take the rest of their tickets from lanes whose sample takes longer than ``threshold``, for others to make.

    How many they were, and when to look again: as ``put_aside``, of lanes that have a rest. ``threshold``: what a
    lane waits for before it ends a chunk without asking (``CUT_NS``), or longer.
    """
    w, taken, soonest = ledger.w, 0, None
    for lane, at, due in _under_way(ledger, lanes, now, threshold):
        if not _has_rest(ledger, at) or not holds(ledger, at):
            continue
        if due > now:
            soonest = due if soonest is None else min(soonest, due)
            continue
        group, first, end = E.which(w[at + W.L_GROUP]), w[at + W.L_POS] + 1, w[at + W.L_END]
        # The lane reads this without the lock before each sample (`LaneFacts.begin`). One that has begun the next at
        # this moment learns it before it writes anything (`LaneLedger.end_long`): the ticket is another's by then.
        w[at + W.L_END] = first
        if w[at + W.L_SLOT]:
            w[at + W.L_ROWS] = first - w[at + W.L_ROW]
        for position in range(end - 1, first - 1, -1):
            push(ledger, W.RETRIES, ledger.dims.retry, E.pair(group, position))
        taken += end - first
        if ledger.story is not None:
            ledger.story.relieved(lane, first, end, threshold)
    return taken, soonest


def put_aside(ledger: TrainerView, lanes: int, now: int, threshold: int, most: int) -> int | None:
    """Hand the places of lanes whose sample takes longer than ``threshold`` to others, ``most`` of them at most.

    The sample stays where it is: the lane finishes it and is then parked, or takes a place that is free. Returns
    when to look again: the next moment at which a sample can become slow, None while all lanes sleep or are aside.
    """
    w = ledger.w
    aside, soonest = count_aside(ledger, lanes), None
    for lane, at, due in _under_way(ledger, lanes, now, threshold):
        if due <= now and aside < most:
            # Nothing is moved: the lane keeps sample and ticket, and another wakes for the place that is free now.
            w[W.BAR] = threshold
            w[at + W.L_ROLE] = W.ASIDE
            w[W.FOREGROUND] -= 1
            w[W.HANDOFFS] += 1
            w[W.ASIDE_AT + w[at + W.L_OPERATION]] += 1
            aside += 1
            if ledger.story is not None:
                ledger.story.put_aside(lane, threshold)
        else:
            later = due if due > now else now + threshold  # too many are aside; one may come back meanwhile
            soonest = later if soonest is None else min(soonest, later)
    return soonest


def _under_way(ledger: TrainerView, lanes: int, now: int, threshold: int) -> Iterator[tuple[int, int, int]]:
    """Lanes that neither sleep nor are aside, where their words are, and when their sample becomes slow."""
    w = ledger.w
    for lane in range(lanes):
        at = ledger.dims.lane(lane)
        if w[at + W.L_WAITING] or w[at + W.L_ROLE] == W.ASIDE:
            continue
        making = w[at + W.L_ROLE] == W.WORKING and w[at + W.L_GROUP] and w[at + W.L_POS] < w[at + W.L_END]
        # One that is between two samples, or starting, begins its next one now at the earliest.
        yield lane, at, (w[at + W.L_BEGAN] if making and w[at + W.L_BEGAN] else now) + threshold


def _has_rest(ledger: TrainerView, at: int) -> bool:
    """True if a lane took tickets with the one it is at that can be taken away; ``at``: where its words are."""
    w = ledger.w
    return w[at + W.L_POS] + 1 < w[at + W.L_END] and not w[at + W.L_WHOLE] and not w[W.LOCAL]


def idle(ledger: TrainerView, lanes: int) -> int:
    """The number of lanes that have a place and found no ticket to take. Without the lock: a hint."""
    w, asleep = ledger.w, 0
    for at in map(ledger.dims.lane, range(lanes)):
        asleep += w[at + W.L_WAITING] == W.FOR_WORK and w[at + W.L_ROLE] == W.WORKING
    return asleep


def count_aside(ledger: TrainerView, lanes: int) -> int:
    """The number of lanes that are aside."""
    return sum(ledger.w[ledger.dims.lane(lane) + W.L_ROLE] == W.ASIDE for lane in range(lanes))


def making(ledger: TrainerView, lane: int) -> tuple[int, int]:
    """The group (-1: none) and the position that a lane is at; a hint."""
    at = ledger.dims.lane(lane)
    return E.which(ledger.w[at + W.L_GROUP]), ledger.w[at + W.L_POS]
