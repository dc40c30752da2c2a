"""torchdata's convention: whatever has ``state_dict`` and ``load_state_dict`` can be stopped and taken up again."""

import copy
from typing import Any, Protocol, TypeGuard

from headrace.core.errors import StateMismatch


class Stateful(Protocol):
    """A sampler, dataset or iterator that knows where it stands."""

    def state_dict(self) -> dict[str, Any]:
        """Where it stands."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""


def is_stateful(thing: Any) -> TypeGuard[Stateful]:
    """Whether it follows the convention."""
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))


def load(thing: Any, state: Any, name: str) -> None:
    """Let it go on from a copy of ``state``; whatever it raises is a ``StateMismatch`` that names it."""
    try:
        thing.load_state_dict(copy.deepcopy(state))
    except Exception as error:
        raise StateMismatch(
            f"load_state_dict(state): the {name}, {type(thing).__qualname__}, does not take its state: {error!r}"
        ) from error


def restart(dataset: Stateful) -> None:
    """Let passes after the one that goes on from a loaded state begin at the beginning; called once that has begun.

    Hugging Face's datasets begin every pass over the same epoch at the state they were given last.
    """
    if type(dataset).__module__.partition(".")[0] == "datasets":
        dataset.load_state_dict({})
