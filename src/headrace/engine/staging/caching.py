"""What a process must know to use a loader's cache. Crosses the process boundary with the dataset."""

from dataclasses import dataclass

from headrace.cache.options import Cache
from headrace.engine.staging.stages import Scopes


@dataclass(frozen=True, slots=True)
class Caching:
    """The cache, and what of it is this dataset's."""

    options: Cache
    scopes: Scopes
    samples: int
