"""Where entries lie: the seam between the cache and the memory, server or disk that holds its bytes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Protocol, Self


class Key(NamedTuple):
    """What an entry is of: a changed file, dataset or transform has another key, so nothing stale is ever found."""

    scope: str
    """Fingerprint of the dataset and of the steps that made this form, as hexadecimal digits."""
    sample: int
    form: int

    def text(self) -> str:
        """The same for every process and host."""
        return f"{self.scope}:{self.form}:{self.sample}"

    @classmethod
    def parse(cls, text: str) -> "Key":
        """From ``text``."""
        scope, form, sample = text.rsplit(":", 2)
        return cls(scope, int(sample), int(form))


@dataclass(frozen=True, slots=True)
class Usage:
    """What a tier holds."""

    entries: int
    bytes: int
    """As much as it takes away from the limit, what is lost in allocation included."""
    limit: int


class Reading(Protocol):
    """``with`` it, and the views handed out stay what they are; after it they must not be touched."""

    def get(self, keys: Sequence[Key]) -> list[memoryview | None]:
        """One read-only view for each key, or None where there is nothing. Never raises for a lost connection."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Tier(Protocol):
    """Any process may use a tier through an object of its own; an object may be used by one thread at a time.

    A tier that cannot be reached has nothing and takes nothing: no method raises for that after construction.
    """

    def reading(self) -> Reading: ...

    def put(self, key: Key, size: int, write: "Writer") -> bool:
        """Have ``write`` fill ``size`` bytes under ``key``, all at once for others.

        False: there is no room, or it is there already, or it cannot be reached.
        """

    def delete(self, keys: Sequence[Key]) -> None:
        """Those that are there. Who reads them at the moment goes on reading what they were."""

    def listed(self) -> Iterator[tuple[Key, int]]:
        """What is there, with the size of each, in no order. May miss what comes or goes meanwhile."""

    def clear(self) -> None:
        """Delete everything."""

    def usage(self) -> Usage: ...

    def footprint(self, size: int) -> int:
        """What an entry of ``size`` bytes takes away from the limit."""

    def close(self) -> None:
        """Idempotent. What is held stays."""


class Writer(Protocol):
    """Writes an entry into memory that it is given."""

    def __call__(self, target: memoryview) -> None: ...
