"""The error tree.

    HeadraceError
    ├── WorkerDied          a sample killed its worker twice, or workers die before they work   (RuntimeError)
    ├── BatchNotSendable    a batch cannot cross the process boundary                           (RuntimeError)
    ├── TooManyErrors       more samples failed than ``Skip(max_fraction=...)`` allows          (RuntimeError)
    ├── LoaderClosed        the loader was closed before this iteration's epoch was over        (RuntimeError)
    ├── SlabError           the shared memory cannot be had, or a batch does not fit            (RuntimeError)
    ├── LimitReached        descriptors, processes or memory that a limit does not allow        (OSError)
    ├── DeviceUnavailable   ``device=`` names an accelerator that is not there                  (RuntimeError)
    ├── NotOnDevice         a dataset, transform or picture that ``on_device=`` cannot take     (ValueError)
    ├── CacheError          a cache that cannot be had, or cannot do what is asked of it        (RuntimeError)
    ├── RemoteError         samples cannot be made on other hosts as asked                      (RuntimeError)
    ├── StateMismatch       a state that does not belong to this loader                         (ValueError)
    ├── TraceError          a trace that cannot be written or read                              (ValueError)
    ├── SplitError          samples that cannot be divided as asked, a split file that is none  (ValueError)
    │   └── FilterError     a filter that cannot be read, or does not suit the columns
    ├── IngestError         a source that cannot be read as asked                               (ValueError)
    └── StoreError          a store did not give or take what was asked for                     (RuntimeError)
        ├── StoreUnavailable    nobody answers, or not in time: may pass, is tried again
        ├── StoreRefused        credentials, certificate, permission, a table that is not there: stays
        │   └── ClientForked        the client was used before the process was forked, and does not work in it
        ├── MissingKey          no row has that key                                             (LookupError)
        ├── BadRow              a row that is not what its store says it is                     (ValueError)
        ├── BadStoreUrl         a URL that names no store                                       (ValueError)
        └── MissingDriver       the package that talks to such a store is not installed         (ImportError)

Each also derives from the built-in that torch's DataLoader raises in the same place, so ``except RuntimeError``
written for torch keeps working. Errors raised by user code keep their own type.
"""

from typing import Self


class HeadraceError(Exception):
    """The base of all errors that this package raises on its own account."""


class WorkerDied(HeadraceError, RuntimeError):
    """A worker process is gone and running its sample again does not help."""


class BatchNotSendable(HeadraceError, RuntimeError):
    """A batch of ``collate_fn`` or the dataset that cannot be sent to the training process."""


class TooManyErrors(HeadraceError, RuntimeError):
    """The share of failed samples is above the limit the user set."""


class LoaderClosed(HeadraceError, RuntimeError):
    """The loader was closed, perhaps by another thread, and this iteration has not delivered all of its epoch."""

    def __init__(
        self,
        message: str = "the loader was closed while this iteration ran, so its epoch is not complete. iter(loader) "
        "begins a new one; load_state_dict() with what state_dict() says now makes that one go on from here",
    ) -> None:
        super().__init__(message)


class SlabError(HeadraceError, RuntimeError):
    """The shared memory for batches could not be reserved, or is too small for one batch."""


class LimitReached(HeadraceError, OSError):
    """A limit on descriptors, processes or memory does not allow what a loader needs; ``errno`` is the system's."""


class DeviceUnavailable(HeadraceError, RuntimeError):
    """The accelerator asked for does not exist in this process."""


class NotOnDevice(HeadraceError, ValueError):
    """A dataset, transform or picture that the device's stages cannot handle, with ``on_device=``."""


class CacheError(HeadraceError, RuntimeError):
    """A cache that cannot be opened, is of another kind than asked for, or was asked for what it cannot do."""


class RemoteError(HeadraceError, RuntimeError):
    """Samples cannot be made on other hosts as asked, or what is made there is not what would be made here."""


class StateMismatch(HeadraceError, ValueError):
    """A ``state_dict`` that cannot be loaded into this loader."""


class TraceError(HeadraceError, ValueError):
    """A trace file that cannot be written, or that is none."""


class SplitError(HeadraceError, ValueError):
    """Samples cannot be divided as asked, or a split file or a split in it is not what it should be."""


class FilterError(SplitError):
    """A filter that cannot be read, or that asks of a column what it does not have."""


class IngestError(HeadraceError, ValueError):
    """A source of samples that is not there, or cannot be read as asked."""


class StoreError(HeadraceError, RuntimeError):
    """A store did not do what was asked. ``server`` says which one, without credentials; ``key`` which row, if one."""

    def __init__(self, message: str, *, server: str | None = None, key: str | None = None) -> None:
        super().__init__(message)
        self.server = server
        self.key = key

    @classmethod
    def at(cls, server: str, message: str, *, key: str | None = None) -> Self:
        """An error whose message begins with the store's name."""
        return cls(f"{server}: {message}", server=server, key=key)


class StoreUnavailable(StoreError):
    """The store did not answer, or not in time. The only one of its kin that is worth trying again."""


class StoreRefused(StoreError):
    """The store said no, and will say so again: credentials, certificate, permission, a missing table."""


class ClientForked(StoreRefused):
    """The store's client was used before this process was forked, and does not work in it."""


class MissingKey(StoreError, LookupError):
    """The store answered that it has no row with this key."""


class BadRow(StoreError, ValueError):
    """A row that is damaged, or is not what the store's description says."""


class BadStoreUrl(StoreError, ValueError):
    """A URL that names no store, or an option the store does not know."""


class MissingDriver(StoreError, ImportError):
    """The optional package a store needs is not installed; the message has the line that installs it."""
