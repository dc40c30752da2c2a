"""The state that a loader keeps beside its arguments: counts, and what its iterations and epochs leave to later
ones.
"""

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Generic, Protocol, TypeVar

from headrace.core.options import LanesRule
from headrace.engine.finalizer import Finalizer
from headrace.engine.memory.slab import Slab
from headrace.engine.step import held
from headrace.engine.trainer.automatic import Automatic
from headrace.engine.trainer.counters import LoaderCounters
from headrace.engine.trainer.page import FiguresPage
from headrace.engine.trainer.stragglers import Stragglers
from headrace.plan.lookahead import Lookahead


class Closable(Protocol):
    """An object that is given back when nobody wants it any more."""

    def close(self) -> None:
        """Idempotent."""


Thing = TypeVar("Thing", bound=Closable)


class IdlePool(Generic[Thing]):
    """The things that an iteration leaves to the next one: one as a rule, none while it is used. For any thread.

    A loader that is iterated several times at once has more. What lies here in a forked process is the other one's: it
    is kept, and left alone.
    """

    def __init__(self) -> None:
        self._things: list[Thing] = []
        self._closed = False
        self._inherited: list[Thing] = []
        self._owner = os.getpid()
        self._lock = threading.RLock()  # an iteration may be collected, and put its own here, in any step

    def take(self, fits: Callable[[Thing], bool]) -> Thing | None:
        """A thing that fits, if there is any. Others are of no use any more."""
        if os.getpid() != self._owner:
            self._owner, self._lock = os.getpid(), threading.RLock()
            self._inherited, self._things = self._inherited + self._things, []
        with self._lock:
            self._closed = False
            while self._things:
                found = self._things.pop()
                if fits(found):
                    return found
                found.close()
        return None

    def put(self, thing: Thing) -> None:
        """Put a thing that is not used at the moment. Further ones are closed."""
        with self._lock:
            if self._closed or self._things:
                thing.close()
            else:
                self._things.append(thing)

    def close(self) -> None:
        """Close what is here, and what is put here until something is taken again; idempotent."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            self._closed = True
            while self._things:
                self._things.pop().close()


class FeaturesOfLoader(Protocol):
    """The things that a loader's features keep over its iterations."""

    def begin_here(self) -> None:
        """Begin in a process that was forked."""

    def rest(self) -> None:
        """The loader is closed, and may be used again."""

    def close(self) -> None:
        """Give back what is kept; idempotent."""


class LoaderResources:
    """The state of one loader that is not part of its value: a copy has its own. It is given back with the loader."""

    def __init__(self, loader: Any) -> None:
        """Set up the state that a loader starts with. It does not refer to ``loader``."""
        self.counters = LoaderCounters()
        self.slabs = IdlePool[Slab]()
        self.features: FeaturesOfLoader | None = None
        # Not before what it gives back is there: the loader may be given up by an interrupt in any step of this.
        Finalizer(loader, self._give_back)
        self.epoch = 0
        """The number of the next one."""
        self.saved: dict[str, Any] | None = None
        """A state that the next epoch shall go on from."""
        self.stragglers = Stragglers()
        self._automatic: Automatic | None = None
        self._lookahead: Lookahead | None = None
        self._page: FiguresPage | None = None
        self._owner = os.getpid()
        self._inherited: Any = None
        self._live: list[weakref.ref[Any]] = []  # replaced, never changed: another thread may close them

    @property
    def is_inherited(self) -> bool:
        """True if this process was forked from the one that used the loader, and has not begun with it."""
        return os.getpid() != self._owner

    def begin_here(self) -> None:
        """Begin in this process: what shows the other one's work is not ended here."""
        self._owner = os.getpid()
        self._inherited, self._page = self._page, None
        if self.features is not None:
            self.features.begin_here()

    def page(self, dataset: Any) -> FiguresPage:
        """The page on which the loader shows its figures."""
        if self._page is None:
            with held():
                self._page = FiguresPage(self.counters, type(dataset).__name__)
        return self._page

    def begin_epoch(self) -> tuple[int, dict[str, Any] | None]:
        """The number of the epoch that begins now, and the state it goes on from, or comes after, if any."""
        saved = self.saved
        begun = saved["epoch"] + int(saved["finished"]) if saved else self.epoch
        self.epoch = begun + 1
        return begun, saved

    def use_up(self, saved: dict[str, Any] | None) -> None:
        """The epoch that goes on from ``saved`` has really begun; unless another state was loaded meanwhile."""
        if saved is not None and self.saved is saved:
            self.saved = None

    def automatic(self, dataset: Any, rule: LanesRule) -> Automatic:
        """The object that decides how many lanes work, if the user does not."""
        if self._automatic is None:
            self._automatic = Automatic(dataset, rule)
        return self._automatic

    def lookahead(self, batches: int) -> Lookahead:
        """The decision how many batches to make ahead: ``batches`` at first, and then as the loader's epochs have
        shown.
        """
        self._lookahead = self._lookahead or Lookahead(batches)
        return self._lookahead

    def watch(self, resources: Any) -> None:
        """Note what an iteration holds: it is closed with the loader, if it is still there then."""
        self._live = [*(live for live in self._live if live() is not None), weakref.ref(resources)]

    def close(self) -> None:
        """End what is at work and give the memory back; idempotent, from any thread. Signals must be held."""
        with ExitStack() as closing:  # whatever raises, the others are closed
            closing.callback(self._give_back)
            for resources in filter(None, [live() for live in self._live]):
                closing.callback(resources.close)
            self._page = None
            if self.features is not None:
                self.features.rest()

    def _give_back(self) -> None:
        with ExitStack() as closing:
            closing.callback(self.slabs.close)
            if self.features is not None:
                closing.callback(self.features.close)
