"""The order in which indices are drawn, and how to draw the same again after a resume."""

import base64
import copy
from collections.abc import Iterator
from enum import Enum
from itertools import islice
from typing import Any, NamedTuple

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
        self._sampler, self._inner = index_sampler, _innermost(index_sampler)
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
        self._base: tuple[int, Any] = (0, None)  # so many were drawn when a stateful sampler or iterator was so
        self._last: tuple[int, Any] = (0, None)  # how many items were drawn here, and the last of them
        self._drawing = False
        state = self._saved.get("sampler")
        if state is not None and is_stateful(self._inner):
            self._inner.load_state_dict(copy.deepcopy(state))
            self._exhausted = bool(self._saved.get("exhausted"))  # such a sampler stands at the start of its next pass
        elif "epoch" in self._saved and hasattr(self._inner, "set_epoch"):
            self._inner.set_epoch(self._saved["epoch"])
        self._iterator: Iterator[Any] = iter(index_sampler)

    def item(self, number: int) -> Any:
        """The index, or batch of indices, drawn as so many-th here; the sampler's own exceptions come through.

        Asked for the same one again, it is the same: an interrupt may keep the caller from noting it.
        """
        if number <= self._last[0]:
            return self._last[1]
        if self._drawing:
            self._draw_again(number - 1)
        if self._exhausted:
            raise StopIteration
        self._drawing = True
        try:
            self._note(number, self._next())
        except StopIteration:
            self._exhausted = True
            self._drawing = False
            raise
        except Exception:
            # The sampler's own, or a signal handler's that ran in the middle of it: then it draws well the second time.
            self._draw_again(number - 1)
            try:
                self._note(number, self._next())
            except Exception:  # noqa: BLE001  (its own: the first one is raised)
                self._drawing = False
            raise
        return self._last[1]

    def _note(self, number: int, item: Any) -> None:
        self._ended = bool(self._full) and len(item) < self._full
        self._last = number, item
        self._drawing = False

    def _next(self) -> Any:
        if not self._started:
            self._begin()
            self._started = True
        return next(self._iterator)

    def _begin(self) -> None:
        saved = self._saved
        drawn = saved.get("drawn", 0)
        if saved.get("iterator") is not None and is_stateful(self._iterator):
            self._iterator.load_state_dict(copy.deepcopy(saved["iterator"]))
            again: Any = self._iterator
            self._pass(again, saved.get("again", 0))
        elif saved.get("sampler") is not None:
            self._pass(self._iterator, saved.get("again", 0))
        else:
            self._iterator = self._forward(self._iterator, drawn, saved.get("random"))
        self.drawn = drawn
        self._base = self._last[0], self._live()

    def _live(self) -> tuple[str, Any] | None:
        """The state that a stateful sampler, or its iterator, says it has; None where none of them has any."""
        if is_stateful(self._inner):
            return "sampler", copy.deepcopy(self._inner.state_dict())
        if is_stateful(self._iterator):
            return "iterator", copy.deepcopy(self._iterator.state_dict())
        return None

    def _draw_again(self, drawn: int) -> None:
        """An interrupt came while the sampler drew: where it stands is unknown, so it draws again what it drew here."""
        before, state = self._base
        if not self._started:
            state = (
                ("sampler", self._saved["sampler"]) if is_stateful(self._inner) and "sampler" in self._saved else None
            )
        if state is None and not self._started:
            self._iterator = iter(self._sampler)
            return
        if state is None:
            self._iterator = self._forward(iter(self._sampler), self.drawn + drawn, self._random)
            return
        kind, known = state
        if kind == "sampler":
            self._inner.load_state_dict(copy.deepcopy(known))
        self._iterator = iter(self._sampler)
        if kind == "iterator":
            loading: Any = self._iterator
            loading.load_state_dict(copy.deepcopy(known))
        if self._started:
            self._pass(self._iterator, drawn - before)

    @staticmethod
    def _pass(iterator: Iterator[Any], count: int) -> None:
        for _ in islice(iterator, count):
            pass

    def _forward(self, iterator: Iterator[Any], drawn: int, random: str | None) -> Iterator[Any]:
        """Start the iterator from the random state it once started from, and pass over what was drawn."""
        generator = getattr(self._inner, "generator", None)
        own = generator if isinstance(generator, torch.Generator) else torch.default_generator
        if random is None:
            self._random = pack_random(own.get_state()) if hasattr(self._inner, "generator") else None
            self._pass(iterator, drawn)
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
        return _chain(first[drawn:], iterator)

    def state(self, drawn: int) -> dict[str, Any]:
        """Where the draw stands after so many items drawn here; JSON-serialisable unless a sampler's own is not."""
        state: dict[str, Any] = {"drawn": self.drawn + drawn, "batch_size": self._size}
        if not self._started:
            return dict(self._saved or state)
        before, known = self._base
        if known is not None:
            if self._drawing or drawn != self._last[0]:  # the sampler's own may be of one item more
                state["again"] = drawn - before
            else:
                known = self._live() or known
            state[known[0]] = copy.deepcopy(known[1])
            if known[0] == "sampler":
                state["exhausted"] = self._exhausted or (self._ended and drawn == self._last[0])
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


class _At(NamedTuple):
    """What was drawn and not handed out: changed by one store."""

    head: list[Any] | None
    """The group that is handed out now."""
    kept: tuple[list[Any], ...]
    flat: tuple[Any, ...]
    drawn: int
    """Items taken from the order."""


class Groups:
    """Batches of indices to make: first what a resumed epoch had drawn and not delivered, then what the order gives."""

    def __init__(self, order: Order, pending: list[list[Any]], batch_size: int | None, *, batched: bool) -> None:
        """``batch_size``: pending samples are regrouped to it, since out of order they are parts of several batches."""
        self._order, self._batched = order, batched
        self._size = batch_size
        kept = tuple(list(group) for group in pending if group)
        flat = tuple(index for group in kept for index in group) if batch_size is not None else ()
        self._at = _At(None, kept if batch_size is None else (), flat, 0)

    def head(self) -> list[Any] | None:
        """The next group, or None at the end of the epoch; the same one until it was ``taken``."""
        if self._at.head is None:
            self._draw()
        return self._at.head

    @property
    def drawn(self) -> list[Any] | None:
        """The head, if it was drawn."""
        return self._at.head

    def taken(self) -> None:
        """The head is in somebody else's care."""
        self._at = self._at._replace(head=None)

    def _draw(self) -> None:
        at = self._at
        if at.kept:
            self._at = at._replace(head=at.kept[0], kept=at.kept[1:])
            return
        while at.flat and self._size is not None and len(at.flat) < self._size:
            try:
                item = self._order.item(at.drawn + 1)
            except StopIteration:
                break
            self._at = at = at._replace(flat=(*at.flat, *item), drawn=at.drawn + 1)
        if at.flat:
            self._at = at._replace(head=list(at.flat[: self._size]), flat=at.flat[self._size :])
            return
        try:
            item = self._order.item(at.drawn + 1)
        except StopIteration:
            return
        self._at = at._replace(head=list(item) if self._batched else [item], drawn=at.drawn + 1)

    def again(self, pending: list[list[Any]]) -> "Groups":
        """The same, but ``pending`` first."""
        groups = Groups(self._order, pending, self._size, batched=self._batched)
        groups._at = groups._at._replace(drawn=self._at.drawn)
        return groups

    def progress(self, held: list[list[Any]], besides: list[list[Any]] | None = None) -> dict[str, Any]:
        """For a resume: ``held``, drawn and not delivered, and what waits here; not the head if it is ``besides``."""
        at = self._at
        head = [list(at.head)] if at.head and not any(at.head is group for group in besides or ()) else []
        waiting = [list(group) for group in at.kept] + ([list(at.flat)] if at.flat else [])
        return {"pending": held + head + waiting, "order": self._order.state(at.drawn)}
