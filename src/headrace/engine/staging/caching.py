"""What a process must know to use a loader's cache. Crosses the process boundary with the dataset."""

from dataclasses import dataclass, field

from headrace.cache.company import Unit
from headrace.cache.options import Cache
from headrace.cache.share import START
from headrace.engine.staging.stages import Scopes


@dataclass(frozen=True, slots=True)
class Caching:
    """The cache, and what of it is this dataset's."""

    options: Cache
    scopes: Scopes
    samples: int
    unit: Unit = field(default=Unit("", ""), compare=False)
    """For whom samples are made."""
    counts: str = field(default="", compare=False)
    """Where to count what was found, see ``Counts``."""
    start: tuple[int, int, int] = field(default=START, compare=False)
    """How the room is divided until enough is measured to plan it."""
