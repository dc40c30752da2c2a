"""Decision to keep a sample: what hits on it spare, against the cost of keeping and reading it. Pure."""

from typing import NamedTuple

WITHIN = 4
"""Later epochs in which keeping must pay."""
TRIED = 16
"""Chunks of samples that must have been kept before what that took counts: the first ones meet cold code."""
LOAD = 4.0
"""Times as long as at first assumed that keeping may take, at most: so much slower are the slowest machines."""
WINDOW = 256
"""Samples over which is averaged what making one takes."""


class EntryCost(NamedTuple):
    """Seconds that an entry takes where nobody else is, however small, and for each of its bytes."""

    keep: float
    keep_byte: float
    read: float
    read_byte: float


LOCAL, REMOTE = EntryCost(4e-5, 3.2e-10, 1.2e-5, 1.5e-10), EntryCost(3e-4, 1e-9, 3e-4, 1e-9)
"""Until it is measured: in shared memory, and on a server."""


class KeepingWorth:
    """Worth of keeping, as one process sees it. Times are seconds."""

    def __init__(self, cost: EntryCost) -> None:
        self._cost, self._load, self._tried = cost, float("inf"), 0
        self._spent = self._alone = 0.0  # of the chunk under way
        self._mean = self._made = 0.0
        self._count = -WINDOW  # the first window has what is done once: modules, files that are opened

    def pays(self, took: float, size: int) -> bool:
        """True if a sample that took so long to make is worth an entry of so many bytes.

        Cheap ones among dear ones are: many rows may be read at once, and one sample takes the time of all.
        """
        self._count += 1
        if self._count > 0:
            self._made += took
            if self._count == WINDOW:
                self._mean, self._made, self._count = self._made / WINDOW, 0.0, 0
        return max(took, self._mean) >= self.least(size)

    def least(self, size: int) -> float:
        """The shortest making time for which an entry of so many bytes pays."""
        load = min(LOAD, max(1.0, self._load)) if self._tried >= TRIED else 1.0
        cost = self._cost
        return load * (cost.read + cost.keep / WITHIN + (cost.read_byte + cost.keep_byte / WITHIN) * size)

    def kept(self, took: float, size: int) -> None:
        """An entry was made ready, or written."""
        self._spent += took
        self._alone += self._cost.keep + self._cost.keep_byte * size

    @property
    def keeps(self) -> bool:
        """True while something was kept that is not ``settled``."""
        return self._alone > 0

    def settled(self, took: float) -> None:
        """Note that a chunk's entries were written: the least time of all chunks is this machine's."""
        self._load = min(self._load, (self._spent + took) / self._alone)
        self._tried += 1
        self._spent = self._alone = 0.0
