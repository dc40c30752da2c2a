"""Publication of a batch in the ledger: its slot is opened, its tickets are queued, lanes are woken for them.

The lock is held.
"""

from array import array
from collections.abc import Sequence
from enum import IntFlag
from functools import lru_cache
from typing import NamedTuple

from headrace.sched import encoding as E
from headrace.sched import ledger_layout as W
from headrace.sched.epochs.oversight import rouse
from headrace.sched.epochs.repair import complete, push
from headrace.sched.epochs.slots import TrainerView


class IndexKind(IntFlag):
    """Ways in which the indices of a group are written."""

    INTEGERS = W.INTEGERS
    """Indices as words."""
    PICKLED = W.PICKLED
    """In its blob."""
    PLANNED = W.PLANNED
    """Added: behind them, its blob says where what is needed for each sample lies."""


class Batch(NamedTuple):
    """A batch to be made: its slot, and the group of tickets that were drawn with it."""

    slot: int
    expected: int
    """Rows of the slot."""
    collate: bool
    """A worker must."""
    group: int
    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody needs here
    """Tickets of the group."""
    kind: IndexKind
    """The way its indices are written."""
    blob: int
    """Bytes that its blob begins with."""
    free_order: bool
    """Rows are claimed by those who finish; else they are assigned now."""


@lru_cache(maxsize=64)
def _zeros(count: int) -> "array[int]":
    return array("q", bytes(8 * count))


def publish(ledger: TrainerView, batch: Batch, lanes: int, ahead: Sequence[int], relaxed: bool) -> list[int]:
    """See ``TrainerLedger``."""
    _open(ledger, batch.slot, batch.expected, collate=batch.collate)
    _queue(ledger, batch, ahead)
    if batch.free_order:
        _offer(ledger, batch.slot)
    return rouse(ledger, lanes, _worth_waking(ledger, batch.count, lanes, relaxed=relaxed))


def publish_empty(ledger: TrainerView, slot: int, group: int, lanes: int) -> list[int]:
    """See ``TrainerLedger``."""
    _open(ledger, slot, 0, collate=True)
    ledger.w[ledger.dims.group(group) + W.G_COUNT] = 0
    complete(ledger, slot)
    return rouse(ledger, lanes)


def _open(ledger: TrainerView, slot: int, expected: int, *, collate: bool) -> None:
    """Prepare a slot to take ``expected`` rows."""
    w, at = ledger.w, ledger.dims.slot(slot)
    if w[W.HOLES]:
        _forget_holes(ledger, slot)
    w[at : at + W.SLOT] = _zeros(W.SLOT)
    states = ledger.dims.row_state(slot)
    w[states : states + expected] = _zeros(expected)  # EMPTY
    w[at + W.S_EXPECTED], w[at + W.S_COLLATE] = expected, int(collate)
    w[at + W.S_BATCH] = w[W.BATCHES]
    w[W.BATCHES] += 1
    # Last: what is filling is complete.
    w[at + W.S_STATUS] = W.FILLING


def _forget_holes(ledger: TrainerView, slot: int) -> None:
    """Forget the holes that a batch closed at the end of an epoch may have left behind."""
    w, first = ledger.w, ledger.dims.hole
    kept = [hole for hole in w[first : first + w[W.HOLES]].tolist() if E.parts(hole)[0] != slot]
    w[first : first + len(kept)] = array("q", kept)
    w[W.HOLES] = len(kept)


def _queue(ledger: TrainerView, batch: Batch, ahead: Sequence[int]) -> None:
    w, at, tickets = ledger.w, ledger.dims.group(batch.group), ledger.dims.ticket(batch.group)
    count, slot = batch.count, 0 if batch.free_order else E.some(batch.slot)
    w[tickets : tickets + count] = _zeros(count)  # PENDING
    w[at + W.G_COUNT], w[at + W.G_SLOT], w[at + W.G_KIND], w[at + W.G_BLOB] = count, slot, batch.kind, batch.blob
    w[at + W.G_UNCLAIMED], w[at + W.G_AHEAD] = count, int(bool(ahead))
    for position in ahead:
        w[tickets + position] = W.AHEAD
        # Lanes look there first. The mark keeps them from taking it again in its turn.
        push(ledger, W.RETRIES, ledger.dims.retry, E.pair(batch.group, position))
    # The group's number was another batch's: lanes that still hold that one see by the serial that it is gone.
    w[at + W.G_SERIAL] = E.pair(w[W.GENERATION], w[W.TAIL])
    w[ledger.dims.order + w[W.TAIL] % ledger.dims.ring] = batch.group
    w[W.UNRESOLVED] += count
    w[W.TAIL] += 1


def _offer(ledger: TrainerView, slot: int) -> None:
    """Offer a slot to the next finishers, in free order."""
    ledger.w[ledger.dims.slot(slot) + W.S_NUMBER] = ledger.w[W.FILL_TAIL]
    ledger.w[ledger.dims.fill + ledger.w[W.FILL_TAIL] % ledger.dims.ring] = slot
    ledger.w[W.FILL_TAIL] += 1


def _worth_waking(ledger: TrainerView, count: int, lanes: int, *, relaxed: bool) -> int:
    """Lanes worth waking for all that waits to be taken, groups of ``count``; some are awake and come for it."""
    w = ledger.w
    each = 1 if relaxed else -(-count // max(1, w[W.WORTH_WAKING]))
    found = (w[W.TAIL] - E.at_cursor(w[W.CURSOR])[0]) * each + w[W.RETRIES]
    for at in map(ledger.dims.lane, range(lanes)):
        busy = w[at + W.L_WAITING] or w[at + W.L_GROUP] or w[at + W.L_COLLATE]
        found -= not busy and w[at + W.L_ROLE] == W.WORKING
    return found
