"""Doing something before a certain line or opcode of the package's code."""

import dis
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
RETURNS = {code for name, code in dis.opmap.items() if name in ("RETURN_VALUE", "RETURN_CONST")}
ENDS_EXCEPT = dis.opmap["POP_EXCEPT"]
FINALIZERS = (weakref.finalize.__call__.__code__, undisturbed.__code__, Finalizer._perform_late.__code__)


def leaves(frame: FrameType, what: str) -> bool:
    """Whether this opcode returns, or cleans up after an exception (which has no line): no handler can run with it.

    Nor with what ends an ``except`` block, with which a line may begin (``break``). What a trace function raises there
    has Python take the exception for handled for good.
    """
    opcode = frame.f_code.co_code[frame.f_lasti]
    return opcode == ENDS_EXCEPT or (what == "opcode" and (opcode in RETURNS or frame.f_lineno is None))


@contextmanager
def at_step(number: int, act: Callable[[], None], event: str) -> Iterator[list[int]]:
    """``act`` is called before the ``number``-th step of this package's code; how many there were.

    Python collects no garbage of its own accord meanwhile: what is raised in a callback of the collector, it prints.
    """
    steps, owner = [0], os.getpid()

    def local(frame: FrameType, what: str, _: object) -> Any:
        if what == event and os.getpid() == owner and not leaves(frame, what):
            steps[0] += 1
            if steps[0] == number:
                sys.settrace(None)
                frame.f_trace = None
                act()
        return local

    def call(frame: FrameType, *_: object) -> Any:
        if os.getpid() != owner:
            sys.settrace(None)
            return None
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = event == "opcode", event == "line"
        return local

    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.settrace(call)
    try:
        yield steps
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()


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
