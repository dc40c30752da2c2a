"""What a loader has beside its arguments: counts, memory, what its epochs leave to later ones, who is at work."""

import os
import weakref
from contextlib import ExitStack
from functools import partial
from typing import Any

from headrace.engine.assembly import IterationAssembly
from headrace.engine.consumer.beacon import Beacon
from headrace.engine.consumer.tally import LoaderTally
from headrace.engine.course import Course
from headrace.engine.farewell import Farewell
from headrace.engine.memory.slab import Shelf
from headrace.engine.resources import Resources
from headrace.engine.settings import Settings
from headrace.engine.worker.signals import held
from headrace.trace.file import Recording


class Life:
    """One loader's, not part of its value: a copy has one of its own. What it keeps is given back with the loader."""

    def __init__(self, loader: Any) -> None:
        """At the start. It does not refer to ``loader``."""
        self.tally = LoaderTally()
        self.shelf = Shelf()
        self.course = Course()
        Farewell(loader, partial(_give_back, self.shelf, self.course))
        self.recording: Recording | None = None
        """The trace of the newest iteration."""
        self._beacon: Beacon | None = None
        self._owner = os.getpid()
        self._inherited: Any = None
        self._live: list[weakref.ref[Resources]] = []  # replaced, never changed: another thread may close them

    @property
    def is_inherited(self) -> bool:
        """Whether this process was forked from the one that used the loader, and has not begun with it."""
        return os.getpid() != self._owner

    def begin_here(self) -> None:
        """In this process: what shows the other one's work is not ended here."""
        self._owner = os.getpid()
        self._inherited = self._beacon, self.recording
        self._beacon = self.recording = None

    def assembled(self, settings: Settings, reported_length: int | None) -> IterationAssembly:
        """What a new iteration is made of, which ``close`` ends."""
        if self._beacon is None:
            with held():
                self._beacon = Beacon(self.tally, type(settings.given).__name__)
        assembly = IterationAssembly(settings, self.tally, self.shelf, self.course, self._beacon, reported_length)
        self._live = [*(live for live in self._live if live() is not None), weakref.ref(assembly.resources)]
        return assembly

    def close(self) -> None:
        """End what is at work and give the memory back; idempotent, from any thread. Signals must be held."""
        with ExitStack() as closing:  # whatever raises, the others are closed
            closing.callback(_give_back, self.shelf, self.course)
            for resources in filter(None, [live() for live in self._live]):
                closing.callback(resources.close)
            self.recording = self._beacon = None


def _give_back(shelf: Shelf, course: Course) -> None:
    """When a loader is gone: what it kept from one iteration to the next."""
    with ExitStack() as closing:
        closing.callback(course.memberships.close)
        closing.callback(course.fetchers.close)
        closing.callback(shelf.close)
