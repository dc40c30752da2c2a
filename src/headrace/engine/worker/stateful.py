"""torchdata's convention: whatever has ``state_dict`` and ``load_state_dict`` can be stopped and taken up again."""

import copy
import hashlib
from typing import Any, Protocol, TypeGuard

from headrace.core.errors import StateMismatch


class Stateful(Protocol):
    """A sampler, dataset or iterator that knows where it stands."""

    def state_dict(self) -> dict[str, Any]:
        """The position of the object."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""


def is_stateful(thing: Any) -> TypeGuard[Stateful]:
    """True if the object follows the convention, and its state tells all that is left.

    The state of Hugging Face's datasets leaves out what their shuffle buffers hold: such a dataset is read again.
    """
    follows = callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))
    return follows and not shuffles(thing)


def shuffles(dataset: Any) -> list[list[Any]]:
    """The shuffle buffers of a dataset of Hugging Face, each as its size and a digest of its random generator."""
    if not _is_huggingface(dataset):
        return []
    found: list[list[Any]] = []
    left: list[Any] = [getattr(dataset, "_ex_iterable", None)]
    while left:
        each = left.pop()
        left += [getattr(each, "ex_iterable", None)] if hasattr(each, "ex_iterable") else []
        left += list(getattr(each, "ex_iterables", ()))
        if type(each).__name__ == "BufferShuffledExamplesIterable":
            drawn = repr(each.generator.bit_generator.state)
            found.append([each.buffer_size, hashlib.blake2b(drawn.encode(), digest_size=8).hexdigest()])
    return found


def _is_huggingface(thing: Any) -> bool:
    return type(thing).__module__.partition(".")[0] == "datasets"


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
    if _is_huggingface(dataset):
        dataset.load_state_dict({})
