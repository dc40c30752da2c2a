"""The order in which indices are drawn, and how to draw the same again after a resume."""

import base64
import copy
from collections.abc import Iterator
from enum import Enum
from itertools import islice
from typing import Any

import torch
from torch.utils.data import BatchSampler

from headrace.core.errors import StateMismatch
from headrace.engine.worker.stateful import is_stateful


class NotYet(Enum):
    """Neither something nor the end."""

    NOT_YET = 0


NOT_YET = NotYet.NOT_YET


class Order:
    """One epoch's pass over a sampler or batch sampler. A lazy sampler draws nothing before the first ``next``."""

    def __init__(self, index_sampler: Any, saved: dict[str, Any] | None = None) -> None:
        """``saved``: what ``state`` returned, to go on from there. Raises ``StateMismatch``."""
        self._inner = _innermost(index_sampler)
        self._saved = saved or {}
        self._size = getattr(index_sampler, "batch_size", None)  # what is drawn at once; None: whatever comes
        if self._saved.get("batch_size", self._size) != self._size:
            msg = (
                f"the state was taken with batch_size={self._saved['batch_size']}, this loader has "
                f"batch_size={self._size}: batches are counted, so an epoch can only be resumed with the same size"
            )
            raise StateMismatch(msg)
        self._random: str | None = None
        self._started = self._exhausted = self._ended = False
        self._full = index_sampler.batch_size if type(index_sampler) is BatchSampler else 0  # fewer: it was the last
        self.drawn = 0
        state = self._saved.get("sampler")
        if state is not None and is_stateful(self._inner):
            self._inner.load_state_dict(copy.deepcopy(state))
            self._exhausted = bool(self._saved.get("exhausted"))  # such a sampler stands at the start of its next pass
        elif "epoch" in self._saved and hasattr(self._inner, "set_epoch"):
            self._inner.set_epoch(self._saved["epoch"])
        self._iterator: Iterator[Any] = iter(index_sampler)

    def __iter__(self) -> "Order":
        """Itself."""
        return self

    def __next__(self) -> Any:
        """The next index, or batch of indices; the sampler's own exceptions come through."""
        if self._exhausted:
            raise StopIteration
        try:
            if not self._started:
                self._started = True
                self._begin()
            item = next(self._iterator)
        except StopIteration:
            self._exhausted = True
            raise
        self.drawn += 1
        self._ended = bool(self._full) and len(item) < self._full
        return item

    def _begin(self) -> None:
        saved = self._saved
        drawn = saved.get("drawn", 0)
        if saved.get("iterator") is not None and is_stateful(self._iterator):
            self._iterator.load_state_dict(copy.deepcopy(saved["iterator"]))
            self.drawn = drawn
        elif saved.get("sampler") is not None:
            self.drawn = drawn
        else:
            self._iterator = self._forward(self._iterator, drawn, saved.get("random"))

    def _forward(self, iterator: Iterator[Any], drawn: int, random: str | None) -> Iterator[Any]:
        """Start the iterator from the random state it once started from, and pass over what was drawn."""
        generator = getattr(self._inner, "generator", None)
        own = generator if isinstance(generator, torch.Generator) else torch.default_generator
        if random is None:
            self._random = pack_random(own.get_state()) if hasattr(self._inner, "generator") else None
            for _ in islice(iterator, drawn):
                pass
            self.drawn = drawn
            return iterator
        # A sampler without a generator draws from the global one: that stands where it stood, for the first draw.
        self._random = random
        now = own.get_state()
        own.set_state(unpack_random(random))
        try:
            first = list(islice(iterator, max(drawn, 1)))
        finally:
            if own is torch.default_generator:
                own.set_state(now)
        self.drawn = drawn
        return _chain(first[drawn:], iterator)

    def state(self) -> dict[str, Any]:
        """Where the draw stands; JSON-serialisable unless a stateful sampler's own state is not."""
        state: dict[str, Any] = {"drawn": self.drawn, "batch_size": self._size}
        if not self._started:
            return dict(self._saved or state)
        if is_stateful(self._inner):
            state["sampler"] = copy.deepcopy(self._inner.state_dict())
            state["exhausted"] = self._exhausted or self._ended
        elif is_stateful(self._iterator):
            state["iterator"] = copy.deepcopy(self._iterator.state_dict())
        elif isinstance(getattr(self._inner, "epoch", None), int) and hasattr(self._inner, "set_epoch"):
            state["epoch"] = self._inner.epoch
        if self._random is not None:
            state["random"] = self._random
        return state


def _innermost(sampler: Any) -> Any:
    """The sampler that draws, under batch samplers and what integrations wrap around them."""
    while (wrapped := getattr(sampler, "batch_sampler", None)) is not None:
        sampler = wrapped
    return getattr(sampler, "sampler", sampler)


def _chain(first: list[Any], rest: Iterator[Any]) -> Iterator[Any]:
    yield from first
    yield from rest


def pack_random(state: torch.Tensor) -> str:
    """A generator's state as text."""
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def unpack_random(text: str) -> torch.Tensor:
    """The state from its text."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


class Groups:
    """Batches of indices to make: first what a resumed epoch had drawn and not delivered, then what the order gives."""

    def __init__(self, order: Order, pending: list[list[Any]], batch_size: int | None, *, batched: bool) -> None:
        """``batch_size``: pending samples are regrouped to it, since out of order they are parts of several batches."""
        self._order, self._batched = order, batched
        self._size = batch_size
        self._kept = [list(group) for group in pending if group]
        self._flat = [index for group in self._kept for index in group] if batch_size is not None else []
        if batch_size is not None:
            self._kept = []

    def next(self) -> list[Any] | None:
        """The next group, or None at the end of the epoch."""
        if self._kept:
            return self._kept.pop(0)
        while self._flat and self._size is not None and len(self._flat) < self._size:
            try:
                self._flat += next(self._order)
            except StopIteration:
                break
        if self._flat:
            group, self._flat = self._flat[: self._size], self._flat[self._size :]
            return group
        try:
            item = next(self._order)
        except StopIteration:
            return None
        return list(item) if self._batched else [item]

    def again(self, pending: list[list[Any]]) -> "Groups":
        """The same, but ``pending`` first."""
        return Groups(self._order, pending, self._size, batched=self._batched)

    def order_state(self) -> dict[str, Any]:
        """Where the draw stands."""
        return self._order.state()

    def waiting(self) -> list[list[Any]]:
        """Indices drawn from the order and not handed out yet."""
        return [list(group) for group in self._kept] + ([list(self._flat)] if self._flat else [])
