"""torchdata's convention: whatever has ``state_dict`` and ``load_state_dict`` can be stopped and taken up again."""

from typing import Any, Protocol, TypeGuard


class Stateful(Protocol):
    """A sampler, dataset or iterator that knows where it stands."""

    def state_dict(self) -> dict[str, Any]:
        """Where it stands."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""


def is_stateful(thing: Any) -> TypeGuard[Stateful]:
    """Whether it follows the convention."""
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))
