"""Space in the arena where payloads wait for a worker: who owns it decides here where each of them lies.

What is freed becomes one with the free space beside it, so any of it can be used for anything, and is found by size in
a few steps. Memory that was written to stays taken until it is given back: ``surplus`` says what to give.
Pure: offsets in, offsets out. One owner; others only say what may be used again.
"""

from collections.abc import Iterable, Sequence

ALIGN = 64


def rounded(size: int) -> int:
    """The number of bytes that are set aside for ``size`` bytes."""
    return max(1, -(-size // ALIGN)) * ALIGN


def _bin(size: int) -> int:
    """Free pieces of like sizes are kept together, four kinds to a doubling; larger ones have larger numbers."""
    doubling = size.bit_length()
    return 4 * doubling + (size >> max(0, doubling - 3) & 3)


class Extents:
    """Pieces of ``capacity`` bytes."""

    def __init__(self, capacity: int, live: Iterable[tuple[int, int]] = ()) -> None:
        """``live``: (offset, size) of pieces that are in use already, given out by an owner before this one."""
        self.capacity = capacity
        self.used = 0
        self.touched = 0
        """Bytes that are free and may have been written to, at most."""
        self._used: dict[int, int] = {}  # offset -> what was set aside
        self._free: dict[int, tuple[int, int]] = {}  # offset -> size, and how much of it may have been written to
        self._ends: dict[int, int] = {}  # where a free piece ends -> offset
        self._bins: dict[int, dict[int, None]] = {}  # kind of size -> offsets of free pieces
        self._filled = 0  # a bit for every kind of which there are some
        at = 0
        for offset, size in sorted(live):
            if offset > at:
                self._put(at, offset - at, offset - at)
            at = offset + rounded(size)
            self._hold(offset, rounded(size))
        if at < capacity:
            self._put(at, capacity - at, 0)

    def _hold(self, offset: int, size: int) -> None:
        self._used[offset] = size
        self.used += size

    def allocate(self, size: int) -> int | None:
        """The offset at which ``size`` bytes may be written; None if no free piece is that large."""
        wanted = rounded(size)
        offset = self._found(wanted)
        if offset is None:
            return None
        found, touched = self._take(offset)
        if found > wanted:
            self._put(offset + wanted, found - wanted, min(touched, found - wanted))
        self._hold(offset, wanted)
        return offset

    def allocate_each(self, sizes: Sequence[int]) -> list[int] | None:
        """Offsets for several, one behind the other, which are freed one by one; None if no free piece is that
        large.
        """
        pieces = [rounded(size) for size in sizes]
        offset = self.allocate(sum(pieces))
        if offset is None:
            return None
        self.used -= self._used.pop(offset)
        offsets = []
        for piece in pieces:
            self._hold(offset, piece)
            offsets.append(offset)
            offset += piece
        return offsets

    def _found(self, wanted: int) -> int | None:
        kind = _bin(wanted)
        larger = self._filled >> (kind + 1) << (kind + 1)  # any of these is large enough
        if larger:
            return next(iter(self._bins[(larger & -larger).bit_length() - 1]))
        return next((offset for offset in self._bins.get(kind, ()) if self._free[offset][0] >= wanted), None)

    def free(self, offset: int) -> None:
        """Release the bytes at an offset, which nobody reads any more. Unknown offsets are ignored: it may have
        been said twice.
        """
        size = self._used.pop(offset, None)
        if size is None:
            return
        self.used -= size
        touched = size
        before = self._ends.get(offset)
        if before is not None:
            more, of_it = self._take(before)
            offset, size, touched = before, size + more, touched + of_it
        if offset + size in self._free:
            more, of_it = self._take(offset + size)
            size, touched = size + more, touched + of_it
        self._put(offset, size, touched)

    def surplus(self) -> list[tuple[int, int]]:
        """(offset, size) of all that is free and may have been written to: it counts as given back from now on."""
        found = [(offset, size) for offset, (size, touched) in self._free.items() if touched]
        for offset, size in found:
            self._free[offset] = size, 0
        self.touched = 0
        return found

    def _put(self, offset: int, size: int, touched: int) -> None:
        kind = _bin(size)
        self._free[offset] = size, touched
        self._ends[offset + size] = offset
        self._bins.setdefault(kind, {})[offset] = None
        self._filled |= 1 << kind
        self.touched += touched

    def _take(self, offset: int) -> tuple[int, int]:
        size, touched = self._free.pop(offset)
        del self._ends[offset + size]
        kind = _bin(size)
        del self._bins[kind][offset]
        if not self._bins[kind]:
            self._filled &= ~(1 << kind)
        self.touched -= touched
        return size, touched
