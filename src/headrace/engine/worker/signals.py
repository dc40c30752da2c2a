"""Whose signals they are: the trainer's handlers run in the trainer, never in a process forked from it, and not there
while one is being started or ended.
"""

import ctypes
import inspect
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import CodeType, FrameType
from typing import Any

TIMERS = frozenset({signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF})
"""Sent by a timer that a process set for itself: the handler it inherited is the one it expects."""
FATAL = frozenset({signal.SIGTERM, signal.SIGCHLD})
"""What these mean to a process is the system's business, whatever the trainer does about them."""

ALL = frozenset(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}


Handler = Callable[[int, FrameType | None], Any]


class _HandlerGuard:
    """Stands before the handlers of this process, and lets none run while it is ``shut``.

    A mask keeps signals from one thread, and the system gives them to another; Python then runs their handlers in the
    main thread all the same. Open, it only passes on: where an interrupt keeps it from standing aside, it may stay.
    """

    def __init__(self) -> None:
        self.shut = False
        self._behind: dict[int, tuple[Handler, _Action]] = {}
        self._came: dict[int, Handler] = {}  # in the order in which they came

    def __call__(self, kind: int, frame: FrameType | None) -> None:
        handler, _ = self._behind[kind]
        if self.shut:
            self._came[kind] = handler
        else:
            handler(kind, frame)

    def stand_in(self) -> None:
        """Before every handler, that of Ctrl-C first: it is the likeliest to be wanted."""
        for kind in _KINDS:
            handler = signal.getsignal(kind)
            if callable(handler) and handler is not self:
                self._behind[kind] = handler, _Action(kind)
                signal.signal(kind, self)

    def open(self, later: list[int] | None) -> None:
        """Whoever came is let through, or noted as ``later``. All of them are, whatever one of them raises."""
        self.shut = False
        try:
            self.stand_aside()
        finally:
            try:
                self.stand_aside()  # a handler may have run in the first attempt, and raised
            finally:
                try:
                    if later is None:
                        self._let_in()
                    else:
                        later += self._came
                        self._came.clear()
                finally:
                    self._forget()

    def stand_aside(self) -> None:
        """Leave everything as it was."""
        for kind, (handler, action) in list(self._behind.items()):
            if signal.getsignal(kind) is self:
                signal.signal(kind, handler)
                action.restore()

    def _let_in(self) -> None:
        if self._came:
            kind, handler = self._came.popitem()
            try:
                handler(kind, inspect.currentframe())  # it runs here: where it came is over
            finally:
                self._let_in()

    def _forget(self) -> None:
        """Whom it does not stand before any more: a handler may be all that keeps a trainer and its loaders alive."""
        for kind in list(self._behind):
            if signal.getsignal(kind) is not self:
                self._behind.pop(kind, None)  # a finalizer that ran here may have held signals, too, and forgotten it

    def forked(self) -> None:
        """In a new process: nobody waits here."""
        self.shut = False
        self._came.clear()
        self.stand_aside()
        self._forget()


class _Action:
    """What the system does about a signal. Python's table does not know it all: a library may have a handler in C."""

    def __init__(self, kind: int) -> None:
        self._kind, self._struct = kind, ctypes.create_string_buffer(256)  # which is larger than any sigaction
        _libc.sigaction(kind, None, self._struct)

    def restore(self) -> None:
        _libc.sigaction(self._kind, self._struct, None)


_libc = ctypes.CDLL(None)
_KINDS = sorted(ALL, key=lambda kind: kind != signal.SIGINT)
_guard = _HandlerGuard()
os.register_at_fork(after_in_child=_guard.forked)


@contextmanager
def held(kinds: Iterable[int] = (), *, later: list[int] | None = None) -> Iterator[set[int]]:
    """No handler runs in the block, whatever thread of the process takes its signal: they run at its end.

    ``kinds`` are also masked, for processes that are forked in the block; gives the mask that was in force, to be
    handed to them. Where ``later`` is given, handlers do not run: the signals that came are added to it, to be sent
    again. But for those that came inside an outer block, whose end they wait for.
    """
    if _guard.shut or threading.get_ident() != threading.main_thread().ident:  # handlers run in the main thread
        with _masked(kinds) as before:
            yield before
        return
    try:
        _guard.shut = True
        _guard.stand_in()
        with _masked(kinds) as before:
            yield before
    finally:
        _guard.open(later)


@contextmanager
def _masked(kinds: Iterable[int]) -> Iterator[set[int]]:
    """They are kept from this thread in the block; gives the mask that was in force."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, kinds)
    try:
        yield set(before)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def disown(mask: Iterable[int]) -> None:
    """In a new process: forget the handlers of the one it was forked from, then let signals in as ``mask`` says.

    The trainer decides about what is sent to the whole group, as it does about Ctrl-C, so what it handles is ignored
    here; SIGTERM ends the process. Signals must have been held since before the fork.
    """
    signal.set_wakeup_fd(-1)  # an event loop's of the trainer, which would take our signals for its own
    for kind in signal.valid_signals():
        if callable(signal.getsignal(kind)) and kind not in TIMERS:
            signal.signal(kind, signal.SIG_DFL if kind in FATAL else signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def is_raised_by_handler(error: BaseException) -> bool:
    """Whether a handler of this process raised it, wherever that ran: its code is on the error's way."""
    codes = {_code(handler) for handler in map(signal.getsignal, ALL) if callable(handler)} - {None}
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code not in codes:
        traceback = traceback.tb_next
    return traceback is not None


def _code(handler: Any) -> CodeType | None:
    """What runs when it is called; None for what is not in Python."""
    while isinstance(handler, partial):
        handler = handler.func
    function = getattr(handler, "__func__", handler)
    found = getattr(function, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
    return found if isinstance(found, CodeType) else None
