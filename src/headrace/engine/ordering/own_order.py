"""An order that a loader plans itself, as far as the core knows it."""

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class OwnOrder(Protocol):
    """A sampler that plans what lies beside what, and divides an epoch between ranks where it is asked to."""

    @property
    def words(self) -> str:
        """The order, as ``stats()`` says it."""

    def set_epoch(self, epoch: int) -> None:
        """The next epoch is that one."""

    def marked(self, index: Any, key: str) -> str:
        """The key of a sample that was drawn just now, with what it is to be read with."""


def own_order(index_sampler: Any) -> OwnOrder | None:
    """The order of its own that a loader draws from, itself or in batches."""
    inner = getattr(index_sampler, "sampler", index_sampler)
    return inner if isinstance(inner, OwnOrder) else None
