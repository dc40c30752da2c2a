"""Clean-up after an object is gone, without taking the user's signals for its own.

Python prints what is raised where an object is given up, and goes on: a Ctrl-C that came there would have done nothing.
So handlers wait until that is over; then the signals are sent again, and handled where the program is, which sees what
is raised. The steps after the last one of ours are taken by C code (``map``, ``deque``), in which no handler runs.
"""

import atexit
import ctypes
import operator
import signal
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from headrace.engine.step import undisturbed


class Finalizer:
    """Has ``act`` called when an object is gone, at exit if it is still there then. ``act`` can be called twice.

    What a handler raises before our first instruction, Python prints, and calls nothing of ours. So there is a second
    reference, which does what is left.
    """

    def __init__(self, owner: Any, act: Callable[[], None]) -> None:
        """``act`` must not refer to ``owner``."""
        self._act = act
        self._again: list[int] = []
        """Signals to be sent once it is done."""
        self._references = [_Reference(owner, _SAY) for _ in range(2)]
        last = partial(undisturbed, self._perform, self._again)
        for reference, perform in zip(self._references, (self._perform_late, last), strict=True):
            # The last one that was made is asked first.
            reference.say = _each(operator.call, (perform, _each(_send, self._again)))
        _left[id(self)] = self

    def detach(self) -> None:
        """Note that there is nothing to do any more; idempotent."""
        _left.pop(id(self), None)
        for reference in self._references:
            reference.say = list
        self._references.clear()

    def _perform(self) -> None:
        if id(self) in _left:
            try:
                self._act()
            except Exception as error:  # noqa: BLE001  (nobody but Python sees it)
                _print(error)
            finally:
                self.detach()

    def _perform_late(self) -> None:
        """Perform the clean-up if it was missed: an exception that a handler raised before ``_perform`` began is
        lost, as a rule Ctrl-C.
        """
        if id(self) in _left:
            main = threading.current_thread() is threading.main_thread()
            if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self._again.append(signal.SIGINT)
            undisturbed(self._perform, self._again)


def _nothing() -> None:
    """The default of ``say``, for a reference that an interrupt kept from being told what to say."""


class _Reference(weakref.ref[Any]):
    say: Callable[[], object] = staticmethod(_nothing)


def _each(act: Callable[[Any], object], things: Any) -> Callable[[], object]:
    """Calls ``act`` with each, once."""
    return partial(deque, map(act, things), 0)


def _print(error: Exception) -> None:
    """Print an error as Python prints what is raised when an object is given up."""

    def fail(_: object) -> None:
        raise error

    gone = _Gone()
    # Python prints what a callback raises, with the words it has for that, through the user's own hook if there is one.
    reference = weakref.ref(gone, fail)
    del gone
    del reference


class _Gone:
    pass


def _say_all() -> None:
    for finalizer in list(_left.values())[::-1]:
        finalizer._perform()  # noqa: SLF001  (of this module)


_left: dict[int, Finalizer] = {}
_SAY = operator.methodcaller("say")
_send = getattr(ctypes.CDLL(None), "raise")  # Python's would handle the signal at once, in here
atexit.register(_say_all)
