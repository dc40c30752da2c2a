"""Filing of a lane's work in the ledger: samples it has written to their rows, those that failed, batches it has
collated.

Whoever files the last row of a slot makes it ready, or is told to collate it. The lock is held. A worker may be killed
between any two stores: see ``headrace.sched.lanes.lane_ledger``.
"""

from array import array
from functools import lru_cache

from headrace.sched import encoding as E
from headrace.sched import ledger_layout as W
from headrace.sched.lanes.lane_messages import Filed, Written
from headrace.sched.lanes.lane_words import LaneFacts


@lru_cache(maxsize=64)
def _filled(value: int, count: int) -> "array[int]":
    return array("q", [value]) * count


def check(facts: LaneFacts, written: Written) -> None:
    """Raise IndexError or ValueError where that cannot have been written. Without the lock."""
    slot, first, count, group, start, objects = written
    facts.dims.check_slot(slot)
    facts.dims.check_group(group)
    facts.dims.check_span("rows", first, count)
    facts.dims.check_span("tickets", start, count)
    if objects is not None and len(objects) != count:
        raise ValueError(f"{len(objects)} objects for {count} rows")


def finish(facts: LaneFacts, written: Written) -> Filed:
    """File what was written. A ticket somebody else finished first is dropped: its row becomes a hole again."""
    w, lane = facts.w, facts.lane
    slot, first, count, group, start, objects = written
    last = first + count == w[lane + W.L_ROW] + w[lane + W.L_ROWS]  # else it goes on writing to the slot
    if facts.stale:
        if last:
            w[lane + W.L_SLOT] = 0
        return Filed(-1, wake=False)
    at = facts.dims.ticket(group) + start
    row_ticket = facts.dims.row_ticket(slot) + first
    row_state = facts.dims.row_state(slot) + first
    ticket = E.some(E.pair(group, start))
    done = count
    # All of them are fresh, as nearly always: three copies in place of three stores for each.
    # Row before ticket, here and below: killed in between, repair finds the row and calls the ticket done. The other
    # way round a sample would count as made that stands nowhere.
    if objects is None and not any(w[at : at + count]):
        w[row_ticket : row_ticket + count] = array("q", range(ticket, ticket + count))
        w[row_state : row_state + count] = _filled(W.IN_PLACE, count)
        w[at : at + count] = _filled(W.DONE, count)
    else:
        for i in range(count):
            word = w[at + i]
            if E.state(word) != W.PENDING:
                # In sampler order the row is that ticket's, and whoever finished it has filled it.
                if w[W.FREE_ORDER]:
                    w[facts.dims.hole + w[W.HOLES]] = E.pair(slot, first + i)
                    w[W.HOLES] += 1
                done -= 1
                continue
            w[row_ticket + i] = ticket + i
            w[row_state + i] = W.IN_PLACE if objects is None else E.as_object(objects[i])
            w[at + i] = word | W.DONE
    # Not before: what a lane holds is no hole to repair, however empty it is.
    if last:
        w[lane + W.L_SLOT] = 0
    return _advance(facts, slot, done, needs_collation=objects is not None)


def fail(facts: LaneFacts, number: int, position: int, blob: int, slot: int) -> Filed:
    """A sample of group ``number`` cannot be had; its error stands at ``blob``. Its row in ``slot`` stays empty."""
    w = facts.w
    at = facts.dims.ticket(number) + position
    word = w[at]
    if E.state(word) != W.PENDING:
        return Filed(-1, wake=False)
    if slot >= 0:
        w[facts.dims.row_ticket(slot) + position] = E.some(E.pair(number, position))
        w[facts.dims.row_state(slot) + position] = W.ABSENT
    # Too many for a moment sends the trainer to look in vain; too few would let an error go unnoticed.
    w[W.FAILURES] += 1
    w[at] = E.failed(word, blob)
    if slot >= 0:
        return _advance(facts, slot, 1, needs_collation=False)
    w[facts.dims.group(number) + W.G_UNCLAIMED] -= 1
    w[W.UNRESOLVED] -= 1
    return Filed(-1, wake=_answers(facts, W.ANY))


def release(facts: LaneFacts) -> None:
    """Note that the lane holds no ticket any more."""
    facts.w[facts.lane + W.L_GROUP] = 0
    facts.w[facts.lane + W.L_SLOT] = 0


def ready(facts: LaneFacts, slot: int, offset: int, size: int, *, failed: bool) -> bool:
    """The collated object of a slot stands at ``offset``; whether the trainer must be woken."""
    w, at = facts.w, facts.dims.slot(slot)
    w[facts.lane + W.L_COLLATE] = 0
    if facts.stale or w[at + W.S_STATUS] != W.COLLATING:
        return False
    w[at + W.S_RESULT], w[at + W.S_RESULT_BYTES], w[at + W.S_FAILED] = offset, size, int(failed)
    w[at + W.S_STATUS] = W.READY
    return _answers(facts, E.some(slot))


def whole(facts: LaneFacts, slot: int, group: int, made: list[int], result: tuple[int, int, bool]) -> bool:
    """A batch made by this lane alone: positions ``made`` are done, ``result`` is (offset, size, failed).

    Its samples stand nowhere else: if the lane dies before the result is filed, they are made again. Whether the
    trainer must be woken.
    """
    w = facts.w
    if facts.stale:
        release(facts)
        return False
    if len(made) == w[facts.dims.slot(slot) + W.S_EXPECTED]:
        wake = finish(facts, Written(slot, 0, len(made), group, 0, [W.WHOLE] * len(made))).wake
    else:
        wake = False
        for position in made:
            wake |= finish(facts, Written(slot, position, 1, group, position, [W.WHOLE])).wake
    offset, size, failed = result
    return ready(facts, slot, offset, size, failed=failed) or wake


def _advance(facts: LaneFacts, slot: int, resolved: int, *, needs_collation: bool) -> Filed:
    w, at = facts.w, facts.dims.slot(slot)
    if needs_collation:
        w[at + W.S_COLLATE] = 1
    w[at + W.S_DONE] += resolved
    # In each case UNRESOLVED goes down last: a trainer that reads 0 there may close the epoch's last slots, so by then
    # all of them must be what they will be.
    if w[at + W.S_DONE] < w[at + W.S_EXPECTED] or w[at + W.S_STATUS] != W.FILLING:
        w[W.UNRESOLVED] -= resolved
        return Filed(-1, wake=_ends(facts))
    if w[at + W.S_COLLATE]:
        # Held before it is said to be under way: one that is collating and held by nobody is queued for another lane.
        w[facts.lane + W.L_COLLATE] = E.some(slot)
        w[at + W.S_STATUS] = W.COLLATING
        w[W.UNRESOLVED] -= resolved
        return Filed(slot, wake=_ends(facts))
    w[at + W.S_STATUS] = W.READY
    w[W.UNRESOLVED] -= resolved
    return Filed(-1, wake=_answers(facts, E.some(slot)) or _ends(facts))


def _ends(facts: LaneFacts) -> bool:
    """True if this was the last ticket and the trainer sleeps: where some failed, batches are short of rows."""
    return facts.w[W.UNRESOLVED] == 0 and _answers(facts, W.ANY)


def _answers(facts: LaneFacts, event: int) -> bool:
    """True if the trainer sleeps for this event; it is woken once."""
    awaited = facts.w[W.AWAITED]
    if awaited == W.NOTHING or (awaited != event and W.ANY not in (awaited, event)):
        return False
    # Whoever sees it first rings; all others save the system call.
    facts.w[W.AWAITED] = W.NOTHING
    return True
