"""What a loader's cache came to, counted where requests are answered."""

from collections.abc import Mapping, Sequence

from headrace.cache.ledger import Serving
from headrace.cache.words import Array
from headrace.core.stats import CacheUse


class Hits:
    """Counts since the loader was made."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._forms = [0, 0, 0, 0]
        self._exchanged = 0

    def count(self, servings: Sequence[Serving], asked: Array) -> None:
        """A request was answered."""
        for each in servings:
            self._forms[each.form] += 1
        self._exchanged += len({each.sample for each in servings}.difference(asked.tolist()))

    def use(self, counts: Mapping[str, int]) -> CacheUse:
        """The counts as they are now, with what the ledger counted."""
        misses, encoded, decoded, augmented = self._forms
        return CacheUse(
            encoded,
            decoded,
            augmented,
            misses,
            self._exchanged,
            kept=counts["admitted"],
            evicted=counts["evicted"],
            lost=counts["lost"],
            bytes=sum(counts[f"bytes_{form}"] for form in ("encoded", "decoded", "augmented")),
        )
