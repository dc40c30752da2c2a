"""What is done once an object is gone, without taking the user's signals for its own.

Python prints what is raised where an object is given up, and goes on: a Ctrl-C that came there would have done nothing.
So handlers wait until that is over, and run where the program then is, which sees what they raise.
"""

import atexit
import ctypes
import operator
import os
import signal
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from headrace.engine.worker.signals import held

ATTEMPTS = 3
"""Interrupts just before handlers wait, or just after, break one off."""


class Finalizer:
    """Has ``act`` called when an object is gone, at exit if it is still there then. ``act`` can be called twice.

    No step of this is taken by Python code but those of ``_perform``, or a handler could run in it. The one before its
    first instruction cannot be helped: so there is a second reference, which does what is left and knows why.
    """

    def __init__(self, owner: Any, act: Callable[[], None]) -> None:
        """``act`` must not refer to ``owner``."""
        self._act = act
        self._came: list[int] = []
        self._interrupts: list[BaseException] = []
        self._soon: list[int] = []  # addresses
        self._references = [_Reference(owner, _SAY) for _ in range(2)]
        for reference, perform in zip(self._references, (self._perform_late, self._perform), strict=True):
            # The last one that was made is asked first.
            reference.say = _each(operator.call, (perform, _each(_call_soon, self._soon)))
        _left[id(self)] = self

    def detach(self) -> None:
        """There is nothing to do any more; idempotent."""
        _left.pop(id(self), None)
        for reference in self._references:
            reference.say = list
        self._references.clear()

    def _perform(self) -> None:
        try:
            if id(self) in _left:
                with held(later=self._came):
                    try:
                        self._act()
                    except Exception as error:  # noqa: BLE001  (nobody but Python sees it)
                        _print(error)
                    self.detach()
            if self._came or self._interrupts:
                self._soon.append(_Soon(self._came, self._interrupts).address)
        except BaseException as interrupt:  # a handler's
            if not _is_main() or len(self._interrupts) >= ATTEMPTS:
                raise
            self._interrupts.append(interrupt)
            self._perform()

    def _perform_late(self) -> None:
        """Whatever a handler raised before ``_perform`` began is lost; as a rule it was Ctrl-C."""
        if id(self) in _left:
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler and _is_main():
                self._soon.append(_Soon([signal.SIGINT], []).address)
            self._perform()


def _nothing() -> None:
    """What a reference says that an interrupt kept from being told what to say."""


class _Reference(weakref.ref[Any]):
    say: Callable[[], object] = staticmethod(_nothing)


class _Soon:
    """Signals to be sent again, and what handlers raised, once the main thread is out of the call it is in now."""

    def __init__(self, kinds: list[int], interrupts: list[BaseException]) -> None:
        self._kinds, self._interrupts, self._owner = kinds, interrupts, os.getpid()
        self.address = id(self)
        _soon[self.address] = self

    def __bool__(self) -> bool:
        """False. Asked by the interpreter, for the sake of what happens meanwhile."""
        _soon.pop(self.address, None)
        if os.getpid() == self._owner:
            self._go_on()
        return False

    def _go_on(self) -> None:
        try:
            if self._kinds:
                signal.raise_signal(self._kinds.pop())
            elif self._interrupts:
                raise self._interrupts.pop()
        finally:
            if self._kinds or self._interrupts:
                self._go_on()


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def _each(act: Callable[[Any], object], things: Any) -> Callable[[], object]:
    """Calls ``act`` with each, once."""
    return partial(deque, map(act, things), 0)


def _print(error: Exception) -> None:
    """As Python does what is raised when an object is given up."""

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
_soon: dict[int, _Soon] = {}
_SAY = operator.methodcaller("say")
_python = ctypes.pythonapi
_python.Py_AddPendingCall.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
_call_soon = partial(_python.Py_AddPendingCall, ctypes.cast(_python.PyObject_IsTrue, ctypes.c_void_p))
atexit.register(_say_all)
