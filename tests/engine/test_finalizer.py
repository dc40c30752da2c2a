"""What is done when an object is gone: it is done, and no signal is lost over it."""

import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from headrace.engine import finalizer
from headrace.engine.finalizer import Finalizer
from tests.engine.test_signals import Interrupt, elsewhere
from tests.loader.steps import at_check


class Owner:
    """Somebody who goes."""


@pytest.fixture(autouse=True)
def nothing_printed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was raised where nobody but Python sees it."""
    printed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda said: printed.append(said.exc_value))
    return printed


@pytest.fixture
def handled() -> Iterator[list[int]]:
    """The kinds whose handler ran; each raises."""
    kinds: list[int] = []

    def handler(kind: int, _: FrameType | None) -> None:
        kinds.append(kind)
        raise Interrupt

    before = {kind: signal.signal(kind, handler) for kind in (signal.SIGUSR1, signal.SIGUSR2)}
    yield kinds
    for kind, old in before.items():
        signal.signal(kind, old)


def drop(act: Callable[[], None]) -> None:
    """Somebody goes, and the program goes on."""
    owner = Owner()
    Finalizer(owner, act)
    del owner
    pass_by()


def pass_by() -> None:
    """Somewhere a handler can run."""


def test_it_is_done_once() -> None:
    done: list[int] = []
    drop(lambda: done.append(1))
    assert done == [1]
    gc.collect()
    assert not finalizer._left


def test_it_is_not_done_after_all() -> None:
    done: list[int] = []
    owner = Owner()
    kept = Finalizer(owner, lambda: done.append(1))
    kept.detach()
    kept.detach()
    del owner
    assert not done


def test_it_is_done_by_the_cycle_collector() -> None:
    done: list[int] = []
    owner = Owner()
    owner.itself = owner  # type: ignore[attr-defined]
    Finalizer(owner, lambda: done.append(1))
    del owner
    gc.collect()
    assert done == [1]


@pytest.mark.parametrize("raising", [signal.raise_signal, lambda kind: elsewhere(lambda: signal.raise_signal(kind))])
def test_what_comes_meanwhile_is_raised_afterwards(
    handled: list[int], nothing_printed: list[object], raising: Callable[[int], None]
) -> None:
    done: list[int] = []

    def act() -> None:
        raising(signal.SIGUSR1)
        assert not handled
        done.append(1)

    with pytest.raises(Interrupt):
        drop(act)
    assert handled == [signal.SIGUSR1]
    assert done == [1]
    assert not nothing_printed


def test_a_keyboard_interrupt_that_comes_meanwhile() -> None:
    with pytest.raises(KeyboardInterrupt):
        drop(lambda: os.kill(os.getpid(), signal.SIGINT))


def test_a_handler_may_only_look(nothing_printed: list[object]) -> None:
    seen: list[str] = []

    def look(_: int, frame: FrameType | None) -> None:
        while frame is not None:
            seen.append(frame.f_code.co_name)
            frame = frame.f_back

    before = signal.signal(signal.SIGUSR1, look)
    try:
        drop(lambda: signal.raise_signal(signal.SIGUSR1))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert "drop" in seen
    assert "_perform" not in seen
    assert not nothing_printed


def test_its_own_errors_are_printed(handled: list[int], nothing_printed: list[object]) -> None:
    def act() -> None:
        signal.raise_signal(signal.SIGUSR1)
        raise ValueError("mine")

    with pytest.raises(Interrupt):
        drop(act)
    assert [str(error) for error in nothing_printed] == ["mine"]
    nothing_printed.clear()


def test_ctrl_c_wherever_python_looks_for_it(nothing_printed: list[object]) -> None:
    """Also before handlers wait, and after: it is done all the same, and the program hears of it."""
    for line in itertools.count(1):
        done: list[int] = []
        owners = [Owner()]
        Finalizer(owners[0], lambda done=done: done.append(1))
        try:
            with at_check(line, lambda: signal.raise_signal(signal.SIGINT)) as steps:
                owners.clear()
                pass_by()
        except KeyboardInterrupt:
            assert steps[0] == line
        else:
            assert steps[0] < line
            break
        assert done
        assert not finalizer._left
    assert line > 15
    nothing_printed.clear()


def test_one_before_its_first_instruction(nothing_printed: list[object]) -> None:
    """Python prints that one, and calls the second reference: which sees to it that Ctrl-C is not lost."""
    done: list[int] = []
    owner = Owner()
    spoken = Finalizer(owner, lambda: done.append(1))

    def interrupted() -> None:
        raise KeyboardInterrupt

    spoken._references[-1].say = interrupted
    with pytest.raises(KeyboardInterrupt):
        del owner
        pass_by()
    assert done == [1]
    assert [type(error) for error in nothing_printed] == [KeyboardInterrupt]
    nothing_printed.clear()


def test_in_another_thread_nothing_waits(handled: list[int]) -> None:
    done: list[int] = []
    thread = threading.Thread(target=drop, args=(lambda: done.append(1),))
    thread.start()
    thread.join()
    assert done == [1]
    assert not handled


def test_at_exit() -> None:
    program = (
        "from headrace.engine.finalizer import Finalizer\n"
        "class Owner: pass\n"
        "owners = [Owner(), Owner()]\n"
        "for number, owner in enumerate(owners): Finalizer(owner, lambda number=number: print(number))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.split() == ["1", "0"]
