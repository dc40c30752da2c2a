"""The orders by which processes make samples beside a cache."""

from collections.abc import Callable
from typing import Any

from headrace.cache.share import Share
from headrace.caching.counts import Counter, Counts
from headrace.caching.plans import Caching
from headrace.caching.staged import Staged
from headrace.core.errors import CacheError
from headrace.engine.worker.maker import Maker, Making
from headrace.fetching.arena import Arena
from headrace.staging import stages

MakesStaged = Callable[[Any, Caching, Counter, Share | None, Arena | None], Staged]
"""Makes a ``Staged``, or what does its work where samples come from elsewhere."""


class StagedMaking(Making):
    """The orders by which a process makes samples beside a cache."""

    one_by_one = True

    def __init__(self, caching: Caching, counts: Counts, share: Share, other: Making) -> None:
        """``share``: the rank's own, for the trainer's process. ``other``: the orders where there is no cache."""
        self._caching, self._other = caching, other
        self._arena: Arena | None = getattr(other, "arena", None)
        self._makes: MakesStaged = getattr(other, "staged", Staged)
        self._own: tuple[Counts, Share] | None = (counts, share)

    def __getstate__(self) -> dict[str, Any]:
        """A worker opens a share of its own."""
        return {**self.__dict__, "_own": None}

    def look(self, dataset: Any) -> str | None:
        """The identity of the dataset's samples."""
        return stages.unasked(dataset)

    def maker(self, dataset: Any, lane: int, seen: Any, *, late: bool) -> Maker:
        """See ``Making``. Raises ``CacheError`` where ``worker_init_fn`` made another dataset of it."""
        if seen is not None:
            stages.check_staged(dataset)
            if stages.unasked(dataset) != seen:
                raise CacheError(
                    "worker_init_fn changes what the dataset's samples are, and with cache= all workers must agree "
                    "about that: change the dataset before it is given to the loader"
                )
        counter = Counter.of_worker(self._caching.counts, lane)
        made = self._makes(dataset, self._caching, counter, None, self._arena)
        if late:
            made.stay_away()
        return made

    def plain(self, dataset: Any) -> Maker:
        """The maker that does without the cache."""
        return self._other.plain(dataset)

    def here(self, dataset: Any) -> Maker:
        """The maker in the trainer's own process."""
        assert self._own is not None
        counts, share = self._own
        return self._makes(dataset, self._caching, counts.here(), share, self._arena)
