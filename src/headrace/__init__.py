"""Feeds training samples to an accelerator: a DataLoader whose batches never wait for a slow sample."""

from typing import TYPE_CHECKING, Any

from headrace.core.errors import (
    BatchNotSendable,
    DeviceUnavailable,
    HeadraceError,
    LimitReached,
    SlabError,
    StateMismatch,
    TooManyErrors,
    TraceError,
    WorkerDied,
)
from headrace.core.options import Loading, Raise, Scheduling, Seeding, Skip
from headrace.core.stats import Failure, Operation, Stats
from headrace.trace.session import tracing

if TYPE_CHECKING:
    from headrace.integrations.torch_loader import traced
    from headrace.loader import DataLoader

__version__ = "0.1.0"

__all__ = [
    "BatchNotSendable",
    "DataLoader",
    "DeviceUnavailable",
    "Failure",
    "HeadraceError",
    "LimitReached",
    "Loading",
    "Operation",
    "Raise",
    "Scheduling",
    "Seeding",
    "Skip",
    "SlabError",
    "StateMismatch",
    "Stats",
    "TooManyErrors",
    "TraceError",
    "WorkerDied",
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
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
