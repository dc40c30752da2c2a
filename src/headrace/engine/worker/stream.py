"""The items of an iterable dataset, batch by batch, and how to take them up again."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from headrace.core.errors import StateMismatch
from headrace.engine.worker.randomness import generators
from headrace.engine.worker.stateful import is_stateful, load, restart
from headrace.sched.resume import Resume


class Stream:
    """A single pass over the dataset. Starting may read what was delivered before: from a state, or again."""

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
        self._dataset, self._size, self._drop_last = dataset, batch_size, drop_last
        self.ended = resume.ended
        """Whether the end was seen; it may have come with items of a last, short batch."""
        self._keep, self._kept = keep_partial, list[Any]()
        self.began = resume.began
        """The random generators of a worker when its pass began, where they were not those of a new worker."""
        state = resume.state or {}
        if "dataset" in state:
            load(dataset, state["dataset"], "dataset")
        if resume.began is not None and not state:
            generators.restore(resume.began)
        self._restart = "dataset" in state
        self.iterator: Iterator[Any] = iter(dataset)
        """Where its items come from."""
        if "iterator" in state:
            load(self.iterator, state["iterator"], "dataset's iterator")
        if not state and not resume.ended:
            self._read_again(resume.batches)
        if resume.random is not None:
            generators.restore(resume.random)

    def _read_again(self, batches: int) -> None:
        for number in range(batches):
            found = True
            with suppress(Exception):  # it was raised when the batch was first made
                found = self.items() is not None
            if not found:
                raise StateMismatch(
                    f"load_state_dict(state): {batches} batches had come, now the dataset ends after {number}"
                )

    def items(self) -> list[Any] | None:
        """The items of the next batch; None at the end. What the dataset raises comes through."""
        items, self._kept = self._kept, []
        while not self.ended and len(items) < (self._size or 1):
            try:
                items.append(self._item(self.iterator))
            except StopIteration:
                self.ended = True
            except Exception:
                self._kept = items if self._keep else []
                raise
            except BaseException:  # an interrupt is nobody's failure: what was read comes with the next batch
                self._kept = items
                raise
            if self._restart:
                self._restart = False
                restart(self._dataset)
        short = self._size is not None and len(items) < self._size
        return None if not items or (short and self._drop_last) else items

    def state(self) -> dict[str, Any] | None:
        """The state of a stateful dataset or iterator; None when neither is. A dataset that is its own iterator is
        one.

        That matters on the way back: a dataset is loaded before ``iter``, an iterator after it.
        """
        state = {}
        if self.iterator is not self._dataset and is_stateful(self._dataset):
            state["dataset"] = self._dataset.state_dict()
        if is_stateful(self.iterator):
            state["iterator"] = self.iterator.state_dict()
        return state or None
