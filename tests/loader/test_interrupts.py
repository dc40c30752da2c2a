"""Signals at any point of ``next()``: whatever their handlers do, no sample comes twice and none is lost."""

import itertools
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import headrace
from headrace.cache.backends import shm
from headrace.core.options import Retry
from headrace.engine.iteration import Iteration
from headrace.store.base import Row
from tests.engine.remote import RemoteNumbers
from tests.loader.steps import at_check, collecting_calls_nobody, inside
from tests.names import new_name
from tests.selection import scaled

SIZE, SAMPLES = 3, 21


class Interrupt(BaseException):
    """What the handler raises."""


class Numbers(Dataset):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, index])


class Staged(Numbers):
    def fetch(self, index: int) -> int:
        return index

    def decode(self, encoded: int) -> int:
        return encoded

    def augment(self, decoded: int) -> torch.Tensor:
        return torch.tensor([decoded, decoded])

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.augment(self.decode(self.fetch(index)))


class Fetched(Numbers):
    """Rows that a process of its own brings."""

    def __init__(self) -> None:
        self.store, self.retry = RemoteNumbers(SAMPLES), Retry()
        self.keys = self.store.keys()

    def made_of(self, index: int, row: Row) -> torch.Tensor:
        return torch.tensor([index, row.label])


class Flaky(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index % 5 == 3:
            raise ValueError(index)
        return super().__getitem__(index)


class Items(IterableDataset):
    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, SAMPLES, step):
            yield torch.tensor([index, index])


class Uneven(IterableDataset):
    """The first worker is done long before the other."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(SIZE) if get_worker_info().id == 0 else range(SIZE, SAMPLES):
            yield torch.tensor([index, index])


class Counted(IterableDataset):
    """Knows where it stands."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.at < SAMPLES:
            self.at += 1
            yield torch.tensor([self.at - 1, self.at - 1])
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Shuffled:
    """A sampler that knows where it stands."""

    def __init__(self) -> None:
        self.order, self.at = random.Random(7).sample(range(SAMPLES), SAMPLES), 0

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        while self.at < SAMPLES:
            self.at += 1
            yield self.order[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def stacked(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(samples)


BATCHES = [[*range(at, min(at + SIZE, SAMPLES))] for at in range(0, SAMPLES, SIZE)]
WORKERS = {"num_workers": 2, "persistent_workers": True, "timeout": 240}
INLINE = {"num_workers": 0, "batch_size": SIZE}
CACHE = headrace.Cache(f"shm://{new_name()}", size="1MiB", split=(0, 100, 0))
KINDS: dict[str, dict[str, Any]] = {
    "strict": WORKERS | {"in_order": True, "batch_size": SIZE},
    "free": WORKERS | {"in_order": False, "batch_size": SIZE, "shuffle": True},
    "batches": WORKERS | {"in_order": False, "batch_sampler": BATCHES},
    "collated": WORKERS | {"in_order": True, "batch_size": SIZE, "collate_fn": stacked},
    "failing": WORKERS | {"in_order": False, "batch_size": SIZE, "dataset": Flaky},
    "failing batches": WORKERS | {"in_order": True, "batch_size": SIZE, "dataset": Flaky},
    "stateful sampler": WORKERS | {"in_order": True, "batch_size": SIZE, "sampler": Shuffled},
    "cached": WORKERS | {"in_order": False, "batch_size": SIZE, "shuffle": True, "dataset": Staged, "cache": CACHE},
    "cached in order": WORKERS | {"in_order": True, "batch_size": SIZE, "dataset": Staged, "cache": CACHE},
    "inline cached": INLINE | {"in_order": False, "shuffle": True, "dataset": Staged, "cache": CACHE},
    "streams": WORKERS | {"batch_size": SIZE, "dataset": Items},
    "stateful stream": WORKERS | {"batch_size": SIZE, "dataset": Counted, "num_workers": 1},
    "inline": {"num_workers": 0, "batch_size": SIZE, "shuffle": True},
    "inline failing": {"num_workers": 0, "batch_size": SIZE, "dataset": Flaky},
    "inline stream": {"num_workers": 0, "batch_size": SIZE, "dataset": Items},
    "inline stateful": {"num_workers": 0, "batch_size": SIZE, "dataset": Counted},
}
FETCHED: dict[str, dict[str, Any]] = {
    "fetched": WORKERS | {"in_order": True, "batch_size": SIZE, "dataset": Fetched},
    "fetched free": WORKERS | {"in_order": False, "batch_size": SIZE, "dataset": Fetched, "shuffle": True},
    "inline fetched": INLINE | {"dataset": Fetched},
}


@pytest.fixture(autouse=True)
def _no_cache_is_left() -> Iterator[None]:
    yield
    shm.remove(CACHE.name)


each_kind = pytest.mark.parametrize("kind", KINDS)


def made(kind: str, **options: Any) -> headrace.DataLoader:
    arguments = (KINDS | FETCHED)[kind] | options
    if "sampler" in arguments:
        arguments["sampler"] = arguments["sampler"]()
    return headrace.DataLoader(arguments.pop("dataset", Numbers)(), **arguments)


def shot() -> None:
    signal.raise_signal(signal.SIGUSR1)


class Handler:
    """Of SIGUSR1, for one loader. It looks, or raises, or both; never between two steps of ours."""

    def __init__(self, loader: headrace.DataLoader, *, looks: bool = False, raises: bool = True) -> None:
        self.loader, self.looks, self.raises = loader, looks, raises
        self.states: list[dict[str, Any]] = []

    def __call__(self, *_: object) -> None:
        assert self.loader._latest is None or not self.loader._latest.step._inside
        if self.looks:
            self.states.append(self.loader.state_dict())
        if self.raises:
            raise Interrupt


@contextmanager
def handled(handler: Callable[..., None]) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


class Session:
    """One epoch of a loader, and what came of it."""

    def __init__(self, loader: headrace.DataLoader) -> None:
        self.loader, self.iterator = loader, iter(loader)
        self.rows: list[int] = []
        self.failed: list[int] = []

    def step(self) -> bool:
        """One ``next()``; False at the end. An interrupt comes through."""
        before = self.last_hand
        try:
            batch = next(self.iterator)
        except StopIteration:
            return False
        except ValueError:
            self.failed.append(1)
            return True
        except Interrupt as interrupt:
            hand = self.last_hand
            if isinstance(interrupt.__context__, ValueError) and hand not in (None, before) and not hand.load:
                self.failed.append(1)  # it came while the error was on its way, and both are seen
            raise
        assert torch.equal(batch[:, 0], batch[:, 1])
        self.rows += batch[:, 0].tolist()
        return True

    @property
    def last_hand(self) -> Any:
        run = self.loader._latest.run
        return run.hands[-1] if run is not None and run.hands else None

    def copy(self) -> "Session":
        """What came of it so far."""
        other = Session.__new__(Session)
        other.rows, other.failed = list(self.rows), list(self.failed)
        return other

    def finish(self) -> None:
        while self.step():
            pass

    def check(self, kind: str) -> None:
        assert len(self.rows) == len(set(self.rows)), "twice"
        if "failing" not in kind:
            assert sorted(self.rows) == list(range(SAMPLES))
        elif kind == "failing":
            assert sorted(self.rows) == [index for index in range(SAMPLES) if index % 5 != 3]
            assert len(self.failed) == 4
        else:
            assert len(self.rows) + SIZE * len(self.failed) == SAMPLES
        if kind in ("strict", "collated", "cached in order", "inline stream", "stateful stream", "inline stateful"):
            assert self.rows == list(range(SAMPLES))


def rest(kind: str, state: dict[str, Any]) -> Session:
    """What a new loader makes of a state."""
    inline = {"num_workers": 0, "persistent_workers": False, "timeout": 0} if kind != "streams" else {}
    loader = made(kind, **inline)
    loader.load_state_dict(state)
    session = Session(loader)
    session.finish()
    loader.close()
    return session


def remaining(state: dict[str, Any], kind: str) -> list[int]:
    """The samples that a state says were not delivered, where that can be read off it."""
    drawn = state["order"]["drawn"]
    pending = [index for group in state["pending"] for index in group]
    return pending + list(range(drawn * SIZE, SAMPLES))


READABLE = ("strict", "batches", "collated", "failing", "failing batches", "inline failing")


def check_state(kind: str, state: dict[str, Any], session: Session, *, fully: bool) -> None:
    """A state is of exactly what was not delivered."""
    if kind in READABLE and "order" in state:
        left = remaining(state, kind)
        assert len(left) == len(set(left)), "twice in the state"
        assert not set(left) & set(session.rows), "delivered, and in the state"
        if "failing" not in kind:
            assert sorted([*left, *session.rows]) == list(range(SAMPLES)), "lost"
        elif kind == "failing":
            assert len(left) + len(session.rows) + len(session.failed) == SAMPLES
    elif fully and not state.get("finished"):
        resumed = rest(kind, state)
        both = [*session.rows, *resumed.rows]
        assert len(both) == len(set(both)), "twice"
        if "failing" not in kind:
            assert sorted(both) == list(range(SAMPLES))
    batches = len(session.rows) // SIZE
    assert state["yielded"] >= batches if "failing" not in kind else True


def checks_of(kind: str) -> int:
    """How often Python looks for signals in the longest ``next()`` of an epoch, about."""
    with made(kind) as loader:
        session, most, more = Session(loader), 0, True
        while more:
            with at_check(0, shot) as checks:
                more = session.step()
            most = max(most, checks[0])
    return most


@pytest.mark.parametrize("kind", KINDS | FETCHED)
@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.sampled
@pytest.mark.scaled
def test_a_signal_wherever_python_looks_for_one(kind: str, looks: bool) -> None:
    """The handler raises, or looks first; several in one epoch, and more while the last one is being seen to."""
    rng, hits = random.Random(kind), 0
    most = checks_of(kind)
    with made(kind) as loader:
        handler = Handler(loader, looks=looks)
        with handled(handler):
            for _ in range(scaled(6, 300)):
                session, more = Session(loader), True
                while more:
                    done = len(session.rows)
                    handler.states.clear()
                    before = session.copy()
                    try:
                        with at_check(rng.randint(1, most), shot):
                            more = session.step()
                    except Interrupt:
                        hits += 1
                        assert len(session.rows) == done
                        handler.states.append(loader.state_dict())
                        if rng.random() < 0.5:
                            more = session.step()  # or whatever is read again from its beginning never ends
                            handler.states.clear()
                    for state in handler.states:
                        check_state(kind, state, before, fully=hits % 31 == 0)
                session.check(kind)
    assert hits


@each_kind
@pytest.mark.scaled
def test_a_handler_that_looks_wherever_python_looks_for_a_signal(kind: str) -> None:
    """What it sees is how things stand before the batch is delivered, or after."""
    number, step = -random.Random(kind).randrange(scaled(60, 3)), scaled(60, 3)
    with made(kind) as loader:
        handler, misses = Handler(loader, looks=True, raises=False), 0
        with handled(handler):
            while misses < 3:
                session, more, seen = Session(loader), True, 0
                while more:
                    number += step
                    handler.states.clear()
                    before = session.copy()
                    with at_check(abs(number), shot):
                        more = session.step()
                    seen += len(handler.states)
                    for state in handler.states:
                        try:
                            check_state(kind, state, before, fully=number % 31 == 0)
                        except AssertionError:
                            check_state(kind, state, session, fully=number % 31 == 0)
                misses = 0 if seen else misses + 1
                session.check(kind)


@each_kind
def test_another_thread_that_looks_all_the_time(kind: str) -> None:
    """It finds nothing under way: a state of some batches delivered, and the others not."""
    over, states = threading.Event(), list[dict[str, Any]]()

    def look() -> None:
        while not over.wait(0.0005):
            states.append(loader.state_dict())

    with made(kind) as loader:
        session = Session(loader)
        with ThreadPoolExecutor(1) as thread:
            looking = thread.submit(look)
            session.finish()
            over.set()
            looking.result()
        session.check(kind)
    for state in states:
        if kind in READABLE and "order" in state:
            left = remaining(state, kind)
            assert len(left) == len(set(left)), "twice in the state"


@pytest.mark.parametrize("kind", ["strict", "inline"])
def test_the_second_ctrl_c_comes_at_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The iteration has ended then: nothing is known of what was under way."""
    with made(kind) as loader:
        iterator = iter(loader)
        first = next(iterator)[:, 0].tolist()
        stays = Iteration._take

        def twice(iteration: Any) -> Any:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            return stays(iteration)

        monkeypatch.setattr(Iteration, "_take", twice)
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        monkeypatch.undo()
        with pytest.raises(headrace.LoaderClosed):
            next(iterator)
        assert len(first) == SIZE
        session = Session(loader)
        session.finish()
        session.check("free")


@pytest.mark.scaled
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("kind", ["strict", "free", "streams", "inline", "inline stream"])
def test_a_handler_that_looks_at_any_line_of_iter(kind: str, persistent: bool) -> None:
    """What it sees is how things stand before the epoch begins, or after: a state to go on from, whichever it is."""
    inline = "inline" in kind
    if inline and persistent:
        pytest.skip("no workers")
    with made(kind, persistent_workers=persistent) as loader:
        expected = list(range(SAMPLES))
        for line, epoch in zip(
            itertools.count(1, scaled(4, 1) * (7 if inline else 17 if persistent else 61)), itertools.count()
        ):
            states: list[dict[str, Any]] = []
            with at_check(line, shot) as steps, handled(lambda *_, states=states: states.append(loader.state_dict())):
                iterator = iter(loader)
            assert sorted(number for batch in iterator for number in batch[:, 0].tolist()) == expected
            for state in filter(None, states):
                assert (state["epoch"], state["finished"], state["yielded"]) in (
                    (epoch - 1, True, -(-SAMPLES // SIZE) if kind != "streams" else state["yielded"]),
                    (epoch, False, 0),
                )
                assert sorted(rest(kind, state).rows) == expected
            if steps[0] < line:
                break
        assert epoch > scaled(2, 9)


@pytest.mark.scaled
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("kind", ["strict", "free", "inline"])
def test_a_handler_that_looks_while_an_epoch_of_which_nothing_is_left_begins(kind: str, persistent: bool) -> None:
    """The state was taken when all was delivered, and before the end of it was: no state from then on is empty."""
    with made(kind) as loader:
        session = Session(loader)
        while len(session.rows) < SAMPLES:
            session.step()
        taken = loader.state_dict()
    assert not taken["finished"]
    with made(kind, persistent_workers=persistent and kind != "inline") as loader:
        for line in itertools.count(1, scaled(41, 3)):
            loader.load_state_dict(taken)
            states: list[dict[str, Any]] = []
            with at_check(line, shot) as steps, handled(lambda *_, states=states: states.append(loader.state_dict())):
                iterator = iter(loader)
            assert list(iterator) == []
            for state in states:
                assert (state["epoch"], state["yielded"], state["finished"]) == (0, SAMPLES // SIZE, False)
                assert rest(kind, state).rows == []
            if steps[0] < line:
                break


def test_an_interrupt_after_a_stream_has_ended() -> None:
    """Its memory is the other stream's by then, whose batches are not its own."""
    with made("streams", dataset=Uneven, prefetch_factor=1) as loader:
        iterator = iter(loader)
        kept = list(itertools.islice(iterator, SAMPLES // SIZE - 1))  # so that it is needed
        with handled(Handler(loader)), pytest.raises(Interrupt), at_check(60, shot):
            next(iterator)
        kept += iterator
    assert torch.cat(kept)[:, 0].tolist() == list(range(SAMPLES))


def refusing(worker: int) -> None:
    if worker == 0:
        raise ValueError(worker)


def test_an_interrupt_after_a_worker_refused() -> None:
    """What it failed with was no batch of its stream."""
    with made("streams", worker_init_fn=refusing) as loader:
        iterator = iter(loader)
        with pytest.raises(ValueError, match="0"):
            next(iterator)
        kept = list(itertools.islice(iterator, 3))
        with handled(Handler(loader)), pytest.raises(Interrupt), at_check(60, shot):
            next(iterator)
        kept += iterator
    assert sorted(torch.cat(kept)[:, 0].tolist()) == list(range(SAMPLES))


@contextmanager
def shooting(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """A signal every millisecond or two, which any thread of this process may take."""
    over = threading.Event()

    def shoot() -> None:
        rng = random.Random(1)
        while not over.wait(rng.random() * 0.003):
            os.kill(os.getpid(), signal.SIGUSR1)

    before, thread = signal.signal(signal.SIGUSR1, handler), threading.Thread(target=shoot)
    thread.start()
    try:
        with collecting_calls_nobody():
            yield
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)


@each_kind
@pytest.mark.stress
@pytest.mark.scaled
def test_signals_at_random(kind: str) -> None:
    """Real ones, with another thread that can take them, and a handler that now looks and now raises."""
    rng, states = random.Random(kind), list[tuple[dict[str, Any], Session]]()
    interrupts = 0

    def handler(_: int, frame: FrameType | None) -> None:
        if inside(frame):
            states.append((loader.state_dict(), session.copy()))
            if rng.random() < 0.5:
                raise Interrupt

    with made(kind) as loader, shooting(handler):
        while interrupts < scaled(10, 500):
            session, going = Session(loader), True
            while going:
                states.clear()
                try:
                    going = session.step()
                except Interrupt:
                    interrupts += 1
                for state, seen in states:
                    try:
                        check_state(kind, state, seen, fully=False)
                    except AssertionError:
                        check_state(kind, state, session, fully=False)
            session.check(kind)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("kind", ["strict", "free", "cached", "streams", "inline", "inline cached", "inline stream"])
def test_an_epoch_whose_end_was_interrupted_is_not_finished_yet(kind: str, persistent: bool) -> None:
    """The loop has not ended: who saves a state then, and goes on from it, trains no further epoch."""
    loader = made(kind, persistent_workers=persistent and "inline" not in kind)
    session = Session(loader)
    while len(session.rows) < SAMPLES:
        session.step()
    handler = Handler(loader, looks=True)
    with handled(handler), pytest.raises(Interrupt), at_check(200, shot):
        session.step()
    states = [*handler.states, loader.state_dict()]
    assert not session.step(), "it ends all the same"
    after = loader.state_dict()
    loader.close()
    session.check(kind)
    assert [state["finished"] for state in [*states, after]] == [False, False, True]
    for state in states:
        assert rest(kind, state).rows == []
    rest(kind, after).check(kind)


class Alarm(Exception):
    """What a handler raises that is like an error of the user's own code."""


class Struck(Numbers):
    """A dataset in whose code a signal comes, once."""

    def __init__(self) -> None:
        self.strikes = [7]

    def __getitem__(self, index: int) -> torch.Tensor:
        if index in self.strikes:
            self.strikes.clear()
            signal.raise_signal(signal.SIGUSR1)
        return super().__getitem__(index)


class StruckItems(IterableDataset):
    def __init__(self) -> None:
        self.whole = Struck()

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self.whole[index] for index in range(SAMPLES))


@pytest.mark.parametrize("on_error", [None, headrace.Skip(max_fraction=0.5)])
@pytest.mark.parametrize("dataset", [Struck, StruckItems])
def test_a_handler_s_exception_in_the_user_s_code_is_no_failure_of_a_sample(dataset, on_error):
    def handler(*_: Any) -> None:
        raise Alarm

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with headrace.DataLoader(dataset(), SIZE, num_workers=0, on_error=on_error) as loader:
            found, iterator, alarms = [], iter(loader), 0
            while True:
                try:
                    found += next(iterator)[:, 0].tolist()
                except Alarm:
                    alarms += 1
                except StopIteration:
                    break
            assert not loader.stats().failed
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert alarms == 1
    assert found == list(range(SAMPLES))
