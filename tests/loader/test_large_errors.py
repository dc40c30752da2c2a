"""Errors of any size and of any kind are reported as what they are, and take a bounded place."""

import asyncio
import gc
import subprocess
import sys
import weakref
from functools import partial

import pytest
import torch
from torch.utils.data import IterableDataset

import headrace
from tests.loader.data import BulkPairs, Pairs, Raises, listed
from tests.loader.support import PATIENCE, outcomes
from tests.parity.support import ROOT, raises

HUGE = 17 << 20
each_order = pytest.mark.parametrize("in_order", [True, False], ids=["in order", "as ready"])
each_count = pytest.mark.parametrize("num_workers", [0, 2])


def loading(dataset, **options):
    workers = options.setdefault("num_workers", 1)
    return headrace.DataLoader(dataset, **{"timeout": PATIENCE if workers else 0, **options})


class Own(Exception):
    """What the dataset raises."""


class NotAnException(BaseException):
    """What `except Exception` does not see."""


class Wordless(Exception):
    def __str__(self):
        raise ValueError("no words")


class Weighty(Exception):
    """Carries more than anybody wants to be sent."""

    def __init__(self, text, size=1 << 24):
        super().__init__(text)
        self.load = torch.zeros(size, dtype=torch.uint8)


class Wordy:
    """Each index fails with a long text of its own."""

    def __init__(self, size, *at):
        self.size, self.at = size, set(at)

    def __call__(self, index):
        if index in self.at:
            raise Own(f"<{index}>" + "x" * self.size + f"</{index}>")


def long_collate(_):
    raise Own("y" * HUGE)


class LongStream(IterableDataset):
    def __iter__(self):
        raise Own("z" * HUGE)
        yield


WAYS = {
    "default collate": lambda: (Pairs(4, hook=Wordy(HUGE, 1)), {}),
    "custom collate": lambda: (Pairs(4, hook=Wordy(HUGE, 1)), {"collate_fn": listed}),
    "bulk": lambda: (BulkPairs(4, hook=Wordy(HUGE, 1)), {}),
    "no batches": lambda: (Pairs(4, hook=Wordy(HUGE, 1)), {"batch_size": None}),
    "in collate_fn": lambda: (Pairs(1), {"collate_fn": long_collate}),
    "stream": lambda: (LongStream(), {}),
}


@each_order
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.sampled
def test_a_huge_message_is_shortened(way, in_order):
    dataset, options = way()
    _, errors = outcomes(iter(loading(dataset, in_order=in_order, **options)))
    (error,) = errors
    assert type(error) is Own
    text = str(error)
    assert text.startswith("Caught Own in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n")
    assert "bytes left out" in text
    assert len(text) < 2 << 20


@each_order
def test_all_of_a_batch_with_long_messages(in_order):
    loader = loading(
        Pairs(70, hook=Wordy(600_000, *range(64))),
        batch_size=64,
        num_workers=2,
        in_order=in_order,
        on_error=headrace.Skip(1.0),
    )
    assert sorted(index for batch in loader for index in batch[0].tolist()) == list(range(64, 70))
    skipped = loader.stats().skipped
    assert {type(failure.error) for failure in skipped} == {Own}
    assert loader.stats().failed == 64
    for failure in skipped:
        assert f"<{failure.index}>" in str(failure.error)
        assert str(failure.error).rstrip().endswith(f"</{failure.index}>")


def test_more_failures_than_there_is_room_for():
    n = 7000
    loader = loading(Pairs(n, hook=Wordy(3000, *range(n))), batch_size=n, in_order=True, on_error=headrace.Skip(1.0))
    assert list(loader) == []
    stats = loader.stats()
    assert stats.failed == n
    assert {type(failure.error) for failure in stats.skipped} <= {Own, RuntimeError}
    assert "no room left" in str(stats.skipped[-1].error)


@each_order
def test_what_an_exception_carries_may_stay_behind(in_order):
    dataset = Pairs(3, hook=Raises(partial(Weighty, "what happened"), 1))
    _, errors = outcomes(iter(loading(dataset, in_order=in_order)))
    (error,) = errors
    assert type(error) is Weighty
    assert "what happened" in str(error)
    assert error.__cause__ is None


def test_a_batch_too_large_for_its_place_says_so():
    """With little address space, also where what was written leaves no room for the error."""
    script = (
        "import multiprocessing, resource, torch, headrace\n"
        "multiprocessing.set_start_method('fork')\n"  # typed in: nobody else finds the class
        "resource.setrlimit(resource.RLIMIT_FSIZE, (70 << 30, 70 << 30))\n"
        "class Big:\n"
        "    def __len__(self): return 2\n"
        "    def __getitem__(self, index): return torch.zeros(1 << 20 if index else 600 << 20, dtype=torch.uint8)\n"
        "def stacked(batch): return torch.stack(batch)\n"
        "def twice(batch): return [bytes(sample.numel()) for sample in batch]\n"
        "for collate in (None, stacked, twice):\n"
        "    loader = headrace.DataLoader(Big(), num_workers=1, timeout=240, collate_fn=collate)\n"
        "    found = []\n"
        "    iterator = iter(loader)\n"
        "    for _ in range(2):\n"
        "        try: found.append(type(next(iterator)).__name__)\n"
        "        except Exception as error: found.append(type(error).__name__)\n"
        "    print(*found)\n"
        "    loader.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout.splitlines() == ["SlabError Tensor", "SlabError Tensor", "SlabError list"], done.stderr


ENDS = {
    "default collate": {},
    "custom collate": {"collate_fn": listed},
    "no batches": {"batch_size": None},
}


@each_order
@each_count
@pytest.mark.parametrize("options", ENDS.values(), ids=ENDS)
def test_stop_iteration_of_a_sample_does_not_end_the_epoch(options, num_workers, in_order):
    """torch ends the epoch there, and what follows is lost without a word."""
    dataset = Pairs(4, hook=Raises(partial(StopIteration, "of the user"), 1))
    loader = loading(dataset, num_workers=num_workers, in_order=in_order, **options)
    batches, errors = outcomes(iter(loader))
    assert len(batches) == 3
    (error,) = errors
    assert type(error) is RuntimeError
    assert type(error.__cause__) is StopIteration
    assert error.__cause__.args == ("of the user",)


def stops(batch):
    if batch[0][0] == 1:
        raise StopIteration
    return listed(batch)


@each_count
def test_stop_iteration_of_collate_fn_does_not_end_the_epoch(num_workers):
    batches, errors = outcomes(iter(loading(Pairs(4), num_workers=num_workers, collate_fn=stops)))
    assert [batch[0].tolist() for batch in batches] == [[0], [2], [3]]
    assert [type(error) for error in errors] == [RuntimeError]


class TestKinds:
    @each_order
    @pytest.mark.parametrize("kind", [NotAnException, asyncio.CancelledError, GeneratorExit])
    @pytest.mark.parametrize("on_error", [headrace.Raise(), headrace.Skip(1.0)], ids=["raise", "skip"])
    def test_what_is_no_exception_is_raised_as_itself(self, kind, on_error, in_order):
        """Nobody may hide it, and it is not the worker's death."""
        dataset = Pairs(3, hook=Raises(partial(kind, "told"), 1))
        loader = loading(dataset, in_order=in_order, on_error=on_error)
        iterator, found, errors = iter(loader), [], []
        while len(found) + len(errors) < 3:
            try:
                found += next(iterator)[0].tolist()
            except kind as error:
                errors.append(error)
        assert (found, [type(error) for error in errors]) == ([0, 2], [kind])
        assert "told" in str(errors[0])
        assert loader.stats().restarts == 0

    @each_order
    def test_a_collate_fn_s_too(self, in_order):
        with raises(NotAnException, match="told"):
            next(iter(loading(Pairs(3), collate_fn=_not_an_exception, in_order=in_order)))

    @each_order
    def test_no_words(self, in_order):
        iterator = iter(loading(Pairs(2, hook=Raises(Wordless, 0)), in_order=in_order))
        try:
            next(iterator)
        except Wordless as error:  # whose text nobody may ask for
            caught = error
        assert "exception str() failed" in caught.args[0]
        assert type(caught.__cause__) is Wordless
        assert next(iterator)[0].tolist() == [1]

    @each_order
    def test_causes_are_told(self, in_order):
        _, errors = outcomes(iter(loading(Pairs(2, hook=_chained), in_order=in_order)))
        (error,) = errors
        assert type(error) is Own
        assert all(text in str(error) for text in ("the first", "the direct cause", "the second"))


def _not_an_exception(_):
    raise NotAnException("told")


def _chained(index):
    if index == 1:
        try:
            raise KeyError("the first")
        except KeyError as error:
            raise Own("the second") from error


class TestKept:
    @each_count
    def test_how_many(self, num_workers):
        loader = loading(
            Pairs(1500, hook=Raises(partial(Own, "bad"), *range(1500))),
            batch_size=50,
            num_workers=num_workers,
            in_order=True,
            on_error=headrace.Skip(1.0),
        )
        assert list(loader) == []
        stats = loader.stats()
        assert stats.failed == 1500
        assert [failure.index for failure in stats.skipped] == list(range(500, 1500))
        assert stats.as_dict()["failed"] == 1500

    @each_count
    def test_how_much(self, num_workers):
        loader = loading(
            Pairs(100, hook=Wordy(900_000, *range(100))),
            batch_size=1,
            num_workers=num_workers,
            on_error=headrace.Skip(1.0),
        )
        assert list(loader) == []
        stats = loader.stats()
        assert stats.failed == 100
        assert 1 <= len(stats.skipped) < 20
        assert stats.skipped[-1].index == 99

    def test_what_they_carry_is_let_go(self):
        dataset = Pairs(30, hook=Raises(partial(Weighty, "heavy"), *range(30)))
        loader = loading(dataset, num_workers=0, on_error=headrace.Skip(1.0))
        assert list(loader) == []
        kept = [failure.error for failure in loader.stats().skipped]
        assert len(kept) == 30
        assert all("Weighty: heavy" in str(error) for error in kept)
        assert not any(hasattr(error, "load") for error in kept)

    def test_no_frame_is_kept_alive_by_a_cause(self):
        held = []

        def fail(index):
            local = _Local()
            held.append(weakref.ref(local))
            try:
                raise KeyError(index)
            except KeyError as error:
                raise Own("bad") from error

        loader = loading(Pairs(3, hook=fail), num_workers=0, on_error=headrace.Skip(1.0))
        assert list(loader) == []
        gc.collect()
        assert [reference() for reference in held] == [None] * 3
        assert any("in fail" in note for note in loader.stats().skipped[0].error.__notes__)

    def test_one_exception_raised_again_and_again_does_not_grow(self):
        error = Own("the same")
        loader = loading(Pairs(50, hook=Raises(lambda: error, *range(50))), num_workers=0, on_error=headrace.Skip(1.0))
        assert list(loader) == []
        name, trace = error.__notes__
        assert (name, "data.py" in trace) == ("headrace: sample 49", True)


class _Local:
    pass
