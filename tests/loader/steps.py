"""Doing something where Python looks for signals, in the package's code."""

import gc
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import headrace
from headrace.engine.finalizer import Finalizer
from headrace.engine.iteration import Iteration
from headrace.engine.step import undisturbed

PACKAGE = str(Path(headrace.__file__).parent)
TESTS = str(Path(__file__).parent)
FINALIZERS = (weakref.finalize.__call__.__code__, undisturbed.__code__, Finalizer._perform_late.__code__)


@contextmanager
def at_check(number: int, act: Callable[[], None]) -> Iterator[list[int]]:
    """``act`` is called where Python looks for signals for the ``number``-th time in this package; how many there were.

    It looks when a function begins, and when a call of C has returned.
    """
    checks, owner = [0], os.getpid()

    def profile(frame: FrameType, what: str, _: object) -> None:
        if os.getpid() != owner:
            sys.setprofile(None)
        elif what in ("call", "c_return") and frame.f_code.co_filename.startswith(PACKAGE):
            checks[0] += 1
            if checks[0] == number:
                sys.setprofile(None)
                act()

    collects = gc.isenabled()
    gc.disable()
    sys.setprofile(profile)
    try:
        yield checks
    finally:
        sys.setprofile(None)
        if collects:
            gc.enable()


@contextmanager
def collecting_calls_nobody() -> Iterator[None]:
    """Hypothesis has the collector call it, in our frames: what a handler raises on its way there, Python prints."""
    others, gc.callbacks[:] = gc.callbacks[:], []
    try:
        yield
    finally:
        gc.callbacks[:] = others


def is_in(thread: int, function: Callable[..., Any]) -> bool:
    """Whether a thread runs this function of Python's."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame is not None


def inside(frame: FrameType | None) -> bool:
    """Whether ``next()`` has not returned yet: what comes after is the caller's, and what comes while the collector has
    us finalize something else is raised after that.
    """
    if frame is None or not frame.f_code.co_filename.startswith((PACKAGE, TESTS)):
        return False
    while frame is not None and frame.f_code is not Iteration.__next__.__code__:
        if frame.f_code in FINALIZERS:
            return False
        frame = frame.f_back
    return frame is not None
