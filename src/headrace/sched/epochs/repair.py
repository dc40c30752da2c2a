"""The ledger made whole after a death: primary facts are read, what is derived from them is recomputed.

The lock is held throughout, so no living lane is between two stores.
"""

from dataclasses import dataclass

from headrace.sched import encoding as E
from headrace.sched import ledger_layout as W
from headrace.sched.epochs.slots import TrainerView


@dataclass(frozen=True, slots=True)
class Repair:
    """The result of a repair after a lane died."""

    ticket: tuple[int, int] | None
    """(group, position) the lane was working on."""
    deaths: int
    """The number of times that sample has now taken a worker with it."""
    collating: int
    """The slot it was collating, or -1."""
    reissued: list[tuple[int, int]]
    """Tickets (group, position) that will be run again."""


def count_lanes(ledger: TrainerView, lanes: int) -> None:
    """Recount what is derived from the lanes' roles."""
    ledger.w[W.FOREGROUND] = sum(ledger.w[ledger.dims.lane(lane) + W.L_ROLE] == W.WORKING for lane in range(lanes))


def complete(ledger: TrainerView, slot: int) -> None:
    """Complete a slot whose rows are all there that will be: it is ready, or queued for whoever collates it."""
    w, at = ledger.w, ledger.dims.slot(slot)
    if w[at + W.S_COLLATE]:
        w[at + W.S_STATUS] = W.COLLATING
        push(ledger, W.RETRIES, ledger.dims.retry, E.collation(slot))
    else:
        w[at + W.S_STATUS] = W.READY


def push(ledger: TrainerView, count: int, base: int, item: int) -> None:
    """Put something on a stack whose ``count`` stands there, and the first of its items at ``base``."""
    ledger.w[base + ledger.w[count]] = item
    ledger.w[count] += 1


def end_claims(ledger: TrainerView, lane: int) -> tuple[tuple[int, int] | None, int]:
    """Take a dead lane's claims away: the ticket it was on (None if it held none), the slot it collated or -1."""
    w, at = ledger.w, ledger.dims.lane(lane)
    current = w[at + W.L_GENERATION] == w[W.GENERATION]
    working = holds(ledger, at) and w[at + W.L_POS] < w[at + W.L_END]
    ticket = (E.which(w[at + W.L_GROUP]), w[at + W.L_POS]) if working else None
    collating = E.which(w[at + W.L_COLLATE]) if current else -1
    # Claims of an epoch that was given up say nothing about this one's groups and slots, which have their numbers.
    if current:
        _count_made(ledger, at)
    for word in (W.L_GROUP, W.L_SLOT, W.L_COLLATE, W.L_WAITING, W.L_ROLE):
        w[at + word] = 0
    return ticket, collating


def holds(ledger: TrainerView, lane: int) -> bool:
    """True if a lane's claim on tickets is one of this epoch, on the group that has this number now."""
    w = ledger.w
    if not w[lane + W.L_GROUP] or w[lane + W.L_GENERATION] != w[W.GENERATION]:
        return False
    return bool(w[lane + W.L_SERIAL] == w[ledger.dims.group(E.which(w[lane + W.L_GROUP])) + W.G_SERIAL])


def _count_made(ledger: TrainerView, lane: int) -> None:
    """Count a batch of a stream that became ready as made, although the lane died before it counted it."""
    w, made = ledger.w, ledger.w[lane + W.L_MADE]
    slot = w[lane + W.LANE + made % W.STREAM_RING]
    if made < w[lane + W.L_QUOTA] and w[lane + W.L_SLOT] == E.some(slot) and ledger.is_ready(slot):
        w[lane + W.L_MADE] = made + 1


def mend(ledger: TrainerView, dead: int, lanes: int, groups: list[int], slots: list[int]) -> Repair:
    """Make the ledger whole after lane ``dead`` died: ``groups`` and ``slots`` are all that are in use.

    Whatever is neither done, nor queued, nor held by a living lane is queued again. Nothing is guessed: the lock is
    held, so no living lane is between two stores.
    """
    ticket, collating = end_claims(ledger, dead)
    count_lanes(ledger, lanes)
    deaths = 0
    if ticket is not None:
        deaths = _blame(ledger, *ticket)
    if collating >= 0:
        deaths = _blame_collation(ledger, collating, groups)
    # Rows before tickets: one whose row was written is done, and would be made twice if it were queued again.
    for slot in slots:
        _repair_slot(ledger, slot, lanes)
    reissued = _reissue(ledger, lanes, groups)
    # Statuses last: what is complete is known once rows and tickets agree.
    for slot in slots:
        _repair_status(ledger, slot, lanes)
    if ledger.story is not None:
        ledger.story.queued_again(dead, reissued)
    return Repair(ticket, deaths, collating, reissued)


def _blame(ledger: TrainerView, group: int, position: int) -> int:
    """Count a death against a ticket; a ticket that did it too often has failed."""
    w, at = ledger.w, ledger.dims.ticket(group) + position
    if E.state(w[at]) != W.PENDING:
        return 0
    w[at] = E.blamed(w[at])
    deaths = E.deaths(w[at])
    if deaths > W.DEATHS_ALLOWED:
        slot = E.which(w[ledger.dims.group(group) + W.G_SLOT])
        if slot >= 0:
            w[ledger.dims.row_ticket(slot) + position] = E.some(E.pair(group, position))
            w[ledger.dims.row_state(slot) + position] = W.ABSENT
        w[at] = E.failed(w[at], W.NO_BLOB)
        w[W.FAILURES] += 1
        if ledger.story is not None:
            ledger.story.given_up_on(group, position, deaths)
    return deaths


def _blame_collation(ledger: TrainerView, slot: int, groups: list[int]) -> int:
    """Count a death against a batch's collation; a batch that did it too often has failed, with its samples."""
    w, at = ledger.w, ledger.dims.slot(slot)
    w[at + W.S_DEATHS] += 1
    if w[at + W.S_DEATHS] > W.DEATHS_ALLOWED and w[at + W.S_STATUS] in (W.FILLING, W.COLLATING):
        for group in groups:
            # Made by one lane: its tickets are still pending.
            if w[ledger.dims.group(group) + W.G_SLOT] == E.some(slot):
                tickets = ledger.dims.ticket(group)
                for ticket in range(tickets, tickets + w[ledger.dims.group(group) + W.G_COUNT]):
                    if E.state(w[ticket]) == W.PENDING:
                        w[ticket] |= W.DONE
        w[at + W.S_RESULT_BYTES], w[at + W.S_FAILED] = 0, 1
        w[at + W.S_STATUS] = W.READY
    return w[at + W.S_DEATHS]


def _repair_slot(ledger: TrainerView, slot: int, lanes: int) -> None:
    """Repair a slot from its rows, which are the facts; ticket states and counts follow from them."""
    w, dims, at = ledger.w, ledger.dims, ledger.dims.slot(slot)
    if w[at + W.S_STATUS] in (W.FILLING, W.COLLATING):
        _undo_whole(ledger, slot)
    if w[at + W.S_STATUS] != W.FILLING:
        return
    # Only this generation's: a lane that comes back from an older one will find that it holds nothing.
    held = {
        row
        for lane in map(dims.lane, range(lanes))
        if w[lane + W.L_SLOT] == E.some(slot) and w[lane + W.L_GENERATION] == w[W.GENERATION]
        for row in range(w[lane + W.L_ROW], w[lane + W.L_ROW] + w[lane + W.L_ROWS])
    }
    holes = {w[dims.hole + i] for i in range(w[W.HOLES])}
    states, tickets, resolved = dims.row_state(slot), dims.row_ticket(slot), 0
    for row in range(w[at + W.S_EXPECTED]):
        state = E.kind(w[states + row])
        if state == W.EMPTY:
            claimed = w[W.FREE_ORDER] and row < w[at + W.S_CLAIMED]
            if claimed and row not in held and E.pair(slot, row) not in holes:
                push(ledger, W.HOLES, dims.hole, E.pair(slot, row))
            continue
        resolved += 1
        group, position = E.parts(E.which(w[tickets + row]))
        word = dims.ticket(group) + position
        if E.state(w[word]) == W.PENDING and state == W.ABSENT:
            w[states + row] = W.EMPTY  # it failed, but its error was not filed: run it again
            resolved -= 1
        elif E.state(w[word]) == W.PENDING:
            w[word] |= W.DONE
        if state == W.AS_OBJECT:
            w[at + W.S_COLLATE] = 1
    w[at + W.S_DONE] = resolved
    # Its last rows were claimed, and the cursor was not moved on before the death.
    if w[W.FREE_ORDER] and w[at + W.S_CLAIMED] == w[at + W.S_EXPECTED]:
        fill = w[W.FILL_CURSOR]
        if fill < w[W.FILL_TAIL] and w[dims.fill + fill % dims.ring] == slot:
            w[W.FILL_CURSOR] = fill + 1


def _undo_whole(ledger: TrainerView, slot: int) -> None:
    """A batch made whole whose result was not filed: its samples are nowhere and must be made again."""
    w, states, tickets = ledger.w, ledger.dims.row_state(slot), ledger.dims.row_ticket(slot)
    for row in range(w[ledger.dims.slot(slot) + W.S_EXPECTED]):
        if w[states + row] == E.as_object(W.WHOLE):
            group, position = E.parts(E.which(w[tickets + row]))
            at = ledger.dims.ticket(group) + position
            w[at] = E.undone(w[at])
            w[states + row] = W.EMPTY
            w[ledger.dims.slot(slot) + W.S_STATUS] = W.FILLING


def _repair_status(ledger: TrainerView, slot: int, lanes: int) -> None:
    """A complete slot whose last finisher died is completed here; one whose collator died is queued again."""
    w, dims, at = ledger.w, ledger.dims, ledger.dims.slot(slot)
    status = w[at + W.S_STATUS]
    if status == W.FILLING and w[at + W.S_DONE] == w[at + W.S_EXPECTED]:
        complete(ledger, slot)
    elif status == W.COLLATING:
        collated = {E.which(w[dims.lane(lane) + W.L_COLLATE]) for lane in range(lanes)}
        queued = {w[dims.retry + i] for i in range(w[W.RETRIES])}
        if slot not in collated and E.collation(slot) not in queued:
            push(ledger, W.RETRIES, dims.retry, E.collation(slot))


def _reissue(ledger: TrainerView, lanes: int, groups: list[int]) -> list[tuple[int, int]]:
    """Queue every pending ticket that was taken and that nobody holds; recount what is unresolved."""
    w, dims = ledger.w, ledger.dims
    sequence, next_position = E.at_cursor(w[W.CURSOR])
    ahead: dict[int, int] = {}  # groups not handed out wholly yet -> the first position that was not
    for number in range(sequence, w[W.TAIL]):
        group = w[dims.order + number % dims.ring]
        if E.second(w[dims.group(group) + W.G_SERIAL]) == number:
            ahead[group] = next_position if number == sequence else 0
    queued = {w[dims.retry + i] for i in range(w[W.RETRIES])}
    held = {
        E.pair(E.which(w[at + W.L_GROUP]), position)
        for at in map(dims.lane, range(lanes))
        if holds(ledger, at)
        for position in range(w[at + W.L_START], w[at + W.L_END])
    }
    rows_held = [
        (E.which(w[at + W.L_GROUP]), w[at + W.L_ROWS])
        for at in map(dims.lane, range(lanes))
        if w[at + W.L_SLOT] and holds(ledger, at)
    ]
    reissued, unresolved = list[tuple[int, int]](), 0
    # Where a search begins must not be behind any group whose tickets want rows.
    w[W.OLDEST] = min((E.second(w[dims.group(group) + W.G_SERIAL]) for group in groups), default=w[W.TAIL])
    for group in groups:
        tickets, count = dims.ticket(group), w[dims.group(group) + W.G_COUNT]
        pending = sum(E.state(w[tickets + position]) == W.PENDING for position in range(count))
        unresolved += pending
        held_rows = sum(rows for holder, rows in rows_held if holder == group)
        w[dims.group(group) + W.G_UNCLAIMED] = max(0, pending - held_rows)
        for position in range(count):
            if E.state(w[tickets + position]) != W.PENDING:
                continue
            key = E.pair(group, position)
            # Whatever is behind the cursor will be taken in its turn, except what was put before all others.
            taken = position < ahead.get(group, count) or w[tickets + position] & W.AHEAD
            if taken and key not in queued and key not in held:
                push(ledger, W.RETRIES, dims.retry, key)
                reissued.append((group, position))
    w[W.UNRESOLVED] = unresolved
    return reissued
