"""What a loader's cache came to, counted where requests are answered."""

from collections.abc import Mapping, Sequence

from headrace.cache.book import Serving
from headrace.cache.words import Array
from headrace.core.stats import CacheUse, Division
from headrace.engine.consumer.tally import Tally


class Hits:
    """Counts since the loader was made."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.tally: Tally | None = None
        """The loader's, to be kept up to date."""
        self._forms = [0, 0, 0, 0]
        self._exchanged = 0
        self._ledger: Mapping[str, int] = {}
        self._division = Division()

    def count(self, servings: Sequence[Serving], asked: Array) -> None:
        """A request was answered."""
        for each in servings:
            self._forms[each.form] += 1
        self._exchanged += len({each.sample for each in servings}.difference(asked.tolist()))
        self._show()

    def learn(self, counts: Mapping[str, int], division: Division) -> None:
        """What the ledger has counted, of all jobs, and how the cache is divided."""
        self._ledger, self._division = counts, division
        self._show()

    def _show(self) -> None:
        if self.tally is not None:
            self.tally.cache = self._use()

    def _use(self) -> CacheUse:
        misses, encoded, decoded, augmented = self._forms
        counts = self._ledger
        return CacheUse(
            encoded,
            decoded,
            augmented,
            misses,
            self._exchanged,
            kept=counts.get("admitted", 0),
            evicted=counts.get("evicted", 0),
            lost=counts.get("lost", 0),
            bytes=sum(counts.get(f"bytes_{form}", 0) for form in ("encoded", "decoded", "augmented")),
            division=self._division,
        )
