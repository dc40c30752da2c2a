"""Two tiers as one: what the upper has no room for goes to the lower."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from headrace.cache.tier import Key, Reading, Tier, Usage, Writer


class Layered:
    """Memory above a disk, as a rule. An entry lies in one of them."""

    def __init__(self, upper: Tier, lower: Tier) -> None:
        """Both are closed with this."""
        self.upper, self._lower = upper, lower

    def reading(self) -> "LayeredReading":
        """Of both."""
        return LayeredReading(self.upper.reading(), self._lower.reading())

    def put(self, key: Key, size: int, write: Writer) -> bool:
        """See ``Tier``."""
        with self._lower.reading() as lower:
            (below,) = lower.get([key])
            there = below is not None
            if below is not None:
                below.release()
        return not there and (self.upper.put(key, size, write) or self._below(key, size, write))

    def _below(self, key: Key, size: int, write: Writer) -> bool:
        with self.upper.reading() as upper:  # it was refused above for want of room, or because it is there
            (above,) = upper.get([key])
            there = above is not None
            if above is not None:
                above.release()
        return not there and self._lower.put(key, size, write)

    def delete(self, keys: Sequence[Key]) -> None:
        """See ``Tier``."""
        self.upper.delete(keys)
        self._lower.delete(keys)

    def listed(self) -> Iterator[tuple[Key, int]]:
        """See ``Tier``."""
        yield from self.upper.listed()
        yield from self._lower.listed()

    def clear(self) -> None:
        """See ``Tier``."""
        self.upper.clear()
        self._lower.clear()

    def usage(self) -> Usage:
        """See ``Tier``."""
        above, below = self.upper.usage(), self._lower.usage()
        return Usage(above.entries + below.entries, above.bytes + below.bytes, above.limit + below.limit)

    def footprint(self, size: int) -> int:
        """See ``Tier``: in the upper one, where there is least to waste."""
        return self.upper.footprint(size)

    def close(self) -> None:
        """See ``Tier``."""
        self.upper.close()
        self._lower.close()


class LayeredReading:
    """Looks below for what is not above."""

    def __init__(self, upper: Reading, lower: Reading) -> None:
        """Not entered yet."""
        self.upper, self._lower, self._stack = upper, lower, ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self.upper)
        self._stack.enter_context(self._lower)
        return self

    def get(self, keys: Sequence[Key]) -> list[memoryview | None]:
        """See ``Reading``."""
        found = self.upper.get(keys)
        missing = [at for at, view in enumerate(found) if view is None]
        for at, view in zip(missing, self._lower.get([keys[at] for at in missing]), strict=True):
            found[at] = view
        return found

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
