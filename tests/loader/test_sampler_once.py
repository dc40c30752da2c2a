"""A sampler that raises, or is interrupted, is not run again unless it would give the same again."""

import signal
from collections import deque

import pytest
from torch.utils.data import Sampler, SequentialSampler

import headrace
from tests.loader.support import outcomes
from tests.parity.datasets import Squares
from tests.parity.support import lists

N = 12


class Late(Exception):
    """What the handler raises."""


class Fed(Sampler):
    """Indices out of a queue; in the middle, something happens, once."""

    def __init__(self, happens):
        self.queue, self.happens, self.passes = deque(range(N)), happens, 0

    def __len__(self):
        return N

    def __iter__(self):
        self.passes += 1
        return self

    def __next__(self):
        if not self.queue:
            raise StopIteration
        if len(self.queue) == N // 2 and self.happens is not None:
            happens, self.happens = self.happens, None
            happens()
        return self.queue.popleft()


class FedGenerator(Fed):
    def __iter__(self):
        self.passes += 1
        while self.queue:
            yield super().__next__()


class Interrupted(SequentialSampler):
    """Torch's own, and a signal comes while it draws."""

    def __init__(self, happens):
        super().__init__(range(N))
        self.happens, self.passes = happens, 0

    def __iter__(self):
        self.passes += 1
        for index in super().__iter__():
            if index == N // 2 and self.happens is not None:
                happens, self.happens = self.happens, None
                happens()
            yield index


Interrupted.__module__ = SequentialSampler.__module__


def fails():
    raise ArithmeticError


def signalled():
    signal.raise_signal(signal.SIGUSR1)


@pytest.fixture
def handler():
    def late(*_):
        raise Late

    before = signal.signal(signal.SIGUSR1, late)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("in_order", [True, False])
def test_after_an_error_a_queue_goes_on(num_workers, in_order):
    sampler = Fed(fails)
    with headrace.DataLoader(Squares(N), None, sampler=sampler, num_workers=num_workers, in_order=in_order) as loader:
        batches, errors = outcomes(iter(loader))
    assert [type(error) for error in errors] == [ArithmeticError]
    assert sorted(int(batch) for batch in batches) == [i * i for i in range(N)]
    assert sampler.passes == 1


def test_after_an_error_a_generator_is_over():
    sampler = FedGenerator(fails)
    loader = headrace.DataLoader(Squares(N), 2, sampler=sampler, num_workers=0)
    batches, errors = outcomes(iter(loader))
    assert len(errors) == 1
    assert [batch.tolist() for batch in batches] == [[0, 1], [4, 9], [16, 25]]
    assert (sampler.passes, len(sampler.queue)) == (1, N // 2)


@pytest.mark.usefixtures("handler")
def test_a_handler_that_raises_in_torchs_sampler_loses_nothing():
    sampler = Interrupted(signalled)
    iterator = iter(headrace.DataLoader(Squares(N), 4, sampler=sampler, num_workers=0))
    found = [next(iterator).tolist()]
    with pytest.raises(Late):
        next(iterator)
    found += lists(iterator)
    assert [value for batch in found for value in batch] == [i * i for i in range(N)]
    assert sampler.passes == 2


@pytest.mark.usefixtures("handler")
@pytest.mark.parametrize("size", [None, 4])
def test_a_handler_that_raises_in_a_queues_sampler_takes_nothing_from_it(size):
    sampler = Fed(signalled)
    iterator = iter(headrace.DataLoader(Squares(N), size, sampler=sampler, num_workers=0))
    for _ in range(N // 2 if size is None else 1):
        next(iterator)
    with pytest.raises(Late):
        next(iterator)
    assert sampler.queue == deque(range(N // 2, N))
    if size is None:  # nothing stands between it and the loader
        assert [int(value) for value in iterator] == [i * i for i in range(N // 2, N)]
    else:  # torch's BatchSampler has ended, with the two that it held
        for _ in range(2):
            with pytest.raises(headrace.LoaderClosed, match="sampler was interrupted"):
                next(iterator)
        assert sampler.queue == deque(range(N // 2, N))
