"""The order in which indices are drawn, and how to draw the same again after a resume."""

import copy
import inspect
from collections import Counter, deque
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any, NamedTuple

from torch.utils.data import BatchSampler

from headrace.core.errors import LoaderClosed, StateMismatch
from headrace.engine.ordering import indices
from headrace.engine.ordering.random_sources import source
from headrace.engine.step import IterationStep
from headrace.engine.worker.stateful import is_stateful, load


class Order:
    """A pass of one epoch over a sampler or batch sampler. A lazy sampler draws nothing before the first ``next``.

    Where an epoch goes on and the sampler has no state of its own, what was drawn is drawn again at once.
    """

    def __init__(
        self,
        index_sampler: Any,
        saved: dict[str, Any] | None = None,
        pending: Any = (),
        step: IterationStep | None = None,
    ) -> None:
        """``saved``: what ``state`` returned, to go on from there; ``pending``: batches of indices that were drawn.

        ``step``: in windows of which the sampler runs.

        Raises ``StateMismatch``, also when pending ones are none of those drawn.
        """
        self._sampler, self._inner = index_sampler, _innermost(index_sampler)
        self._saved, self._step = saved or {}, step or IterationStep()
        self._source = source(index_sampler, self._inner)
        self._promised: str | None = self._saved.get("random")
        self._random: str | None = None
        self._started = self._exhausted = False
        self._full = index_sampler.batch_size if type(index_sampler) is BatchSampler else 0  # fewer: it was the last
        self._last: tuple[_Drawn, Any] = (_Drawn(0, 0), None)  # what was drawn with the last item, and that
        # And how a stateful sampler stood, or why it could not say: it draws all the same.
        self._base: tuple[_Drawn, tuple[str, Any] | Exception | None] = (_Drawn(0, 0), None)
        self._drawing = False
        self._given: deque[tuple[int, Any]] = deque()  # one at most: its number, and the item
        self._owed: Counter[Any] = Counter(
            name for group in pending for index in group if (name := indices.name(index)) is not None
        )
        state = self._saved.get("sampler")
        if state is not None and is_stateful(self._inner):
            load(self._inner, state, "sampler")
            self._exhausted = bool(self._saved.get("exhausted"))  # such a sampler stands at the start of its next pass
        elif self._saved.get("epoch") is not None and hasattr(self._inner, "set_epoch"):
            self._inner.set_epoch(self._saved["epoch"])
        self._began = self._source.read() if self._source.at_iter else None
        self._began = self._saved.get("began") or self._began
        self._iterator = self._new()
        self._repeats = _repeats(self._sampler, self._inner) or is_stateful(self._iterator)
        if self._saved.get("drawn") or self._owed:
            self._step.opened(self._start)

    def _new(self) -> Iterator[Any]:
        with self._source.set_to(self._saved.get("began")):
            return self._step.opened(lambda: iter(self._sampler))

    def draw(self) -> Any:
        """The next index, or batch of indices; the sampler's own exceptions come through."""
        if self._exhausted:
            raise StopIteration
        if not self._is_given():
            self._ask()
        if not self._is_given():
            self._exhausted = True
            self._drawing = False
            raise StopIteration
        self._note(self._given[0][1])
        return self._last[1]

    def _is_given(self) -> bool:
        """True if the sampler gave the item after the last one noted, and it was not noted yet."""
        return bool(self._given) and self._given[0][0] > self._last[0].count

    def _ask(self) -> None:
        """Have the sampler give its next item, if there is one. One that raised is asked again later, as torch does."""
        interrupted, self._drawing = self._drawing, True
        if interrupted and self._repeats:
            self._recover()
        try:
            self._next()
        except Exception:
            self._drawing = self._step.interrupted  # then where the sampler stands is unknown
            raise
        if interrupted and not self._repeats and not self._given and inspect.isgenerator(self._iterator):
            raise LoaderClosed(_BROKEN_OFF)

    def _note(self, item: Any) -> None:
        before = self._last[0]
        self._last = _Drawn(before.count + 1, indices.digest(item, before.digest)), item
        self._drawing = False

    def _next(self) -> None:
        if not self._started:
            self._step.opened(self._start)
        self._given.clear()
        # In C, so that no interrupt comes between the sampler's giving it and its being kept here.
        self._step.opened(self._given.extend, zip((self._last[0].count + 1,), self._further(1), strict=False))

    def _start(self) -> None:
        saved = self._saved
        drawn = _Drawn(saved.get("drawn", 0), saved.get("digest", 0))
        if saved.get("iterator") is not None and is_stateful(self._iterator):
            load(self._iterator, saved["iterator"], "sampler's iterator")
            self._pass(saved.get("again", 0))
        elif saved.get("sampler") is not None:
            self._pass(saved.get("again", 0))
        else:
            self._draw_again(drawn)
        self._last = drawn, None
        try:
            self._base = drawn, self._live()
        except Exception as error:  # noqa: BLE001  (a sampler's own: for who asks for the state)
            self._base = drawn, error.with_traceback(None)
        self._started = True

    def _is_short(self, item: Any) -> bool:
        """True if the item was the last one, as its length says."""
        return bool(self._full) and item is not None and len(item) < self._full

    def _live(self) -> tuple[str, Any] | None:
        """The state that a stateful sampler, or its iterator, says it has; None where none of them has any."""
        if is_stateful(self._inner):
            return "sampler", copy.deepcopy(self._inner.state_dict())
        if is_stateful(self._iterator):
            return "iterator", copy.deepcopy(self._iterator.state_dict())
        return None

    def _further(self, count: int) -> Iterator[Any]:
        """The next items, so many at most. ``iter()`` was called once, and is not called again, as ``for`` would."""
        return map(next, repeat(self._iterator, count))

    def _pass(self, count: int) -> None:
        for _ in self._further(count):
            pass

    def _draw_again(self, drawn: "_Drawn") -> None:
        """Start the iterator from the random state it starts from, and pass over what was drawn."""
        now = self._source.read()
        if self._promised is None or (self._promised == now and drawn.count == 0):
            self._random = now
            first = self._passed(drawn)
        else:
            self._random = self._promised
            with self._source.set_to(self._promised):
                first = self._passed(drawn, and_one=1)
        if first:
            self._iterator = chain(first, self._iterator)

    def _passed(self, drawn: "_Drawn", and_one: int = 0) -> list[Any]:
        """Draw what was drawn, and return what is drawn beyond."""
        passed, digest = 0, 0
        for item in self._further(drawn.count):
            passed += 1
            digest = indices.digest(item, digest)
            self._find(item)
        if _Drawn(passed, digest) != drawn or self._owed:
            raise StateMismatch(_ANOTHER_ORDER)
        return list(self._further(and_one))

    def _find(self, item: Any) -> None:
        """Strike what was drawn off the pending indices: an index, or those of a batch."""
        if not self._owed:
            return
        for index in (item, *item) if isinstance(item, (list, tuple)) else (item,):
            name = indices.name(index)
            if name in self._owed:
                self._owed[name] -= 1
                if not self._owed[name]:
                    del self._owed[name]

    def _recover(self) -> None:
        """Recover from an interrupt that came while the sampler drew; where it stands is unknown, so it draws again
        what it had drawn.
        """
        if not self._started:
            if self._saved.get("sampler") is not None and is_stateful(self._inner):
                load(self._inner, self._saved["sampler"], "sampler")
            self._iterator = self._new()
            return
        drawn, (before, state) = self._last[0], self._base
        if isinstance(state, tuple) and state[0] == "sampler":
            load(self._inner, state[1], "sampler")
        self._iterator = self._new()
        if not isinstance(state, tuple):
            self._promised = self._random  # nowhere else once this is interrupted: drawing again must not forget it
            self._draw_again(drawn)
            return
        if state[0] == "iterator":
            load(self._iterator, state[1], "sampler's iterator")
        self._pass(drawn.count - before.count)

    def state(self) -> dict[str, Any]:
        """The state of the draw; JSON-serialisable unless a sampler's own state is not."""
        if not self._started and self._saved:
            return dict(self._saved)
        drawn = self._last[0]
        state: dict[str, Any] = {"drawn": drawn.count, "digest": drawn.digest}
        before, known = self._base if self._started else (drawn, self._live())
        if known is not None:
            if self._started and self._drawing:
                if isinstance(known, Exception):
                    raise known
                state["again"] = drawn.count - before.count  # the sampler's own may be of one item more
            else:
                known = self._live() or known
            assert isinstance(known, tuple)
            state[known[0]] = copy.deepcopy(known[1])
            if known[0] == "sampler":
                state["exhausted"] = self._exhausted or self._is_short(self._last[1])
            return state
        if isinstance(getattr(self._inner, "epoch", None), int) and hasattr(self._inner, "set_epoch"):
            state["epoch"] = self._inner.epoch
        if not self._started:
            # Whatever is drawn from the generator until then, the order will be the one that this state says.
            self._random = self._promised = self._source.read()
        return state | {"random": self._random, "began": self._began}


class _Drawn(NamedTuple):
    """A number of items, and what they were."""

    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody needs here
    digest: int


_BROKEN_OFF = (
    "the sampler was interrupted while it drew and has ended with that, so this epoch is not complete. iter(loader) "
    "begins a new one. A sampler with state_dict and load_state_dict methods goes on"
)
_ANOTHER_ORDER = (
    "load_state_dict(state): the sampler does not draw what it had drawn when the state was taken, so the rest of the "
    "epoch is not known. Give it what it had (its data, seed and epoch), or state_dict and load_state_dict methods"
)


def _innermost(sampler: Any) -> Any:
    """The sampler that draws, under batch samplers and what integrations wrap around them."""
    while (wrapped := getattr(sampler, "batch_sampler", None)) is not None:
        sampler = wrapped
    return getattr(sampler, "sampler", sampler)


def _repeats(sampler: Any, inner: Any) -> bool:
    """True if the sampler may be begun again to draw what it drew: torch's own, a list, or one with a state.

    Any other may be fed by a queue: it would not give again what it gave, and what it gave instead would be lost.
    """
    if is_stateful(inner):
        return True
    return all(
        type(each) in {list, tuple, range} or type(each).__module__.startswith("torch.utils.data")
        for each in (sampler, inner)
    )
