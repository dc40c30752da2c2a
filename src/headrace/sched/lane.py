"""What a worker does with the ledger: it takes tickets, claims rows (``claims``), and files what it made (``filing``).

The caller brings the lock: hot methods take it, the others want it held.

A worker may be killed between any two stores, and the others may go on for a while before the consumer notices. Then
it recomputes everything derived from the primary facts: ticket states, row states, what living lanes hold. Whatever is
taken and held by nobody is queued again, so a ticket is first taken and then held: no two lanes ever hold the same one.
Until the repair, counts may only err on the safe side: UNRESOLVED goes down last, FAILURES up first.
"""

from headrace.sched import encoding as E
from headrace.sched import words as W
from headrace.sched.filing import Filing
from headrace.sched.moves import ALL, Appetite, Eats, Filed, Next, Visit, Written


class LaneLedger(Filing):
    """One worker's view of the ledger."""

    def visit(self, written: Written | None, made: tuple[int, int, int] | None, appetite: Appetite) -> Visit:
        """File what was written and what it cost (samples, nanoseconds each, bin); take what is next.

        Takes the lock.
        """
        if written is not None:
            self._check_written(written)
        with self.lock:
            outcome = Filed(-1, wake=False)
            if written is not None:
                outcome = self._finish(written)
                if outcome.collate >= 0:
                    return Visit(Next.COMPLETED, 0, 0, 0, outcome.collate, outcome.wake)
            if made is not None:
                self._observe(*made)
            self._release()
            if self.w[W.STOP]:
                return Visit(Next.STOP, 0, 0, 0, 0, outcome.wake)
            want = self._wanted(appetite)
            taken = self._take(want)
            if taken[0] == Next.ASLEEP:
                self.w[self.lane + W.L_WAITING] = W.FOR_WORK
            elif taken[0] == Next.TICKETS:
                self.w[W.BITE] = max(want, appetite.least)
            return Visit(*taken, outcome.wake)

    def end_long(self) -> int:
        """``end`` of a chunk that took long: where the tickets end that were not taken away. Takes the lock."""
        w, lane = self.w, self.lane
        with self.lock:
            w[lane + W.L_POS] = w[lane + W.L_END]
            return w[lane + W.L_END]

    def _wanted(self, appetite: Appetite) -> int:
        """How many tickets to take: the less is queued, the fewer, so that lanes run out of them together.

        But no fewer than a quarter of a chunk: the lanes that share the queue may be asleep.
        """
        w = self.w
        if appetite.eats == Eats.EVERYTHING or w[W.LOCAL]:
            return ALL
        place, position = E.at_cursor(w[W.CURSOR])
        sequence = min(place, max(0, w[W.TAIL] - 1))
        count = w[self._group0 + w[self._order + sequence % self._ring] * self._group_stride + W.G_COUNT]
        if appetite.eats == Eats.WHOLE and not w[W.FREE_ORDER]:
            return ALL if count <= appetite.whole else 1
        queued = (w[W.TAIL] - place) * count - position
        fair = max(appetite.least, appetite.chunk // 4, queued // (2 * max(1, w[W.LIMIT])))
        return max(1, min(appetite.chunk, count // appetite.share, fair))

    def _take(self, want: int) -> tuple[Next, int, int, int, int]:
        """Up to ``want`` tickets, or a slot to collate, or nothing to do now: a ``Visit`` but for its last."""
        w, lane = self.w, self.lane
        w[lane + W.L_GENERATION] = w[W.GENERATION]
        if not self._works():
            return Next.ASLEEP, 0, 0, 0, 0
        retries = w[W.RETRIES]
        if retries:
            item = w[self.dims.retry + retries - 1]
            w[W.RETRIES] = retries - 1
            slot = E.to_collate(item)
            if slot >= 0:
                w[lane + W.L_COLLATE] = E.some(slot)
                return Next.COLLATE, 0, 0, 0, slot
            group, start = E.parts(item)
            end = start + 1
            self._hold(group, start, end)
        else:
            group, start, end = self._in_turn(want)
            if group < 0:
                return Next.ASLEEP, 0, 0, 0, 0
            self._hold(group, start, end)
        slot = E.which(w[self._group0 + group * self._group_stride + W.G_SLOT])
        if slot >= 0:
            w[lane + W.L_ROW], w[lane + W.L_ROWS] = start, end - start
            w[lane + W.L_SLOT] = E.some(slot)
        return Next.TICKETS, group, start, end, slot

    def _in_turn(self, want: int) -> tuple[int, int, int]:
        """The next tickets in the order drawn, taken off the queue: group (-1: none), start, end."""
        w = self.w
        sequence, start = E.at_cursor(w[W.CURSOR])
        while sequence < w[W.TAIL]:
            group = w[self._order + sequence % self._ring]
            at = self._group0 + group * self._group_stride
            if E.second(w[at + W.G_SERIAL]) != sequence:  # all of it was ahead, and its number is in use again
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
            w[W.CURSOR] = E.cursor(sequence + 1, 0) if end == count else E.cursor(sequence, end)
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

    def _hold(self, group: int, start: int, end: int) -> None:
        w, lane = self.w, self.lane
        w[lane + W.L_GROUP] = w[lane + W.L_BEGAN] = w[lane + W.L_WHOLE] = 0
        w[lane + W.L_POS], w[lane + W.L_START], w[lane + W.L_END] = start, start, end
        w[lane + W.L_SERIAL] = w[self._group0 + group * self._group_stride + W.G_SERIAL]
        w[lane + W.L_GROUP] = E.some(group)

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
        w, group = self.w, E.which(self.w[self.lane + W.L_GROUP])
        at = self._group0 + group * self._group_stride
        if group < 0 or w[at + W.G_KIND] & W.PICKLED or w[at + W.G_SERIAL] != w[self.lane + W.L_SERIAL]:
            return
        index = w[self._index0 + group * self._group_stride + w[self.lane + W.L_START]]
        w[W.LOG + w[W.LOGGED] % W.LOG_SIZE] = index
        w[W.LOGGED] += 1
