"""What a worker does with the ledger: it takes tickets, claims rows, and files what it made.

The caller brings the lock: hot methods take it, the others want it held.

A worker may be killed between any two stores, and the others may go on for a while before the consumer notices. Then
it recomputes everything derived from the primary facts: ticket states, row states, what living lanes hold. Whatever is
taken and held by nobody is queued again, so a ticket is first taken and then held: no two lanes ever hold the same one.
Until the repair, counts may only err on the safe side: UNRESOLVED goes down last, FAILURES up first.
"""

from array import array
from functools import lru_cache

from headrace.sched import words as W
from headrace.sched.claims import Claims
from headrace.sched.moves import ALL, Appetite, Eats, File, Next, Outcome, Tickets, Visit, Written


@lru_cache(maxsize=64)
def _filled(value: int, count: int) -> "array[int]":
    return array("q", [value]) * count


class LaneLedger(Claims):
    """One worker's view of the ledger."""

    def visit(self, written: Written | None, made: tuple[int, int, int] | None, appetite: Appetite) -> Visit:
        """File what was written and what it cost (samples, nanoseconds each, bin); take what is next.

        Takes the lock.
        """
        with self.lock:
            outcome = Outcome(-1, wake=False)
            if written is not None:
                outcome = self._finish(written)
                if outcome.collate >= 0:
                    return Visit(Next.COLLATE, outcome.collate, 1, 0, 0, outcome.wake)
            if made is not None:
                self._observe(*made)
            self._release()
            if self.w[W.STOP]:
                return Visit(Next.STOP, 0, 0, 0, 0, outcome.wake)
            want = self._wanted(appetite)
            item = self._take(want)
            if item is None:
                self.w[self.lane + W.L_WAITING] = W.FOR_WORK
                return Visit(Next.ASLEEP, 0, 0, 0, 0, outcome.wake)
            if isinstance(item, int):
                return Visit(Next.COLLATE, item, 0, 0, 0, outcome.wake)
            self.w[W.BITE] = max(want, appetite.least)
            return Visit(Next.TICKETS, *item, outcome.wake)

    def finish(self, written: Written) -> Outcome:
        """File what was written, while more of the tickets held is to come. Takes the lock."""
        with self.lock:
            return self._finish(written)

    def end_long(self) -> int:
        """``end`` of a chunk that took long: where the tickets end that were not taken away. Takes the lock."""
        w, lane = self.w, self.lane
        with self.lock:
            w[lane + W.L_POS] = w[lane + W.L_END]
            return w[lane + W.L_END]

    def ready(self, slot: int, offset: int, size: int, *, failed: bool) -> bool:
        """The collated object of a slot stands at ``offset``; whether the consumer must be woken. Takes the lock."""
        with self.lock:
            return self._ready(slot, offset, size, failed=failed)

    def whole(self, slot: int, group: int, made: list[int], result: tuple[int, int, bool]) -> bool:
        """A batch made by this lane alone: positions ``made`` are done, ``result`` is (offset, size, failed).

        Its samples stand nowhere else: if the lane dies before the result is filed, they are made again. Whether the
        consumer must be woken. Takes the lock.
        """
        with self.lock:
            return self._whole(slot, group, made, result)

    def _wanted(self, appetite: Appetite) -> int:
        """How many tickets to take: the less is queued, the fewer, so that lanes run out of them together.

        But no fewer than a quarter of a chunk: the lanes that share the queue may be asleep.
        """
        w = self.w
        if appetite.eats == Eats.EVERYTHING or w[W.LOCAL]:
            return ALL
        sequence = min(w[W.CURSOR] >> 24, max(0, w[W.TAIL] - 1))
        count = w[self._group0 + w[self._order + sequence % self._ring] * self._group_stride + W.G_COUNT]
        if appetite.eats == Eats.WHOLE and not w[W.FREE_ORDER]:
            return ALL if count <= appetite.whole else 1
        queued = (w[W.TAIL] - (w[W.CURSOR] >> 24)) * count - (w[W.CURSOR] & 0xFFFFFF)
        fair = max(appetite.least, appetite.chunk // 4, queued // (2 * max(1, w[W.LIMIT])))
        return max(1, min(appetite.chunk, count // appetite.share, fair))

    def _take(self, want: int) -> Tickets | int | None:
        """Up to ``want`` tickets; or a slot to collate (an int); or None when there is nothing to do now."""
        w, lane = self.w, self.lane
        w[lane + W.L_GENERATION] = w[W.GENERATION]
        if not self._works():
            return None
        retries = w[W.RETRIES]
        if retries:
            item = w[self.dims.retry + retries - 1]
            if item < 0:
                w[W.RETRIES] = retries - 1
                w[lane + W.L_COLLATE] = -item
                return -item - 1
            group, start, end = item >> 32, item & 0xFFFFFFFF, (item & 0xFFFFFFFF) + 1
            w[W.RETRIES] = retries - 1
            self._hold(group, start, end)
        else:
            group, start, end = self._in_turn(want)
            if group < 0:
                return None
            self._hold(group, start, end)
        slot = w[self._group0 + group * self._group_stride + W.G_SLOT] - 1
        if slot >= 0:
            w[lane + W.L_ROW], w[lane + W.L_ROWS] = start, end - start
            w[lane + W.L_SLOT] = slot + 1
        return Tickets(group, start, end, slot)

    def _in_turn(self, want: int) -> tuple[int, int, int]:
        """The next tickets in the order drawn, taken off the queue: group (-1: none), start, end."""
        w = self.w
        sequence, start = w[W.CURSOR] >> 24, w[W.CURSOR] & 0xFFFFFF
        while sequence < w[W.TAIL]:
            group = w[self._order + sequence % self._ring]
            at = self._group0 + group * self._group_stride
            if w[at + W.G_SERIAL] & 0xFFFFFFFF != sequence:  # all of it was ahead, and its number is in use again
                sequence, start = sequence + 1, 0
                continue
            count, tickets = w[at + W.G_COUNT], self._ticket0 + group * self._group_stride
            end = min(count, start + want)
            if w[at + W.G_AHEAD]:
                while start < count and w[tickets + start] & W.AHEAD:
                    start += 1
                end = start
                while end < min(count, start + want) and not w[tickets + end] & W.AHEAD:
                    end += 1
            w[W.CURSOR] = (sequence + 1) << 24 if end == count else sequence << 24 | end
            if start < end:
                return group, start, end
            sequence, start = sequence + 1, 0
        return -1, 0, 0

    def _works(self) -> bool:
        """Whether this lane takes part now: as many do as the limit says, the others are parked.

        One that was put aside with a slow sample finds its place taken when it comes back, and is parked.
        """
        w, lane = self.w, self.lane
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

    def _observe(self, samples: int, cost: int, cost_bin: int) -> None:
        """``samples`` were finished that took ``cost`` nanoseconds each."""
        w = self.w
        if w[self.lane + W.L_ROLE] == W.ASIDE:
            w[W.RETURNS] += 1
            w[W.EXCESS] += max(0, cost * samples - w[W.BAR])
        w[W.HISTOGRAM + cost_bin] += samples
        if cost > W.STRAGGLER_NS and samples == 1 and 0 < W.STRAGGLES * w[W.THRESHOLD] < cost:
            self._log()
        w[W.FINISHED] += samples
        if 0 < w[W.THRESHOLD] < cost:
            w[W.SLOW] += samples

    def _log(self) -> None:
        """Note the index of the sample just made, if it is a number."""
        w, group = self.w, self.w[self.lane + W.L_GROUP] - 1
        at = self._group0 + group * self._group_stride
        if group < 0 or w[at + W.G_KIND] & W.PICKLED or w[at + W.G_SERIAL] != w[self.lane + W.L_SERIAL]:
            return
        index = w[self._index0 + group * self._group_stride + w[self.lane + W.L_START]]
        w[W.LOG + w[W.LOGGED] % W.LOG_SIZE] = index
        w[W.LOGGED] += 1

    def _hold(self, group: int, start: int, end: int) -> None:
        w, lane = self.w, self.lane
        w[lane + W.L_GROUP] = w[lane + W.L_BEGAN] = w[lane + W.L_WHOLE] = 0
        w[lane + W.L_POS], w[lane + W.L_START], w[lane + W.L_END] = start, start, end
        w[lane + W.L_SERIAL] = w[self._group0 + group * self._group_stride + W.G_SERIAL]
        w[lane + W.L_GROUP] = group + 1

    def _finish(self, written: Written) -> Outcome:
        """A ticket somebody else finished first is dropped: its row becomes a hole again."""
        w, lane = self.w, self.lane
        slot, first, count, group, start, objects = written
        last = first + count == w[lane + W.L_ROW] + w[lane + W.L_ROWS]  # else it goes on writing to the slot
        if self.stale:
            if last:
                w[lane + W.L_SLOT] = 0
            return Outcome(-1, wake=False)
        at = self._ticket0 + group * self._group_stride + start
        row_ticket = self._row_ticket0 + slot * self._slot_stride + first
        row_state = self._row_state0 + slot * self._slot_stride + first
        ticket = (group << 32 | start) + 1
        done = count
        if objects is None and not any(w[at : at + count]):
            w[row_ticket : row_ticket + count] = array("q", range(ticket, ticket + count))
            w[row_state : row_state + count] = _filled(W.IN_PLACE, count)
            w[at : at + count] = _filled(W.DONE, count)
        else:
            for i in range(count):
                word = w[at + i]
                if word & 15 != W.PENDING:
                    if w[W.FREE_ORDER]:
                        w[self._hole + w[W.HOLES]] = slot << 32 | first + i
                        w[W.HOLES] += 1
                    done -= 1
                    continue
                w[row_ticket + i] = ticket + i
                w[row_state + i] = W.IN_PLACE if objects is None else W.AS_OBJECT | objects[i] << 8
                w[at + i] = word | W.DONE
        if last:
            w[lane + W.L_SLOT] = 0
        return self._advance(slot, done, needs_collation=objects is not None)

    def fail(self, tickets: Tickets, position: int, file: File) -> Outcome:
        """The sample at ``position`` of those held cannot be had: its row, if it has one, stays empty.

        Takes the lock, and calls ``file`` with it.
        """
        with self.lock:
            if self.stale:  # the group's blob is another's by now
                return Outcome(-1, wake=False)
            return self._fail(tickets.group << 32 | position, file(), tickets.slot)

    def _fail(self, ticket: int, blob: int, slot: int) -> Outcome:
        w = self.w
        at = self._ticket0 + (ticket >> 32) * self._group_stride + (ticket & 0xFFFFFFFF)
        word = w[at]
        if word & 15 != W.PENDING:
            return Outcome(-1, wake=False)
        if slot >= 0:
            row = ticket & 0xFFFFFFFF
            w[self._row_ticket0 + slot * self._slot_stride + row] = ticket + 1
            w[self._row_state0 + slot * self._slot_stride + row] = W.ABSENT
        w[W.FAILURES] += 1
        w[at] = word & 0xF0 | W.FAILED | blob << 8
        if slot >= 0:
            return self._advance(slot, 1, needs_collation=False)
        group = self._group0 + (ticket >> 32) * self._group_stride
        w[group + W.G_UNCLAIMED] -= 1
        w[self._unresolved(w[group + W.G_EPOCH])] -= 1
        return Outcome(-1, wake=self._answers(W.ANY))

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

    def _ready(self, slot: int, offset: int, size: int, *, failed: bool) -> bool:
        w, at = self.w, self._slot0 + slot * self._slot_stride
        w[self.lane + W.L_COLLATE] = 0
        if self.stale or w[at + W.S_STATUS] != W.COLLATING:
            return False
        w[at + W.S_RESULT], w[at + W.S_RESULT_BYTES], w[at + W.S_FAILED] = offset, size, int(failed)
        w[at + W.S_STATUS] = W.READY
        return self._answers(slot + 1)

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

    def _advance(self, slot: int, resolved: int, *, needs_collation: bool) -> Outcome:
        w, at = self.w, self._slot0 + slot * self._slot_stride
        if needs_collation:
            w[at + W.S_COLLATE] = 1
        w[at + W.S_DONE] += resolved
        unresolved = self._unresolved(w[at + W.S_EPOCH])
        if w[at + W.S_DONE] < w[at + W.S_EXPECTED] or w[at + W.S_STATUS] != W.FILLING:
            w[unresolved] -= resolved
            return Outcome(-1, wake=self._ends(unresolved))
        if w[at + W.S_COLLATE]:
            w[self.lane + W.L_COLLATE] = slot + 1
            w[at + W.S_STATUS] = W.COLLATING
            w[unresolved] -= resolved
            return Outcome(slot, wake=self._ends(unresolved))
        w[at + W.S_STATUS] = W.READY
        w[unresolved] -= resolved
        return Outcome(-1, wake=self._answers(slot + 1) or self._ends(unresolved))

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
