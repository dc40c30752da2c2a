"""The handling of signals: between steps, and in the windows of a step, never between two stores of ours.

A step is a call of an iteration, or a look at it. It excludes other threads, and handlers of this process only note
that they came: they run at its end, or in the next window. Windows are the places where a step waits, or runs what is
the user's: a handler may raise there, ask for a state, or close the loader. So all else uses plain objects.
"""

import _signal  # type: ignore[import-not-found, unused-ignore]  # ``signal`` makes an enum of every answer, in 2 µs
import ctypes
import inspect
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, ParamSpec, TypeVar

ALL = frozenset(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}
LOOK_SECONDS = 0.001
"""How often a thread looks whether the call of another is over: that ends with a store, which wakes nobody."""
WITHIN = "this iteration is in another call of this thread, which a signal handler must not begin again"

Handler = Callable[[int, FrameType | None], Any]
Asked = ParamSpec("Asked")
Given = TypeVar("Given")

_getsignal, _setsignal = _signal.getsignal, _signal.signal
_KINDS = sorted(map(int, ALL), key=lambda kind: kind != signal.SIGINT)  # Ctrl-C first: it is the likeliest
_libc = ctypes.CDLL(None)
_sigaction = _libc.sigaction
_sigaction.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
_main = threading.main_thread().ident


class _StandIn:
    """Stands before one handler. Open, it passes on: it does no harm where it stays, say in the user's hands."""

    __slots__ = ("action", "handler")

    def __init__(self, handler: Handler, action: bytes) -> None:
        """``action``: what the system did about the signal, which Python's table does not know all of."""
        self.handler, self.action = handler, action

    def __call__(self, kind: int, frame: FrameType | None) -> None:
        if _guard.depth == 0:
            _guard.run(self.handler, kind, frame)
        elif kind in _guard.came and kind == signal.SIGINT and _guard.breaks and _guard.depth == 1:
            del _guard.came[kind]
            try:
                self.handler(kind, frame)
            except BaseException:
                _guard.broke = True  # asked for twice: what is under way is given up
                raise
        else:
            _guard.came[kind] = self.handler


class _HandlerGuard:
    """The guard of this process: stands before all handlers of Python's while a step is under way. For the main
    thread.
    """

    def __init__(self) -> None:
        self.users = 0
        """How many blocks are under way in each other: while there is one, stand-ins stand."""
        self.depth = 0
        """How many of them keep handlers waiting: none outside the innermost window that is open."""
        self.came: dict[int, Handler] = {}
        """Those that wait, in the order in which they came."""
        self.breaks = False
        """Whether a second Ctrl-C comes through."""
        self.broke = False
        """Whether it has, in this step."""
        self.raised = False
        """Whether a handler raised since the last window was opened."""
        self._stands = False  # before all handlers: one may run while they are set, and look at an iteration itself
        self._standing: dict[int, _StandIn] = {}
        self._buffer = ctypes.create_string_buffer(256)  # larger than any sigaction
        self._at = ctypes.addressof(self._buffer)
        self._usual = b""  # what the system does where Python handles a signal

    def keep_out(self) -> None:
        """Have handlers wait, in a block that was counted."""
        if self.depth == 1 or not self._stands:
            self.stand_in()

    def stand_in(self) -> None:
        """Stand before every handler that it does not stand before yet."""
        self._stands = False
        for kind in _KINDS:
            handler = _getsignal(kind)
            if callable(handler) and type(handler) is not _StandIn:
                _sigaction(kind, None, self._at)
                self._standing[kind] = standing = _StandIn(handler, self._buffer.raw)
                before = _setsignal(kind, standing)
                if before is not handler:  # one that ran at this moment set it
                    _setsignal(kind, before)
                elif not self._usual:
                    _sigaction(kind, None, self._at)
                    self._usual = self._buffer.raw
        self._stands = True

    def let_in(self) -> None:
        """Run those that came, all of them, whatever one of them raises."""
        if not self.came:
            return
        frame = inspect.currentframe()  # they run here: where they came is over
        for kind in self.came:
            handler = self.came[kind]
            del self.came[kind]  # no other can run before it has begun, since nothing is called: none is lost
            try:
                handler(kind, frame)
            except BaseException:
                self.raised = True
                raise
            finally:
                self.let_in()
            break

    def run(self, handler: Handler, kind: int, frame: FrameType | None) -> None:
        """Run a handler at a point at which it may raise."""
        try:
            handler(kind, frame)
        except BaseException:
            self.raised = True
            raise

    def settle(self, later: list[int] | None = None) -> None:
        """A block is over; with the last one, leave everything as it was. ``later``: see ``undisturbed``.

        Whoever calls this has counted the block out, by stores before any call: where a handler broke ``stand_in`` off,
        another may come with the next call.
        """
        if self.depth:
            return
        try:
            if self.users == 0:
                self._stand_aside()
        finally:
            try:
                if self.users == 0:
                    self._stand_aside()  # a handler may have run in the first attempt, and raised
            finally:
                if later is None:
                    self.let_in()
                else:
                    later += self.came
                    self.came.clear()

    def _stand_aside(self) -> None:
        self._stands = False
        for kind, standing in list(self._standing.items()):
            if _getsignal(kind) is standing:
                before = _setsignal(kind, standing.handler)
                if before is not standing:  # as above
                    _setsignal(kind, before)
                elif standing.action != self._usual:
                    ctypes.memmove(self._at, standing.action, len(standing.action))
                    _sigaction(kind, self._at, None)
            if self._standing.get(kind) is standing:
                self._standing.pop(kind, None)

    def forked(self) -> None:
        """Reset in a new process, where nobody waits."""
        global _main  # noqa: PLW0603  (one process, one main thread)
        _main = threading.get_ident()
        self.users = self.depth = 0
        self.breaks = False
        self.came.clear()
        self._stand_aside()


_guard = _HandlerGuard()
os.register_at_fork(after_in_child=_guard.forked)


@contextmanager
def held(kinds: Iterable[int] = ()) -> Iterator[set[int]]:
    """A block in which no handler runs, whatever thread of the process takes its signal: they run at its end.

    ``kinds`` are also masked, for processes that are forked in the block; gives the mask that was in force, to be
    handed to them.
    """
    if threading.get_ident() != _main:  # handlers run in the main thread
        with _masked(kinds) as before:
            yield before
        return
    _guard.users += 1
    _guard.depth += 1
    try:
        _guard.keep_out()
        with _masked(kinds) as before:
            yield before
    finally:
        _guard.users -= 1
        _guard.depth -= 1
        _guard.settle()


def undisturbed(act: Callable[[], None], again: list[int]) -> None:
    """Call ``act`` as in ``held``, but handlers do not run at the end either: the signals that came go to ``again``.

    But for those that came inside an outer block, whose end they wait for.
    """
    if threading.get_ident() != _main:
        act()
        return
    _guard.users += 1
    _guard.depth += 1
    try:
        _guard.keep_out()
        act()
    finally:
        _guard.users -= 1
        _guard.depth -= 1
        try:
            _guard.settle(again)
        except KeyboardInterrupt:  # it came just now
            again.append(signal.SIGINT)


@contextmanager
def _masked(kinds: Iterable[int]) -> Iterator[set[int]]:
    """Block these signals in this thread for the block; gives the mask that was in force."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, kinds)
    try:
        yield set(before)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class IterationStep:
    """The steps of one iteration's calls. ``with step:`` is a step of a call, of which one is under way at a time.

    The call is over with ``step.caller = 0``: a store, with which no handler can run. Between the end of the step and
    that store the call is still under way, so that no other thread takes what it is about to return.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.caller = 0
        """The thread whose call is under way; 0: none is."""
        self._inside = False  # it is in its step, and not in a window of that
        self._passed = False  # something was raised through a window of it
        self._looks = 0  # the thread that looks at the iteration
        self.missed = False
        """Whether ``wait`` was called by the thread that looks, whose look finalizes the iteration, say."""
        self.broken = False
        """Whether something was broken off between two windows: nothing is known of the iteration any more."""

    def __enter__(self) -> None:
        """Begin a call's step, once that of another thread is over. RuntimeError inside another call of this one."""
        while not self._begin():
            if self.caller == threading.get_ident():
                raise RuntimeError(WITHIN)
            time.sleep(LOOK_SECONDS)

    def wait(self, seconds: float) -> bool:
        """Enter when no other call is under way; False when time is up, or at once inside a call of this thread, or a
        look.
        """
        deadline = time.monotonic() + seconds
        while True:
            if threading.get_ident() in (self.caller, self._looks):
                self.missed = self.caller != threading.get_ident()
                return False
            if self._begin():
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(LOOK_SECONDS)

    def leave(self) -> None:
        """The step is over, and the call with it."""
        self.caller, self._inside = 0, False
        self._open()

    def _begin(self) -> bool:
        """Begin a call's step, unless a call is under way."""
        self._shut()
        if self.caller == 0:
            self.caller, self._inside, self._passed = threading.get_ident(), True, False
            return True
        self._open()
        return False

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """End the step: handlers that came run now, and may raise."""
        if error is not None and not self._passed:
            # What is raised without being foreseen leaves things as they are, whatever they are.
            self.broken |= _guard.broke or isinstance(error, MemoryError) or not isinstance(error, Exception)
        self._inside = False
        self._open()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """A look at the iteration, by any thread and in any window: nothing is under way in the block."""
        self._shut()
        self._looks = threading.get_ident()
        try:
            yield
        finally:
            self._looks = 0
            self._open()

    def opened(self, act: Callable[Asked, Given], *args: Asked.args, **options: Asked.kwargs) -> Given:
        """The result of ``act``, called in a window: handlers run, and others may look. Outside a step, it is just
        called.
        """
        main = threading.get_ident() == _main
        if not self._inside or (main and _guard.depth != 1):  # signals are held, whatever waits
            return act(*args, **options)
        self._inside = False
        self._lock.release()
        try:
            if main:
                _guard.raised = _guard.breaks = False
                _guard.depth = 0
                _guard.let_in()
            return act(*args, **options)
        except BaseException:
            self._passed = True
            raise
        finally:
            if main:
                _guard.depth = 1  # nothing was called since, so no handler keeps it from being done
            self._close_again(main=main)

    def _close_again(self, *, main: bool) -> None:
        """The window is over. Handlers that the user set in it may run until there are stand-ins for them."""
        try:
            if main:
                _guard.stand_in()
        except BaseException:
            self._passed = True
            raise
        finally:
            self._lock.acquire()
            self._inside = True
            if main:
                _guard.breaks = True

    @property
    def interrupted(self) -> bool:
        """True if a handler raised in the newest window."""
        return _guard.raised and threading.get_ident() == _main

    def _shut(self) -> None:
        thread = threading.get_ident()
        if (self._inside and self.caller == thread) or self._looks == thread:  # a finalizer of the user's, say
            raise RuntimeError(WITHIN)
        if thread != _main:
            self._lock.acquire()
            return
        _guard.users += 1
        _guard.depth += 1
        try:
            _guard.keep_out()
            self._lock.acquire()
        except BaseException:
            _guard.users -= 1
            _guard.depth -= 1
            _guard.settle()
            raise
        _guard.broke, _guard.breaks = False, _guard.depth == 1

    def _open(self) -> None:
        self._lock.release()
        if threading.get_ident() == _main:
            _guard.breaks = False
            _guard.users -= 1
            _guard.depth -= 1
            _guard.settle()
