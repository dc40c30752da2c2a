"""``close()`` in mid-epoch, from whatever thread: no loop ends as if its epoch were complete, and nothing hangs."""

import gc
import itertools
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch

import headrace
from headrace.engine.processes.worker_pool import Pool
from tests.loader.data import Numbers, Pairs
from tests.loader.steps import at_check, is_in
from tests.parity.support import children, raises, wait_until
from tests.selection import scaled

SAMPLES = 40
KINDS: dict[str, dict[str, Any]] = {
    "in order": {"num_workers": 2, "in_order": True},
    "as ready": {"num_workers": 2, "in_order": False, "shuffle": True},
    "persistent": {"num_workers": 2, "persistent_workers": True},
    "inline": {"num_workers": 0},
    "streams": {"num_workers": 2, "stream": True},
    "inline stream": {"num_workers": 0, "stream": True},
}
each_kind = pytest.mark.parametrize("kind", KINDS)
with_workers = pytest.mark.parametrize("kind", [kind for kind in KINDS if "inline" not in kind])


def made(kind: str, dataset: Any = None, **more: Any) -> headrace.DataLoader:
    options = KINDS[kind] | {"batch_size": 4} | more
    default = Numbers(SAMPLES) if options.pop("stream", False) else Pairs(SAMPLES)
    return headrace.DataLoader(default if dataset is None else dataset, **options)


def numbers(batches: Any) -> list[int]:
    return [number for batch in batches for number in (batch if torch.is_tensor(batch) else batch[0]).tolist()]


def blocked(first: int, reader: int, index: int) -> None:
    """A hook: samples from ``first`` on do not come."""
    if index >= first:
        os.read(reader, 1)


@pytest.fixture
def pipe() -> Iterator[int]:
    """A descriptor at which nothing ever comes."""
    reader, writer = os.pipe()
    yield reader
    os.close(reader)
    os.close(writer)


@each_kind
def test_in_the_loop_itself(kind: str) -> None:
    before = children()
    loader = made(kind)
    found: list[int] = []
    with pytest.raises(headrace.LoaderClosed, match="not complete"):
        for batch in loader:
            found += numbers([batch])
            if len(found) >= 12:
                loader.close()
    assert len(found) == 12
    assert children() == before


@each_kind
def test_iterators_that_were_kept(kind: str) -> None:
    with made(kind) as loader:
        unasked = iter(loader)
        loader.close()
        halfway = iter(loader)
        found = numbers([next(halfway)])
        state = loader.state_dict()
        loader.close()
        for _ in range(2):
            for iterator in (unasked, halfway):
                with pytest.raises(headrace.LoaderClosed):
                    next(iterator)
        assert loader.state_dict() == state
        loader.load_state_dict(state)
        assert sorted(found + numbers(loader)) == list(range(SAMPLES))
        complete = iter(loader)
        numbers(complete)
        loader.close()
        assert list(complete) == []
        assert sorted(numbers(loader)) == list(range(SAMPLES))


@with_workers
def test_while_another_thread_waits_for_a_batch(kind: str, pipe: int) -> None:
    """It would wait for ever."""
    before = children()
    hook = partial(blocked, 8, pipe)
    loader = made(kind, (Numbers if kind == "streams" else Pairs)(SAMPLES, hook=hook))
    iterator = iter(loader)
    with ThreadPoolExecutor(1) as thread:
        ident = thread.submit(threading.get_ident).result()
        waits = thread.submit(numbers, iterator)
        assert wait_until(lambda: is_in(ident, Pool.wait))
        loader.close()
        assert children() == before
        assert isinstance(waits.exception(240), headrace.LoaderClosed)
        assert isinstance(thread.submit(next, iterator).exception(240), headrace.LoaderClosed)


def test_while_another_thread_makes_a_sample_itself() -> None:
    """That cannot be broken off: whoever closes does not wait for it for ever."""
    reader, writer = os.pipe()
    loader = made("inline", Pairs(SAMPLES, hook=partial(blocked, 8, reader)))
    iterator = iter(loader)
    with ThreadPoolExecutor(1) as thread:
        ident = thread.submit(threading.get_ident).result()
        waits = thread.submit(numbers, iterator)
        assert wait_until(lambda: is_in(ident, blocked))
        loader.close()
        assert not waits.done()
        os.close(writer)
        assert isinstance(waits.exception(240), headrace.LoaderClosed)
    os.close(reader)


@each_kind
@pytest.mark.stress
@pytest.mark.scaled
def test_at_any_moment_of_another_thread(kind: str) -> None:
    """What it had and what the state says is the epoch, and the other one knows that it had not all of it."""
    rng, closed, samples = random.Random(kind), 0, 400
    before = children()
    loader = made(kind, (Numbers if "stream" in kind else Pairs)(samples))
    for number in range(scaled(3, 50)):
        found, enough = list[int](), rng.randrange(samples // 2)
        reached, goes_on = threading.Event(), threading.Event()
        if number:  # the first time the loader is closed between two calls; later it may as well be too late
            goes_on.set()

        def loop(
            found: list[int] = found,
            enough: int = enough,
            reached: threading.Event = reached,
            goes_on: threading.Event = goes_on,
        ) -> None:
            for batch in loader:
                found += numbers([batch])
                if len(found) >= enough:
                    reached.set()
                    assert goes_on.wait(240)

        with ThreadPoolExecutor(1) as thread:
            looping = thread.submit(loop)
            if enough > 10 or not number:
                assert reached.wait(240)
            loader.close()
            goes_on.set()
            error = looping.exception(240)
        assert len(found) == len(set(found))
        if error is None:
            assert sorted(found) == list(range(samples))
            continue
        assert isinstance(error, headrace.LoaderClosed)
        del error
        closed += 1
        gc.collect()
        assert children() == before
        loader.load_state_dict(loader.state_dict())
        assert sorted(found + numbers(loader)) == list(range(samples))
        loader.load_state_dict({})
    loader.close()
    assert closed


def ended(kind: str, line: int, act: Callable[[headrace.DataLoader], None]) -> bool:
    """``act`` before a line of ``next()``; whether there was such a line."""
    with made(kind) as loader:
        iterator, found = iter(loader), list[int]()
        for _ in range(line % 3):
            found += numbers([next(iterator)])
        acted: list[bool] = []

        def handle(*_: object) -> None:
            acted.append(True)
            act(loader)

        before = signal.signal(signal.SIGUSR1, handle)
        try:
            with at_check(line, lambda: signal.raise_signal(signal.SIGUSR1)):
                found += numbers([next(iterator)])
        except (headrace.LoaderClosed, Stop) as error:
            error.with_traceback(None)
        finally:
            signal.signal(signal.SIGUSR1, before)
        if not acted:
            return False
        with raises(headrace.LoaderClosed):
            next(iterator)
        state = loader.state_dict()
        del iterator
        loader.load_state_dict(state)
        assert sorted(found + numbers(loader)) == list(range(SAMPLES))
    return True


class Stop(BaseException):
    """What a handler raises."""


def closes_and_stops(loader: headrace.DataLoader) -> None:
    loader.close()
    raise Stop


@pytest.mark.scaled
@pytest.mark.sampled
@pytest.mark.parametrize("act", [headrace.DataLoader.close, closes_and_stops], ids=["goes on", "raises"])
@pytest.mark.parametrize("kind", ["as ready", "persistent", "inline", "streams"])
def test_a_handler_that_closes_at_any_line_of_next(kind: str, act: Callable[[headrace.DataLoader], None]) -> None:
    before, lines = children(), 0
    for line in itertools.count(2, scaled(6, 1) * (3 if kind == "inline" else 23)):
        if not ended(kind, line, act):
            break
        lines += 1
    assert lines > scaled(1, 8)
    assert children() == before


@each_kind
def test_several_threads_that_share_an_iterator(kind: str) -> None:
    """Each batch is one thread's."""
    with made(kind) as loader:
        for _ in range(3):
            iterator = iter(loader)
            with ThreadPoolExecutor(4) as threads:
                found = list(threads.map(numbers, [iterator] * 4))
            assert sorted(itertools.chain(*found)) == list(range(SAMPLES))


def test_a_handler_that_asks_for_a_batch_inside_next() -> None:
    """It cannot have one: the other call is in the middle of something."""
    raised: list[BaseException] = []

    def ask(*_: object) -> None:
        with raises(RuntimeError, match="another call of this thread") as caught:
            next(loader._iterator)
        raised.append(caught.value)

    with made("persistent") as loader:
        iterator = iter(loader)
        found = numbers([next(iterator)])
        before = signal.signal(signal.SIGUSR1, ask)
        try:
            with at_check(200, lambda: signal.raise_signal(signal.SIGUSR1)):
                found += numbers([next(iterator)])
        finally:
            signal.signal(signal.SIGUSR1, before)
        found += numbers(iterator)
    assert raised
    assert found == list(range(SAMPLES))
