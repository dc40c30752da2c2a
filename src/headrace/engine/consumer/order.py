"""The order in which indices are drawn, and how to draw the same again after a resume."""

import copy
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from torch.utils.data import BatchSampler

from headrace.core.errors import StateMismatch
from headrace.engine.consumer import indices
from headrace.engine.consumer.sources import source
from headrace.engine.worker.stateful import is_stateful, load


class Order:
    """One epoch's pass over a sampler or batch sampler. A lazy sampler draws nothing before the first ``next``.

    Where an epoch goes on and the sampler has no state of its own, what was drawn is drawn again at once.
    """

    def __init__(self, index_sampler: Any, saved: dict[str, Any] | None = None, pending: Any = ()) -> None:
        """``saved``: what ``state`` returned, to go on from there; ``pending``: batches of indices that were drawn.

        Raises ``StateMismatch``, also when pending ones are none of those drawn.
        """
        self._inner = _innermost(index_sampler)
        self._saved = saved or {}
        self._source = source(index_sampler, self._inner)
        self._promised: str | None = self._saved.get("random")
        self._random: str | None = None
        self._started = self._exhausted = self._ended = False
        self._full = index_sampler.batch_size if type(index_sampler) is BatchSampler else 0  # fewer: it was the last
        self.drawn = self._digest = 0
        self._owed: Counter[Any] = Counter(
            index for group in pending for index in group if isinstance(index, (int, str))
        )
        state = self._saved.get("sampler")
        if state is not None and is_stateful(self._inner):
            load(self._inner, state, "sampler")
            self._exhausted = bool(self._saved.get("exhausted"))  # such a sampler stands at the start of its next pass
        elif self._saved.get("epoch") is not None and hasattr(self._inner, "set_epoch"):
            self._inner.set_epoch(self._saved["epoch"])
        self._began = self._source.read() if self._source.at_iter else None
        with self._source.set_to(self._saved.get("began")):
            self._iterator: Iterator[Any] = iter(index_sampler)
        self._began = self._saved.get("began") or self._began
        if self._saved.get("drawn") or self._owed:
            self._start()

    def __iter__(self) -> "Order":
        """Itself."""
        return self

    def __next__(self) -> Any:
        """The next index, or batch of indices; the sampler's own exceptions come through."""
        if self._exhausted:
            raise StopIteration
        try:
            if not self._started:
                self._start()
            item = next(self._iterator)
        except StopIteration:
            self._exhausted = True
            raise
        self.drawn += 1
        self._digest = indices.digest(item, self._digest)
        self._ended = bool(self._full) and len(item) < self._full
        return item

    def _start(self) -> None:
        saved, drawn = self._saved, self._saved.get("drawn", 0)
        if saved.get("iterator") is not None and is_stateful(self._iterator):
            load(self._iterator, saved["iterator"], "sampler's iterator")
            self._digest = saved["digest"]
        elif saved.get("sampler") is not None:
            self._digest = saved["digest"]
        else:
            self._draw_again(drawn)
        self._started, self.drawn = True, drawn

    def _draw_again(self, drawn: int) -> None:
        """Start the iterator from the random state it starts from, and pass over what was drawn."""
        self._random = self._source.read()
        if self._promised is None or (self._promised == self._random and drawn == 0):
            first = self._passed(drawn)
        else:
            self._random = self._promised
            with self._source.set_to(self._promised):
                first = self._passed(drawn, and_one=1)
        if first:
            self._iterator = chain(first, self._iterator)

    def _passed(self, drawn: int, and_one: int = 0) -> list[Any]:
        """Draw what was drawn, and return what is drawn beyond."""
        passed = 0
        for item in islice(self._iterator, drawn):
            passed += 1
            self._digest = indices.digest(item, self._digest)
            self._find(item)
        if passed < drawn or (drawn and self._digest != self._saved["digest"]) or self._owed:
            raise StateMismatch(_ANOTHER_ORDER)
        return list(islice(self._iterator, and_one))

    def _find(self, item: Any) -> None:
        """What was drawn may be pending."""
        for index in item if isinstance(item, (list, tuple)) else (item,):
            if isinstance(index, (int, str)) and index in self._owed:
                self._owed[index] -= 1
                if not self._owed[index]:
                    del self._owed[index]

    def state(self) -> dict[str, Any]:
        """Where the draw stands; JSON-serialisable unless a stateful sampler's own state is not."""
        if not self._started and self._saved:
            return dict(self._saved)
        state: dict[str, Any] = {"drawn": self.drawn, "digest": self._digest}
        if is_stateful(self._inner):
            state["sampler"] = copy.deepcopy(self._inner.state_dict())
            state["exhausted"] = self._exhausted or self._ended
            return state
        if is_stateful(self._iterator):
            state["iterator"] = copy.deepcopy(self._iterator.state_dict())
            return state
        if isinstance(getattr(self._inner, "epoch", None), int) and hasattr(self._inner, "set_epoch"):
            state["epoch"] = self._inner.epoch
        if not self._started:
            # Whatever is drawn from the generator until then, the order will be the one that this state says.
            self._random = self._promised = self._source.read()
        return state | {"random": self._random, "began": self._began}


_ANOTHER_ORDER = (
    "load_state_dict(state): the sampler does not draw what it had drawn when the state was taken, so the rest of the "
    "epoch is not known. Give it what it had (its data, seed and epoch), or state_dict and load_state_dict methods"
)


def _innermost(sampler: Any) -> Any:
    """The sampler that draws, under batch samplers and what integrations wrap around them."""
    while (wrapped := getattr(sampler, "batch_sampler", None)) is not None:
        sampler = wrapped
    return getattr(sampler, "sampler", sampler)


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
