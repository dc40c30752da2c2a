"""What a lane files in the ledger: samples it has written to their rows, those that failed, batches it has collated.

Whoever files the last row of a slot makes it ready, or is told to collate it. Methods take the lock, or say that it is
held. A worker may be killed between any two stores: see ``headrace.sched.lane``.
"""

from array import array
from functools import lru_cache

from headrace.sched import encoding as E
from headrace.sched import words as W
from headrace.sched.claims import Claims
from headrace.sched.moves import File, Filed, Tickets, Written


@lru_cache(maxsize=64)
def _filled(value: int, count: int) -> "array[int]":
    return array("q", [value]) * count


class Filing(Claims):
    """One worker's."""

    def finish(self, written: Written) -> Filed:
        """File what was written, while more of the tickets held is to come. Takes the lock."""
        self._check_written(written)
        with self.lock:
            return self._finish(written)

    def _check_written(self, written: Written) -> None:
        slot, first, count, group, start, objects = written
        self.dims.check_slot(slot)
        self.dims.check_group(group)
        self.dims.check_span("rows", first, count)
        self.dims.check_span("tickets", start, count)
        if objects is not None and len(objects) != count:
            msg = f"{len(objects)} objects for {count} rows"
            raise ValueError(msg)

    def _finish(self, written: Written) -> Filed:
        """A ticket somebody else finished first is dropped: its row becomes a hole again."""
        w, lane = self.w, self.lane
        slot, first, count, group, start, objects = written
        last = first + count == w[lane + W.L_ROW] + w[lane + W.L_ROWS]  # else it goes on writing to the slot
        if self.stale:
            if last:
                w[lane + W.L_SLOT] = 0
            return Filed(-1, wake=False)
        at = self._ticket0 + group * self._group_stride + start
        row_ticket = self._row_ticket0 + slot * self._slot_stride + first
        row_state = self._row_state0 + slot * self._slot_stride + first
        ticket = E.some(E.pair(group, start))
        done = count
        if objects is None and not any(w[at : at + count]):
            w[row_ticket : row_ticket + count] = array("q", range(ticket, ticket + count))
            w[row_state : row_state + count] = _filled(W.IN_PLACE, count)
            w[at : at + count] = _filled(W.DONE, count)
        else:
            for i in range(count):
                word = w[at + i]
                if E.state(word) != W.PENDING:
                    if w[W.FREE_ORDER]:
                        w[self._hole + w[W.HOLES]] = E.pair(slot, first + i)
                        w[W.HOLES] += 1
                    done -= 1
                    continue
                w[row_ticket + i] = ticket + i
                w[row_state + i] = W.IN_PLACE if objects is None else E.as_object(objects[i])
                w[at + i] = word | W.DONE
        if last:
            w[lane + W.L_SLOT] = 0
        return self._advance(slot, done, needs_collation=objects is not None)

    def fail(self, tickets: Tickets, position: int, file: File) -> Filed:
        """The sample at ``position`` of those held cannot be had: its row, if it has one, stays empty.

        Takes the lock, and calls ``file`` with it.
        """
        with self.lock:
            if self.stale:  # the group's blob is another's by now
                return Filed(-1, wake=False)
            return self._fail(tickets.group, position, file(), tickets.slot)

    def _fail(self, number: int, position: int, blob: int, slot: int) -> Filed:
        w = self.w
        at = self._ticket0 + number * self._group_stride + position
        word = w[at]
        if E.state(word) != W.PENDING:
            return Filed(-1, wake=False)
        if slot >= 0:
            w[self._row_ticket0 + slot * self._slot_stride + position] = E.some(E.pair(number, position))
            w[self._row_state0 + slot * self._slot_stride + position] = W.ABSENT
        w[W.FAILURES] += 1
        w[at] = E.failed(word, blob)
        if slot >= 0:
            return self._advance(slot, 1, needs_collation=False)
        group = self._group0 + number * self._group_stride
        w[group + W.G_UNCLAIMED] -= 1
        w[self._unresolved(w[group + W.G_EPOCH])] -= 1
        return Filed(-1, wake=self._answers(W.ANY))

    def blob_used(self, group: int) -> int:
        """Bytes of a group's blob that are in use."""
        return self.w[self._group0 + group * self._group_stride + W.G_BLOB]

    def use_blob(self, group: int, used: int) -> None:
        """So many of them are from now on. The lock is held."""
        self.w[self._group0 + group * self._group_stride + W.G_BLOB] = used

    def _release(self) -> None:
        """The lane holds no ticket any more."""
        self.w[self.lane + W.L_GROUP] = 0
        self.w[self.lane + W.L_SLOT] = 0

    def ready(self, slot: int, offset: int, size: int, *, failed: bool) -> bool:
        """The collated object of a slot stands at ``offset``; whether the consumer must be woken. Takes the lock."""
        self.dims.check_slot(slot)
        with self.lock:
            return self._ready(slot, offset, size, failed=failed)

    def _ready(self, slot: int, offset: int, size: int, *, failed: bool) -> bool:
        w, at = self.w, self._slot0 + slot * self._slot_stride
        w[self.lane + W.L_COLLATE] = 0
        if self.stale or w[at + W.S_STATUS] != W.COLLATING:
            return False
        w[at + W.S_RESULT], w[at + W.S_RESULT_BYTES], w[at + W.S_FAILED] = offset, size, int(failed)
        w[at + W.S_STATUS] = W.READY
        return self._answers(E.some(slot))

    def whole(self, slot: int, group: int, made: list[int], result: tuple[int, int, bool]) -> bool:
        """A batch made by this lane alone: positions ``made`` are done, ``result`` is (offset, size, failed).

        Its samples stand nowhere else: if the lane dies before the result is filed, they are made again. Whether the
        consumer must be woken. Takes the lock.
        """
        with self.lock:
            return self._whole(slot, group, made, result)

    def _whole(self, slot: int, group: int, made: list[int], result: tuple[int, int, bool]) -> bool:
        w = self.w
        if self.stale:
            self._release()
            return False
        if len(made) == w[self._slot0 + slot * self._slot_stride + W.S_EXPECTED]:
            wake = self._finish(Written(slot, 0, len(made), group, 0, [W.WHOLE] * len(made))).wake
        else:
            wake = False
            for position in made:
                wake |= self._finish(Written(slot, position, 1, group, position, [W.WHOLE])).wake
        offset, size, failed = result
        return self._ready(slot, offset, size, failed=failed) or wake

    def _advance(self, slot: int, resolved: int, *, needs_collation: bool) -> Filed:
        w, at = self.w, self._slot0 + slot * self._slot_stride
        if needs_collation:
            w[at + W.S_COLLATE] = 1
        w[at + W.S_DONE] += resolved
        unresolved = self._unresolved(w[at + W.S_EPOCH])
        if w[at + W.S_DONE] < w[at + W.S_EXPECTED] or w[at + W.S_STATUS] != W.FILLING:
            w[unresolved] -= resolved
            return Filed(-1, wake=self._ends(unresolved))
        if w[at + W.S_COLLATE]:
            w[self.lane + W.L_COLLATE] = E.some(slot)
            w[at + W.S_STATUS] = W.COLLATING
            w[unresolved] -= resolved
            return Filed(slot, wake=self._ends(unresolved))
        w[at + W.S_STATUS] = W.READY
        w[unresolved] -= resolved
        return Filed(-1, wake=self._answers(E.some(slot)) or self._ends(unresolved))

    def _ends(self, unresolved: int) -> bool:
        """Whether this was the last ticket and the consumer sleeps: where some failed, batches are short of rows."""
        return unresolved == W.UNRESOLVED and self.w[unresolved] == 0 and self._answers(W.ANY)

    def _unresolved(self, epoch: int) -> int:
        """Where the tickets of an epoch are counted."""
        return W.UNRESOLVED if epoch == self.w[W.EPOCH] else W.UNRESOLVED_NEXT

    def _answers(self, event: int) -> bool:
        """Whether the consumer sleeps for this event; it is woken once."""
        awaited = self.w[W.AWAITED]
        if awaited == W.NOTHING or (awaited != event and W.ANY not in (awaited, event)):
            return False
        self.w[W.AWAITED] = W.NOTHING
        return True
