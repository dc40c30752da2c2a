"""Handlers that wait until something has been done: whatever thread takes a signal, and however often."""

import faulthandler
import gc
import itertools
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from headrace.engine import step
from headrace.engine.step import IterationStep, held
from tests.loader.steps import at_check

KINDS = (signal.SIGUSR1, signal.SIGUSR2)
END = 0
"""Of the block, among the kinds that were handled."""


class Interrupt(BaseException):
    """What a handler raises."""


@pytest.fixture
def ran() -> Iterator[list[int]]:
    """The kinds whose handler ran; each raises."""
    kinds: list[int] = []

    def handler(kind: int, frame: FrameType | None) -> None:
        assert frame is not None
        kinds.append(kind)
        raise Interrupt

    before = [signal.signal(kind, handler) for kind in KINDS]
    yield kinds
    for kind, old in zip(KINDS, before, strict=True):
        signal.signal(kind, old)


def elsewhere(act: Callable[[], object]) -> None:
    """Have another thread do it: a signal that it takes is handled here."""

    def work() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # it began with that of the one that started it
        act()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_one_that_another_thread_takes_waits(ran: list[int]) -> None:
    handler, mask = signal.getsignal(signal.SIGUSR1), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with pytest.raises(Interrupt), held(KINDS) as before:
        for _ in range(3):
            elsewhere(lambda: signal.raise_signal(signal.SIGUSR1))
        assert before == mask
        ran.append(END)
    assert ran == [END, signal.SIGUSR1]
    assert signal.getsignal(signal.SIGUSR1) is handler
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask


def test_those_that_this_thread_takes_wait(ran: list[int]) -> None:
    with pytest.raises(Interrupt), held():
        os.kill(os.getpid(), signal.SIGUSR2)
        ran.append(END)
    assert ran == [END, signal.SIGUSR2]


def test_all_that_came_are_handled(ran: list[int]) -> None:
    with pytest.raises(Interrupt), held(KINDS):
        for kind in KINDS:
            signal.raise_signal(kind)
        ran.append(END)
    assert ran[0] == END
    assert sorted(ran[1:]) == sorted(KINDS)


def test_they_wait_for_the_outermost(ran: list[int]) -> None:
    with pytest.raises(Interrupt), held():
        with held(KINDS):
            elsewhere(lambda: signal.raise_signal(signal.SIGUSR1))
        ran.append(END)
    assert ran == [END, signal.SIGUSR1]


@pytest.mark.parametrize("at", range(12))
def test_a_finalizer_that_holds_them_while_a_block_ends_takes_nothing_away(
    ran: list[int], monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """A loader that nobody has any more may be collected at any step of another's."""
    calls, getsignal = itertools.count(), signal.getsignal

    def collecting(kind: int) -> object:
        if next(calls) == at:
            with held():
                pass
        return getsignal(kind)

    with pytest.raises(Interrupt), held(KINDS):
        signal.raise_signal(signal.SIGUSR1)
        monkeypatch.setattr(signal, "getsignal", collecting)
    assert ran == [signal.SIGUSR1]
    with held():
        pass


def test_in_another_thread_they_do_not_wait(ran: list[int]) -> None:
    def work() -> None:
        with held():
            os.kill(os.getpid(), signal.SIGUSR1)

    with pytest.raises(Interrupt):
        elsewhere(work)
        pytest.fail("it came")
    assert ran


def test_an_error_is_not_lost(ran: list[int]) -> None:
    with pytest.raises(Interrupt) as caught, held():
        os.kill(os.getpid(), signal.SIGUSR1)
        raise ValueError
    assert isinstance(caught.value.__context__, ValueError)


def test_a_process_that_is_forked_meanwhile_handles_its_own(ran: list[int]) -> None:
    """By another thread of the user's, say."""

    def fork() -> None:
        pid = os.fork()
        if pid == 0:
            try:
                os.kill(os.getpid(), signal.SIGUSR1)
            except Interrupt:
                os._exit(5)
            os._exit(0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    codes: list[int] = []
    with held():
        fork()
    assert codes == [5]
    assert not ran


def test_handlers_that_python_does_not_know_stay(ran: list[int], tmp_path: Path) -> None:
    with (tmp_path / "said").open("w+") as file:
        faulthandler.register(signal.SIGUSR1, file)
        try:
            with held():
                pass
            signal.raise_signal(signal.SIGUSR1)
        finally:
            faulthandler.unregister(signal.SIGUSR1)
        assert "most recent call first" in (tmp_path / "said").read_text()
    assert not ran


def test_handlers_are_not_kept_alive() -> None:
    """A trainer's may hold the trainer, and that its loaders."""

    class Trainer:
        def stop(self, *_: object) -> None:
            pass

    trainer = Trainer()
    seen = weakref.ref(trainer)
    before = signal.signal(signal.SIGUSR1, trainer.stop)
    try:
        with held():
            pass
    finally:
        signal.signal(signal.SIGUSR1, before)
    del trainer
    gc.collect()
    assert seen() is None


class Shot:
    """A lock, and a signal whenever it was taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.locked, self.release = self._lock.locked, self._lock.release

    def acquire(self) -> None:
        self._lock.acquire()
        signal.raise_signal(signal.SIGUSR2)


def test_handlers_that_look_never_come_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """One runs while handlers are being replaced, and looks; another comes while that one has the lock."""
    looked = IterationStep()
    monkeypatch.setattr(looked, "_lock", Shot())
    came: list[int] = []

    def look(kind: int, _: FrameType | None) -> None:
        assert not looked._lock.locked(), "it would wait for itself"
        came.append(kind)
        if kind == signal.SIGUSR1:
            with looked.quiet():
                pass

    def asked(kind: int) -> object:
        if signal.SIGUSR1 not in came:
            signal.raise_signal(signal.SIGUSR1)
        return signal.getsignal(kind)

    before = [signal.signal(kind, look) for kind in KINDS]
    monkeypatch.setattr(step, "_getsignal", asked)
    try:
        with held():
            assert came == [signal.SIGUSR1]
    finally:
        monkeypatch.undo()
        for kind, old in zip(KINDS, before, strict=True):
            signal.signal(kind, old)
    assert came == list(KINDS)


def test_none_is_lost_where_another_lets_it_in() -> None:
    """A handler that holds the others comes while those that waited are let in."""
    ran: list[int] = []

    def handler(kind: int, _: FrameType | None) -> None:
        with held():
            ran.append(kind)

    before = [signal.signal(kind, handler) for kind in KINDS]
    try:
        for check in itertools.count(1):
            ran.clear()
            with at_check(check, lambda: signal.raise_signal(signal.SIGUSR2)) as checks, held():
                signal.raise_signal(signal.SIGUSR1)
            if checks[0] < check:
                break
            assert sorted(ran) == sorted(KINDS)
    finally:
        for kind, old in zip(KINDS, before, strict=True):
            signal.signal(kind, old)
    assert check > 100
