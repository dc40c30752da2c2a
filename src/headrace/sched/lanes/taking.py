"""Taking of tickets by a lane: how many it wants, whether it has a place, what is next; and what their cost was.

The lock is held. A worker may be killed between any two stores: see ``headrace.sched.lanes.lane_ledger``.
"""

from headrace.sched import encoding as E
from headrace.sched import ledger_layout as W
from headrace.sched.lanes.lane_messages import ALL, Next, TakeRule, TakeSize
from headrace.sched.lanes.lane_words import LaneFacts


def wanted(facts: LaneFacts, size: TakeSize) -> int:
    """The number of tickets to take: the less is queued, the fewer, so that lanes run out of them together.

    But no fewer than a quarter of a chunk: the lanes that share the queue may be asleep.
    """
    w = facts.w
    if size.rule == TakeRule.EVERYTHING or w[W.LOCAL]:
        return ALL
    place, position = E.at_cursor(w[W.CURSOR])
    sequence = min(place, max(0, w[W.TAIL] - 1))
    count = w[facts.dims.group(w[facts.dims.order + sequence % facts.dims.ring]) + W.G_COUNT]
    if size.rule == TakeRule.WHOLE and not w[W.FREE_ORDER]:
        return ALL if count <= size.whole else 1
    queued = (w[W.TAIL] - place) * count - position
    fair = max(size.least, size.chunk // 4, queued // (2 * max(1, w[W.LIMIT])))
    return max(1, min(size.chunk, count // size.share, fair))


def take(facts: LaneFacts, want: int) -> tuple[Next, int, int, int, int]:
    """The tickets taken, up to ``want``, or a slot to collate, or nothing to do now: a ``Visit`` but for its last."""
    w, lane = facts.w, facts.lane
    w[lane + W.L_GENERATION] = w[W.GENERATION]
    if not _works(facts):
        return Next.ASLEEP, 0, 0, 0, 0
    retries = w[W.RETRIES]
    if retries:
        item = w[facts.dims.retry + retries - 1]
        # Off the stack first, held after it: killed in between, the ticket is nobody's and repair queues it. The other
        # way round it would be queued and held, and made twice.
        w[W.RETRIES] = retries - 1
        slot = E.to_collate(item)
        if slot >= 0:
            w[lane + W.L_COLLATE] = E.some(slot)
            return Next.COLLATE, 0, 0, 0, slot
        group, start = E.parts(item)
        end = start + 1
        _hold(facts, group, start, end)
    else:
        group, start, end = _in_turn(facts, want)
        if group < 0:
            return Next.ASLEEP, 0, 0, 0, 0
        _hold(facts, group, start, end)
    slot = E.which(w[facts.dims.group(group) + W.G_SLOT])
    if slot >= 0:
        # Which slot is said last: without it the two others mean nothing.
        w[lane + W.L_ROW], w[lane + W.L_ROWS] = start, end - start
        w[lane + W.L_SLOT] = E.some(slot)
    return Next.TICKETS, group, start, end, slot


def _in_turn(facts: LaneFacts, want: int) -> tuple[int, int, int]:
    """The next tickets in the order drawn, taken off the queue: group (-1: none), start, end."""
    w = facts.w
    sequence, start = E.at_cursor(w[W.CURSOR])
    while sequence < w[W.TAIL]:
        group = w[facts.dims.order + sequence % facts.dims.ring]
        at = facts.dims.group(group)
        if E.second(w[at + W.G_SERIAL]) != sequence:  # all of it was ahead, and its number is in use again
            sequence, start = sequence + 1, 0
            continue
        count, tickets = w[at + W.G_COUNT], facts.dims.ticket(group)
        end = min(count, start + want)
        # Some were queued before all others: those are passed over, the run ends at the next one.
        if w[at + W.G_AHEAD]:
            while start < count and w[tickets + start] & W.AHEAD:
                start += 1
            end = start
            while end < min(count, start + want) and not w[tickets + end] & W.AHEAD:
                end += 1
        # One word holds group and position, so that a death leaves the one place or the other.
        w[W.CURSOR] = E.cursor(sequence + 1, 0) if end == count else E.cursor(sequence, end)
        if start < end:
            return group, start, end
        sequence, start = sequence + 1, 0
    return -1, 0, 0


def _works(facts: LaneFacts) -> bool:
    """True if this lane takes part now: as many do as the limit says, the others are parked.

    One that was put aside with a slow sample finds its place taken when it comes back, and is parked.
    """
    w, lane = facts.w, facts.lane
    if w[lane + W.L_ROLE] == W.WORKING:
        if w[W.FOREGROUND] <= w[W.LIMIT]:
            return True
        w[W.FOREGROUND] -= 1
        w[lane + W.L_ROLE] = W.PARKED
        return False
    if w[W.FOREGROUND] >= w[W.LIMIT]:
        w[lane + W.L_ROLE] = W.PARKED
        return False
    w[lane + W.L_ROLE] = W.WORKING
    w[W.FOREGROUND] += 1
    return True


def _hold(facts: LaneFacts, group: int, start: int, end: int) -> None:
    w, lane = facts.w, facts.lane
    # From here until the group is said, at the end, the lane holds nothing, whatever its other words are.
    w[lane + W.L_GROUP] = w[lane + W.L_BEGAN] = w[lane + W.L_WHOLE] = 0
    w[lane + W.L_POS], w[lane + W.L_START], w[lane + W.L_END] = start, start, end
    w[lane + W.L_SERIAL] = w[facts.dims.group(group) + W.G_SERIAL]
    w[lane + W.L_GROUP] = E.some(group)


def observe(facts: LaneFacts, samples: int, cost: int, cost_bin: int) -> None:
    """Note that ``samples`` were finished that took ``cost`` nanoseconds each."""
    w = facts.w
    # It was put aside for it: whether that was worth it is judged by how much longer than the bar it took.
    if w[facts.lane + W.L_ROLE] == W.ASIDE:
        w[W.RETURNS] += 1
        w[W.EXCESS] += max(0, cost * samples - w[W.BAR])
    w[W.HISTOGRAM + cost_bin] += samples
    if cost > W.STRAGGLER_NS and samples == 1 and 0 < W.STRAGGLES * w[W.THRESHOLD] < cost:
        _log(facts)
    w[W.FINISHED] += samples
    if 0 < w[W.THRESHOLD] < cost:
        w[W.SLOW] += samples


def _log(facts: LaneFacts) -> None:
    """Note the index of the sample just made, if it is a number."""
    w, group = facts.w, E.which(facts.w[facts.lane + W.L_GROUP])
    at = facts.dims.group(group)
    if group < 0 or w[at + W.G_KIND] & W.PICKLED or w[at + W.G_SERIAL] != w[facts.lane + W.L_SERIAL]:
        return
    index = w[facts.dims.index(group) + w[facts.lane + W.L_START]]
    w[W.LOG + w[W.LOGGED] % W.LOG_SIZE] = index
    w[W.LOGGED] += 1
