"""Feeds training samples to an accelerator: a DataLoader whose batches never wait for a slow sample."""

from headrace.core.errors import (
    BatchNotSendable,
    DeviceUnavailable,
    HeadraceError,
    SlabError,
    StateMismatch,
    TooManyErrors,
    WorkerDied,
)
from headrace.core.options import Loading, Raise, Seeding, Skip
from headrace.core.stats import Failure, Stats
from headrace.loader import DataLoader

__version__ = "0.1.0"

__all__ = [
    "BatchNotSendable",
    "DataLoader",
    "DeviceUnavailable",
    "Failure",
    "HeadraceError",
    "Loading",
    "Raise",
    "Seeding",
    "Skip",
    "SlabError",
    "StateMismatch",
    "Stats",
    "TooManyErrors",
    "WorkerDied",
]
