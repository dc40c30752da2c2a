"""What a loader's cache came to."""

from headrace.cache.backend import RoomUse
from headrace.core.stats import CacheUse, Division
from headrace.engine.consumer.counters import LoaderCounters
from headrace.engine.staging.counts import Counts


class Hits:
    """Counts since the loader was made: what samples began with, as those who made them say."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.counters: LoaderCounters | None = None
        """The loader's, to be kept up to date."""
        self.counts = Counts()
        self.exchanged = 0
        self._room, self._division = RoomUse(), Division()

    def learn(self, room: RoomUse, division: Division) -> None:
        """What the cache holds of this data, for all jobs, and how it is divided."""
        self._room, self._division = room, division
        self.show()

    def show(self) -> None:
        """Bring the counters up to date."""
        if self.counters is None:
            return
        misses, encoded, decoded, augmented = self.counts.total()
        room = self._room
        self.counters.cache = CacheUse(
            encoded,
            decoded,
            augmented,
            misses,
            self.exchanged,
            kept=room.kept,
            evicted=room.evicted,
            lost=room.lost,
            bytes=sum(room.held),
            division=self._division,
        )
