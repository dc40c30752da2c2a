"""Feeds training samples to an accelerator: a DataLoader whose batches never wait for a slow sample."""

import importlib
from typing import TYPE_CHECKING, Any

from headrace.core.errors import (
    BadRow,
    BadStoreUrl,
    BatchNotSendable,
    CacheError,
    DeviceUnavailable,
    FilterError,
    HeadraceError,
    IngestError,
    LimitReached,
    LoaderClosed,
    MissingDriver,
    MissingKey,
    NotOnDevice,
    RemoteError,
    SlabError,
    SplitError,
    StateMismatch,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    TooManyErrors,
    TraceError,
    WorkerDied,
)
from headrace.core.options import Loading, Prefetch, Raise, Ranks, Retry, Scheduling, Seeding, Skip
from headrace.core.stats import CacheUse, DeviceUse, Failure, Network, Operation, RemoteUse, Stats
from headrace.core.story import StoryEvent

if TYPE_CHECKING:
    from headrace.cache.cache_options import Cache
    from headrace.dataset import StoreDataset
    from headrace.integrations.torch_loader import traced
    from headrace.loader import DataLoader
    from headrace.ondevice.pixels.choices import OnDevice, Pixels
    from headrace.remote.ray_options import Ray
    from headrace.staging.prefix import deterministic
    from headrace.store.client import Fetching
    from headrace.store.fetch import fetch
    from headrace.store.splits.assignment import split
    from headrace.store.splits.result import Splits
    from headrace.trace.session import tracing

__version__ = "0.1.0"

__all__ = [
    "BadRow",
    "BadStoreUrl",
    "BatchNotSendable",
    "Cache",
    "CacheError",
    "CacheUse",
    "DataLoader",
    "DeviceUnavailable",
    "DeviceUse",
    "Failure",
    "Fetching",
    "FilterError",
    "HeadraceError",
    "IngestError",
    "LimitReached",
    "LoaderClosed",
    "Loading",
    "MissingDriver",
    "MissingKey",
    "Network",
    "NotOnDevice",
    "OnDevice",
    "Operation",
    "Pixels",
    "Prefetch",
    "Raise",
    "Ranks",
    "Ray",
    "RemoteError",
    "RemoteUse",
    "Retry",
    "Scheduling",
    "Seeding",
    "Skip",
    "SlabError",
    "SplitError",
    "Splits",
    "StateMismatch",
    "Stats",
    "StoreDataset",
    "StoreError",
    "StoreRefused",
    "StoreUnavailable",
    "StoryEvent",
    "TooManyErrors",
    "TraceError",
    "WorkerDied",
    "deterministic",
    "fetch",
    "split",
    "traced",
    "tracing",
]


_LATER = {
    "Cache": "headrace.cache.cache_options",
    "DataLoader": "headrace.loader",
    "Fetching": "headrace.store.client",
    "OnDevice": "headrace.ondevice.pixels.choices",
    "Pixels": "headrace.ondevice.pixels.choices",
    "Ray": "headrace.remote.ray_options",
    "Splits": "headrace.store.splits.result",
    "StoreDataset": "headrace.dataset",
    "deterministic": "headrace.staging.prefix",
    "fetch": "headrace.store.fetch",
    "split": "headrace.store.splits.assignment",
    "traced": "headrace.integrations.torch_loader",
    "tracing": "headrace.trace.session",
}


def __dir__() -> list[str]:
    """The public names, those that were not used yet included."""
    return __all__


def __getattr__(name: str) -> Any:
    """Import a name that needs torch or another large module on its first use, so that the command line starts
    without it.
    """
    if name in _LATER:
        globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
