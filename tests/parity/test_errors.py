"""Contract section 10: errors of the dataset, of functions given by the user and of samplers."""

import functools
import re
from collections import deque

import pytest
import torch.utils.data

from tests.parity.datasets import (
    Failing,
    OnlyLast,
    RaisingSampler,
    Squares,
    TwoArgumentsError,
    raise_type_error,
    unpicklable,
)
from tests.parity.support import children, lists, raises, samples, wait_until

ERRORS = {
    "ValueError": (functools.partial(ValueError, "bad value"), ValueError, "ValueError: bad value"),
    "KeyError": (functools.partial(KeyError, "key"), KeyError, "KeyError: 'key'"),
    "two arguments": (
        functools.partial(TwoArgumentsError, "one", "two"),
        RuntimeError,
        "TwoArgumentsError: ",
    ),
    "FileNotFoundError": (
        functools.partial(FileNotFoundError, 2, "none", "f"),
        FileNotFoundError,
        "No such|none",
    ),
    "UnicodeDecodeError": (functools.partial(bytes.decode, b"\xff"), RuntimeError, "UnicodeDecodeError: "),
}


def raiser(make_error):
    return make_error()


@pytest.mark.parametrize("kind", ERRORS)
def test_error_of_a_sample(loader_class, kind):
    factory, expected, text = ERRORS[kind]
    loader = loader_class(Failing(4, {1}, factory), num_workers=1)
    iterator = iter(loader)
    assert next(iterator).tolist() == [0]
    with raises(expected) as caught:
        next(iterator)
    assert type(caught.value) is expected
    message = str(caught.value)
    name = "TwoArgumentsError" if kind == "two arguments" else kind
    assert message.startswith(
        f"Caught {name} in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
    )
    assert re.search(text, message)
    assert "datasets.py" in message
    assert "__getitem__" in message
    assert samples(iterator) == [2, 3]


@pytest.mark.parametrize("size", [1, 3])
def test_one_error_for_each_failed_batch(loader_class, size):
    dataset = Failing(12, {1, 4, 5}, functools.partial(ValueError, "bad"))
    iterator = iter(loader_class(dataset, batch_size=size, num_workers=2, in_order=True))
    outcome: list = []
    while True:
        try:
            outcome.append(next(iterator).tolist())
        except ValueError:
            outcome.append("error")
        except StopIteration:
            break
    batches = [list(range(i, i + size)) for i in range(0, 12, size)]
    assert outcome == ["error" if {1, 4, 5} & set(batch) else batch for batch in batches]


def test_every_error_is_seen_out_of_order(loader_class):
    dataset = Failing(8, {1, 4}, functools.partial(ValueError, "bad"))
    iterator = iter(loader_class(dataset, num_workers=2, in_order=False))
    good, errors = [], 0
    while True:
        try:
            good += next(iterator).tolist()
        except ValueError:
            errors += 1
        except StopIteration:
            break
    assert (sorted(good), errors) == ([0, 2, 3, 5, 6, 7], 2)


def test_iteration_works_again_after_an_error(loader_class):
    dataset = Failing(4, {1}, functools.partial(ValueError, "bad"))
    loader = loader_class(dataset, num_workers=1, persistent_workers=True)
    for _ in range(2):
        iterator = iter(loader)
        assert next(iterator).tolist() == [0]
        with raises(ValueError, match="bad"):
            next(iterator)


def test_without_workers_the_original_error_comes(loader_class):
    error = TwoArgumentsError("one", "two")
    iterator = iter(loader_class(Failing(3, {1}, functools.partial(raiser, lambda: error)), num_workers=0))
    assert next(iterator).tolist() == [0]
    with raises(TwoArgumentsError) as caught:
        next(iterator)
    assert caught.value is error
    assert next(iterator).tolist() == [2]


def test_error_of_collate(loader_class):
    iterator = iter(loader_class(Squares(4), batch_size=2, num_workers=1, collate_fn=raise_type_error))
    for _ in range(2):
        with raises(TypeError, match="Caught TypeError in DataLoader worker process 0") as caught:
            next(iterator)
        assert "TypeError: collate" in str(caught.value)
    with pytest.raises(StopIteration):
        next(iterator)


def test_error_of_worker_init(loader_class):
    iterator = iter(loader_class(Squares(4), num_workers=1, worker_init_fn=OnlyLast(0)))
    with raises(LookupError, match="Caught LookupError in DataLoader worker process 0") as caught:
        next(iterator)
    assert "no start" in str(caught.value)


def test_error_of_a_stream(loader_class):
    iterator = iter(loader_class(BrokenStream(), num_workers=1))
    assert next(iterator).tolist() == [0]
    with raises(ValueError, match="Caught ValueError in DataLoader worker process 0"):
        next(iterator)


class BrokenStream(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield 0
        raise ValueError("stream")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_error_of_sampler_is_not_wrapped(loader_class, num_workers):
    loader = loader_class(Squares(100), sampler=RaisingSampler(20), num_workers=num_workers)
    seen = []
    with raises(ArithmeticError, match="^sampler$"):
        for batch in loader:
            seen += batch.tolist()
    assert seen == [i * i for i in range(len(seen))]
    assert len(seen) <= 20


@pytest.mark.parametrize("num_workers", [0, 1])
def test_error_of_sampler_at_once(loader_class, num_workers):
    with raises(ArithmeticError, match="^sampler$"):
        next(iter(loader_class(Squares(9), sampler=RaisingSampler(0), num_workers=num_workers)))


class Fed:
    """Indices out of a queue, and what it says of the third one."""

    def __init__(self):
        self.queue = deque(range(6))

    def __len__(self):
        return 6

    def __iter__(self):
        return self

    def __next__(self):
        if not self.queue:
            raise StopIteration
        if (index := self.queue.popleft()) == 2:
            raise ArithmeticError(index)
        return index


class FedGenerator(Fed):
    """It is over once it has raised, and the rest stays in the queue."""

    def __iter__(self):
        while self.queue:
            yield super().__next__()


@pytest.mark.parametrize(
    ("sampler_class", "size", "rest"),
    [(Fed, None, [9, 16, 25]), (Fed, 1, []), (FedGenerator, None, []), (FedGenerator, 1, [])],
)
def test_a_sampler_that_raises_is_asked_once_for_each_index(loader_class, sampler_class, size, rest):
    """And goes on if it can: a generator cannot, and torch's own BatchSampler around it is one."""
    sampler = sampler_class()
    iterator = iter(loader_class(Squares(6), size, sampler=sampler, num_workers=0))
    assert [int(next(iterator)), int(next(iterator))] == [0, 1]
    with raises(ArithmeticError, match="2"):
        next(iterator)
    assert [int(batch) for batch in iterator] == rest
    assert list(sampler.queue) == ([] if rest else [3, 4, 5])


def test_index_out_of_range(loader_class):
    iterator = iter(loader_class(Squares(3), sampler=[0, 7, 1], num_workers=1))
    assert next(iterator).tolist() == [0]
    with raises(IndexError, match="Caught IndexError"):
        next(iterator)
    assert lists(iterator) == [[1]]


def test_unpicklable_batch(loader_class, loader_name):
    if loader_name == "torch":
        pytest.skip("torch waits for ever")
    with raises(Exception, match="pickle"):
        list(loader_class(Squares(2), num_workers=1, collate_fn=unpicklable))


@pytest.mark.parametrize("where", ["loop", "worker", "break"])
def test_no_process_left_after_an_error(loader_class, where):
    before = children()
    bad = {1} if where == "worker" else set()
    loader = loader_class(Failing(50, bad, functools.partial(ValueError, "bad")), num_workers=2)

    def consume() -> None:
        for batch in loader:
            if where == "loop":
                raise ValueError(batch)
            if where == "break":
                break

    if where == "break":
        consume()
    else:
        with raises(ValueError):
            consume()
    assert wait_until(lambda: children() <= before)
