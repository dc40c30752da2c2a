"""Interrupts while processes are started and ended, in a trainer with threads that take the signals."""

import gc
import itertools
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType

import psutil
import pytest

import headrace
from headrace.engine.processes.worker_pool import Pool
from tests.loader.data import Pairs
from tests.loader.steps import at_check, is_in
from tests.parity.support import raises, wait_until
from tests.selection import scaled

SAMPLES = 24
KINDS = {
    "in order": {"num_workers": 1, "in_order": True},
    "persistent": {"num_workers": 1, "in_order": False, "shuffle": True, "persistent_workers": True},
}
each_kind = pytest.mark.parametrize("kind", KINDS)
pytestmark = [pytest.mark.scaled, pytest.mark.timeout(600)]  # some hundred processes are started and ended


class Interrupt(BaseException):
    """What the handler raises."""


@pytest.fixture
def shoot() -> Iterator[Callable[[], None]]:
    """Has another thread take a signal, whose handler raises in this one."""
    orders: queue.SimpleQueue = queue.SimpleQueue()
    done: queue.SimpleQueue = queue.SimpleQueue()

    def handler(_: int, __: FrameType | None) -> None:
        raise Interrupt

    def work() -> None:
        while orders.get():
            signal.raise_signal(signal.SIGUSR1)
            done.put(True)

    def shooting() -> None:
        orders.put(True)
        done.get()

    before, thread = signal.signal(signal.SIGUSR1, handler), threading.Thread(target=work)
    thread.start()
    yield shooting
    orders.put(False)
    thread.join()
    signal.signal(signal.SIGUSR1, before)


def held_now() -> tuple[int, int]:
    """Processes and descriptors."""
    return len(psutil.Process().children(recursive=True)), psutil.Process().num_fds()


def made(kind: str) -> headrace.DataLoader:
    return headrace.DataLoader(Pairs(SAMPLES), **{"batch_size": 4, "timeout": 240} | KINDS[kind])


def numbers(batches) -> list[int]:
    return sorted(number for batch in batches for number in batch[0].tolist())


def assert_held(before: object) -> None:
    """No more than then."""
    if held_now() != before:
        gc.collect()  # an exception may still refer to something
    assert held_now() == before


@each_kind
def test_wherever_of_iter_it_comes_at(kind: str, shoot: Callable[[], None]) -> None:
    hits = 0
    with made(kind) as loader:
        loader.close()
        before = held_now()
        for line in itertools.count(1, scaled(419, 89)):
            try:
                with at_check(line, shoot) as steps:
                    iterator = iter(loader)
            except Interrupt:
                hits += 1
                iterator = iter(loader)
            assert numbers(iterator) == list(range(SAMPLES))
            del iterator
            loader.close()
            assert_held(before)
            if steps[0] < line:
                break
    assert hits > scaled(1, 5)


@pytest.mark.parametrize(
    "options", [{"in_order": True}, {"in_order": False, "shuffle": True}], ids=["in order", "as ready"]
)
def test_wherever_of_a_later_epochs_beginning_it_comes_at(options: dict[str, bool], shoot: Callable[[], None]) -> None:
    """Workers are there already, and may have begun with it."""

    with headrace.DataLoader(
        Pairs(SAMPLES), batch_size=4, num_workers=2, persistent_workers=True, timeout=240, **options
    ) as loader:
        for line in itertools.count(1, scaled(67, 5)):
            assert numbers(loader) == list(range(SAMPLES))
            try:
                with at_check(line, shoot) as steps:
                    iterator = iter(loader)
            except Interrupt:
                iterator = iter(loader)
            assert numbers(iterator) == list(range(SAMPLES))
            if steps[0] < line:
                break
        assert line > 100


@each_kind
def test_wherever_of_close_it_comes_at(kind: str, shoot: Callable[[], None]) -> None:
    hits = 0
    with made(kind) as loader:
        loader.close()
        before = held_now()
        for line in itertools.count(1, scaled(101, 17)):
            iterator = iter(loader)
            next(iterator)
            try:
                with at_check(line, shoot) as steps:
                    loader.close()
            except Interrupt:
                hits += 1
            del iterator
            loader.close()
            assert_held(before)
            if steps[0] < line:
                break
    assert hits > scaled(1, 5)


def stuck(reader: int, index: int) -> None:
    """A hook: no sample ever comes."""
    os.read(reader, 1)


@each_kind
def test_ctrl_c_while_a_dropped_iterator_ends(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers end, and then the program knows of it: Python would print it and go on."""
    printed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    before, main = held_now(), threading.get_ident()
    reader, writer = os.pipe()

    def press() -> None:
        if wait_until(lambda: is_in(main, Pool._end)):  # which waits a while for a worker in mid-sample
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    dataset = Pairs(SAMPLES, hook=partial(stuck, reader))
    loader = headrace.DataLoader(dataset, **{"batch_size": 4, "persistent_workers": True} | KINDS[kind])
    iterator = iter(loader)
    thread.start()
    with raises(KeyboardInterrupt):
        del iterator, loader
        held_now()  # somewhere a handler can run
    thread.join()
    os.close(reader)
    os.close(writer)
    assert_held(before)
    assert not printed
