"""The items of an iterable dataset, batch by batch, and how to take them up again."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from headrace.engine.worker.job import Resume
from headrace.engine.worker.stateful import is_stateful


class Stream:
    """One pass over the dataset. Starting may read what was delivered before: from a state, or again."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None,
        *,
        drop_last: bool,
        keep_partial: bool,
        resume: Resume,
        item: Callable[[Iterator[Any]], Any] = next,
    ) -> None:
        """``batch_size`` None: every item is a batch. ``keep_partial``: see ``Task``. ``item``: takes the next one."""
        self._item = item
        self._dataset, self._size, self._drop_last, self._ended = dataset, batch_size, drop_last, resume.ended
        self._keep, self._kept = keep_partial, list[Any]()
        state = resume.state or {}
        if "dataset" in state:
            dataset.load_state_dict(state["dataset"])
        self._iterator: Iterator[Any] = iter(dataset)
        if "iterator" in state:
            loading: Any = self._iterator
            loading.load_state_dict(state["iterator"])
        elif not state and not resume.ended:
            for _ in range(resume.batches):
                with suppress(Exception):  # it was raised when the batch was first made
                    self.items()

    def items(self) -> list[Any] | None:
        """The items of the next batch; None at the end. What the dataset raises comes through."""
        items, self._kept = self._kept, []
        while not self._ended and len(items) < (self._size or 1):
            try:
                items.append(self._item(self._iterator))
            except StopIteration:
                self._ended = True
            except Exception:
                self._kept = items if self._keep else []
                raise
            except BaseException:
                self._kept = items
                raise
        short = self._size is not None and len(items) < self._size
        return None if not items or (short and self._drop_last) else items

    def reads(self, iterator: Iterator[Any]) -> bool:
        """Whether that is where its items come from."""
        return iterator is self._iterator

    @property
    def ended(self) -> bool:
        """Whether the end was seen; it may have come with items of a last, short batch."""
        return self._ended

    def state(self) -> dict[str, Any] | None:
        """Where a stateful dataset or iterator stands; None when neither is."""
        state = {}
        if is_stateful(self._dataset):
            state["dataset"] = self._dataset.state_dict()
        if self._iterator is not self._dataset and is_stateful(self._iterator):
            state["iterator"] = self._iterator.state_dict()
        return state or None
