"""Feeds training samples to an accelerator: a DataLoader whose batches never wait for a slow sample."""

from typing import TYPE_CHECKING, Any

from headrace.core.errors import (
    BadRow,
    BadStoreUrl,
    BatchNotSendable,
    DeviceUnavailable,
    HeadraceError,
    LimitReached,
    MissingDriver,
    MissingKey,
    SlabError,
    StateMismatch,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    TooManyErrors,
    TraceError,
    WorkerDied,
)
from headrace.core.options import Loading, Prefetch, Raise, Retry, Scheduling, Seeding, Skip
from headrace.core.stats import Failure, Operation, Stats
from headrace.trace.session import tracing

if TYPE_CHECKING:
    from headrace.integrations.torch_loader import traced
    from headrace.loader import DataLoader
    from headrace.store.client import Fetching
    from headrace.store.fetch import fetch

__version__ = "0.1.0"

__all__ = [
    "BadRow",
    "BadStoreUrl",
    "BatchNotSendable",
    "DataLoader",
    "DeviceUnavailable",
    "Failure",
    "Fetching",
    "HeadraceError",
    "LimitReached",
    "Loading",
    "MissingDriver",
    "MissingKey",
    "Operation",
    "Prefetch",
    "Raise",
    "Retry",
    "Scheduling",
    "Seeding",
    "Skip",
    "SlabError",
    "StateMismatch",
    "Stats",
    "StoreError",
    "StoreRefused",
    "StoreUnavailable",
    "TooManyErrors",
    "TraceError",
    "WorkerDied",
    "fetch",
    "traced",
    "tracing",
]


def __getattr__(name: str) -> Any:
    """What needs torch is imported when it is first used, so that the command line starts without torch."""
    if name == "DataLoader":
        from headrace.loader import DataLoader

        globals()[name] = DataLoader
        return DataLoader
    if name == "traced":
        from headrace.integrations.torch_loader import traced

        globals()[name] = traced
        return traced
    if name in ("Fetching", "fetch"):
        from headrace.store.client import Fetching
        from headrace.store.fetch import fetch

        globals().update(Fetching=Fetching, fetch=fetch)
        return globals()[name]
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
