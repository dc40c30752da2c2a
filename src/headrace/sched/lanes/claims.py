"""Claims of a lane on slots: rows for samples it has made, the layout they have there, space beside them.

In sampler order rows come with the tickets, and only layout and space are left to claim. The lock is held. A worker may
be killed between any two stores: see ``headrace.sched.lanes.lane_ledger``.
"""

from typing import NamedTuple

from headrace.sched import encoding as E
from headrace.sched import ledger_layout as W
from headrace.sched.lanes.lane_messages import ClaimResult
from headrace.sched.lanes.lane_words import LaneFacts


class Sized(NamedTuple):
    """The layout and the number of rows that room was reckoned for last, and that room."""

    layout: int
    rows: int
    """The rows of a batch."""
    room: int
    """Bytes that these take."""


Claimed = tuple[int, int, int, int, int, bool]
"""A ``ClaimResult``, slot (or the rows of a batch of ``OTHER_SIZE``), first row, rows, layout; and False."""


def claim(facts: LaneFacts, want: int, sized: Sized) -> Claimed:
    """Claim up to ``want`` rows of the first slot that has some for this lane's tickets, in free order.

    The first claim of a slot decides its layout, and with it where the slot's free space begins.
    """
    w, layout = facts.w, sized.layout
    holes: dict[int, int] = {}  # slot -> one of its holes; few, and only after a death
    for hole in range(w[W.HOLES]):
        slot, _ = E.parts(w[facts.dims.hole + hole])
        holes[slot] = hole
    fill, spare = _place_for(facts, holes)
    if fill < 0:
        w[facts.lane + W.L_WAITING] = W.FOR_ROOM
        return ClaimResult.NO_ROW, 0, 0, 0, 0, False
    slot = w[facts.dims.fill + fill % facts.dims.ring]
    at = facts.dims.slot(slot)
    # Room was reckoned for a batch of another size, which is not done under the lock: the caller does and asks again.
    if layout >= 0 and w[at + W.S_LAYOUT] == 0 and w[at + W.S_EXPECTED] != sized.rows:
        return ClaimResult.OTHER_SIZE, w[at + W.S_EXPECTED], 0, 0, 0, False
    if slot in holes:
        first, count = _taken_hole(facts, holes[slot]), 1
        _hold_rows(facts, slot, first, count)
    else:
        first = w[at + W.S_CLAIMED]
        count = min(want, w[at + W.S_EXPECTED] - first, spare)
        _hold_rows(facts, slot, first, count)
        w[at + W.S_CLAIMED] = first + count
    _count_claimed(facts, count)
    decided = shape(facts, slot, layout, sized.room)
    return ClaimResult.ROWS, slot, first, count, decided, False


def _place_for(facts: LaneFacts, holes: dict[int, int]) -> tuple[int, int]:
    """The first slot this lane's tickets may go to, by its place in the order of filling, and for how many of them.

    A ticket of group g must have a row in slot g + displacement at the latest. As long as, for every slot, the
    tickets due by then are no more than the rows free until then, each can have one. A ticket due at slot e that
    takes a row of slot f leaves one row less to those due from f on and before e: so they must have one to spare.
    """
    w = facts.w
    begin, end = w[W.FILL_CURSOR], w[W.FILL_TAIL]
    if holes:
        begin = min(begin, *(w[facts.dims.slot(slot) + W.S_NUMBER] for slot in holes))
    displacement = w[W.DISPLACEMENT]
    deadline = E.second(w[facts.lane + W.L_SERIAL]) + displacement if displacement else end
    oldest = _oldest(facts, end - 1 - displacement) if displacement else end
    rows = due = 0
    found, spare = -1, W.NEVER
    for fill in range(begin, end):
        slot = w[facts.dims.fill + fill % facts.dims.ring]
        at = facts.dims.slot(slot)
        free = 0
        if w[at + W.S_NUMBER] == fill:  # else it was delivered long ago and is in use again
            free = w[at + W.S_EXPECTED] - w[at + W.S_CLAIMED] + (_holes_in(facts, slot) if slot in holes else 0)
        if free == 0 and fill == w[W.FILL_CURSOR]:
            w[W.FILL_CURSOR] = fill + 1
        if free and found < 0:
            found, spare = fill, W.NEVER
        if fill >= deadline or (found >= 0 and oldest + displacement >= end):
            break
        rows += free
        while oldest + displacement <= fill:
            due += _unclaimed(facts, oldest)
            oldest += 1
        if due >= rows:
            found = -1
        spare = min(spare, rows - due)
    return found, spare


def _oldest(facts: LaneFacts, last: int) -> int:
    """The first group that has tickets without a row, or the one after ``last``."""
    w = facts.w
    number = w[W.OLDEST]
    while number <= last and _unclaimed(facts, number) == 0:
        number += 1
    w[W.OLDEST] = number
    return number


def _holes_in(facts: LaneFacts, slot: int) -> int:
    return sum(E.parts(facts.w[facts.dims.hole + hole])[0] == slot for hole in range(facts.w[W.HOLES]))


def _taken_hole(facts: LaneFacts, hole: int) -> int:
    """The row of a hole that is taken: like a ticket, a hole is first taken and then held."""
    w, last = facts.w, facts.w[W.HOLES] - 1
    item, moved = w[facts.dims.hole + hole], w[facts.dims.hole + last]
    # The count first: a hole that is taken and held by nobody is found again, one that two lanes take is not.
    w[W.HOLES] = last
    if hole < last:
        w[facts.dims.hole + hole] = moved
    return E.second(item)


def give_back(facts: LaneFacts) -> None:
    """Give back the rows last claimed, in free order: they will not be written and are for others."""
    w, lane = facts.w, facts.lane
    if w[lane + W.L_SLOT] and not facts.stale:
        slot, rows = E.which(w[lane + W.L_SLOT]), w[lane + W.L_ROWS]
        # Its tickets want rows again, so the search for the oldest that do must not begin behind them.
        w[W.OLDEST] = min(w[W.OLDEST], E.second(w[lane + W.L_SERIAL]))
        _count_claimed(facts, -rows)
        for row in range(w[lane + W.L_ROW], w[lane + W.L_ROW] + rows):
            w[facts.dims.hole + w[W.HOLES]] = E.pair(slot, row)
            w[W.HOLES] += 1
    w[lane + W.L_SLOT] = 0


def _count_claimed(facts: LaneFacts, rows: int) -> None:
    w = facts.w
    w[facts.dims.group(E.which(w[facts.lane + W.L_GROUP])) + W.G_UNCLAIMED] -= rows


def _unclaimed(facts: LaneFacts, number: int) -> int:
    """Tickets without a row in the group published as this number."""
    w = facts.w
    at = facts.dims.group(w[facts.dims.order + number % facts.dims.ring])
    # A group whose number is in use again was settled long ago.
    return w[at + W.G_UNCLAIMED] if E.second(w[at + W.G_SERIAL]) == number else 0


def _hold_rows(facts: LaneFacts, slot: int, first: int, count: int) -> None:
    w, lane = facts.w, facts.lane
    w[lane + W.L_SLOT] = 0
    w[lane + W.L_ROW], w[lane + W.L_ROWS] = first, count
    w[lane + W.L_SLOT] = E.some(slot)


def shape(facts: LaneFacts, slot: int, layout: int, room: int) -> int:
    """The slot's layout, made ``layout``, whose rows take ``room`` bytes, if none was decided yet."""
    w, at = facts.w, facts.dims.slot(slot)
    if w[at + W.S_LAYOUT] == 0:
        # The layout is what others look at: by then the room for its rows must be spoken for.
        w[at + W.S_BUMP] = room
        w[at + W.S_LAYOUT] = E.layout(layout)
    return E.layout_in(w[at + W.S_LAYOUT])


def reserve(facts: LaneFacts, slot: int, size: int, most: int) -> int:
    """``size`` bytes of a slot's free space; their offset. Beyond ``most`` nothing is reserved."""
    w, at = facts.w, facts.dims.slot(slot) + W.S_BUMP
    offset = w[at]
    if offset + size <= most:
        w[at] = offset + size
    return offset
