"""The choice of rows that may be asked for and kept, so that payloads stay within their memory: numbers in, answers
out.
"""

import heapq

SMOOTH = 16


class Room:
    """Bytes of what was asked for: expected of what is under way, known of what came back.

    Rows are numbered in the order in which they are needed. Those of the first two groups that somebody still waits for
    or works on are always kept: whoever waits for the oldest of them gets it, whatever lies in the arena. All others
    only as far as the memory allows. One that turns out too large for it is asked for again when there is room.
    """

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._live: set[int] = set()  # asked for and not freed
        self._order: list[int] = []  # a heap of those, and of some that are not any more
        self._coming: dict[int, int] = {}  # number -> bytes that are expected
        self._expected = 0
        self._mean = 0.0
        self._known: dict[int, int] = {}  # number -> bytes of one that came and was not kept
        self.group = 1
        """Rows that are needed at once."""

    def add(self, number: int) -> None:
        """Note that somebody waits for this row."""
        self._live.add(number)
        heapq.heappush(self._order, number)

    def end(self, number: int) -> None:
        """Note that nobody waits for this row or works on it any more, and that it takes no memory."""
        self._live.discard(number)
        self._known.pop(number, None)
        self.landed(number)

    def _first(self, number: int) -> bool:
        while self._order and self._order[0] not in self._live:
            heapq.heappop(self._order)
        return not self._order or number < self._order[0] + 2 * self.group

    def owes(self, number: int) -> bool:
        """True if the row came, was not kept, and would be kept now."""
        return number in self._known and self._first(number)

    def allows(self, number: int, used: int, rows: int = 1, others: int = 0) -> bool:
        """True if the row may be asked for now, while payloads take ``used`` bytes.

        ``rows``: those that come with it, itself included. ``others``: those that come with others.
        """
        size = self._known.get(number, int(self._mean)) if rows == 1 else int(self._mean) * rows
        return used + self._expected + size + int(self._mean) * others <= self._memory

    def asked(self, number: int) -> None:
        size = self._coming[number] = self._known.get(number, int(self._mean))
        self._expected += size

    def landed(self, number: int) -> None:
        self._expected -= self._coming.pop(number, 0)

    def keeps(self, number: int, size: int, used: int) -> bool:
        """Note that the row came, with ``size`` bytes; False if it is not kept and must be asked for again."""
        self.landed(number)
        self._mean = size if not self._mean else self._mean + (size - self._mean) / SMOOTH
        if used + size <= self._memory or self._first(number):
            self._known.pop(number, None)
            return True
        self._known[number] = size
        return False
