"""The error tree.

    HeadraceError
    ├── WorkerDied          a sample killed its worker twice, or workers die before they work   (RuntimeError)
    ├── BatchNotSendable    a batch cannot cross the process boundary                           (RuntimeError)
    ├── TooManyErrors       more samples failed than ``Skip(max_fraction=...)`` allows          (RuntimeError)
    ├── SlabError           the shared memory cannot be had, or a batch does not fit            (RuntimeError)
    ├── LimitReached        descriptors, processes or memory that a limit does not allow        (OSError)
    ├── DeviceUnavailable   ``device=`` names an accelerator that is not there                  (RuntimeError)
    ├── CacheError          a cache that cannot be had, or cannot do what is asked of it        (RuntimeError)
    ├── StateMismatch       a state that does not belong to this loader                         (ValueError)
    └── TraceError          a trace that cannot be written or read                              (ValueError)

Each also derives from the built-in that torch's DataLoader raises in the same place, so ``except RuntimeError``
written for torch keeps working. Errors raised by user code keep their own type.
"""


class HeadraceError(Exception):
    """Everything this package raises on its own account."""


class WorkerDied(HeadraceError, RuntimeError):
    """A worker process is gone and running its sample again does not help."""


class BatchNotSendable(HeadraceError, RuntimeError):
    """What ``collate_fn`` or the dataset returned cannot be sent to the training process."""


class TooManyErrors(HeadraceError, RuntimeError):
    """The share of failed samples is above the limit the user set."""


class SlabError(HeadraceError, RuntimeError):
    """The shared memory for batches could not be reserved, or is too small for one batch."""


class LimitReached(HeadraceError, OSError):
    """A limit on descriptors, processes or memory does not allow what a loader needs; ``errno`` is the system's."""


class DeviceUnavailable(HeadraceError, RuntimeError):
    """The accelerator asked for does not exist in this process."""


class CacheError(HeadraceError, RuntimeError):
    """A cache that cannot be opened, is of another kind than asked for, or was asked for what it cannot do."""


class StateMismatch(HeadraceError, ValueError):
    """A ``state_dict`` that cannot be loaded into this loader."""


class TraceError(HeadraceError, ValueError):
    """A trace file that cannot be written, or that is none."""
