"""What happens to samples that fail, to functions that misbehave and to arguments that make no sense."""

import json
import re
import subprocess
import sys
import threading
from functools import partial

import pytest
import torch

import headrace
from tests.loader.data import FailsOnce, Numbers, Pairs, Raises, listed, noisy
from tests.loader.support import MODES, PATIENCE, outcomes
from tests.parity.datasets import RaisingSampler, Squares, Unpicklable
from tests.parity.support import ROOT, raises, samples

each_order = pytest.mark.parametrize("in_order", [True, False], ids=["in order", "as ready"])
each_count = pytest.mark.parametrize("num_workers", [0, 2])


def loading(dataset, **options):
    """A loader that gives up rather than hang."""
    workers = options.setdefault("num_workers", 1)
    return headrace.DataLoader(dataset, **{"timeout": PATIENCE if workers else 0, **options})


class Coded(Exception):
    """Its arguments say more than its text."""

    def __init__(self, code, detail=None):
        super().__init__(code, detail)
        self.detail = detail


class TwoWanted(Exception):
    def __init__(self, first, second):
        super().__init__(first, second)


class KeywordsWanted(Exception):
    def __init__(self, *, why):
        super().__init__(why)


class Message(Exception):
    """torch calls such a type with ``message=``, which this one does not take."""

    message = "of the class"


class Refuses(Exception):
    def __init__(self, text=None):
        if text is not None:
            raise ValueError("never with a text")
        super().__init__()


class Holding(Exception):
    """Has something that cannot be pickled."""

    def __init__(self, text):
        super().__init__(text)
        self.lock = threading.Lock()


class Impostor(Exception):
    """Comes out of a pickle as something else."""

    def __reduce__(self):
        return str, ("not an exception",)


ODD = {
    "two arguments": (partial(TwoWanted, "one", "two"), RuntimeError, "TwoWanted"),
    "keyword": (partial(KeywordsWanted, why="because"), RuntimeError, "because"),
    "refuses text": (Refuses, RuntimeError, "Refuses"),
    "holds a lock": (partial(Holding, "held"), Holding, "held"),
    "a group": (partial(ExceptionGroup, "many", [ValueError("inner")]), RuntimeError, "inner"),
    "bytes decode": (partial(bytes.decode, b"\xff"), RuntimeError, "UnicodeDecodeError"),
    "key": (partial(KeyError, "no key"), KeyError, "no key"),
    "class with message": (partial(Message, "of the sample"), RuntimeError, "of the sample"),
    "impostor": (partial(Impostor, "of the sample"), Impostor, "of the sample"),
}


class TestRaise:
    @each_order
    def test_type_message_cause_and_index(self, in_order):
        dataset = Pairs(8, hook=Raises(partial(Coded, "E7", detail=[1, 2]), 5))
        _, errors = outcomes(iter(loading(dataset, batch_size=2, in_order=in_order)))
        (error,) = errors
        assert type(error) is Coded
        assert str(error.args[0]).startswith(
            "Caught Coded in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        )
        assert type(error.__cause__) is Coded
        assert error.__cause__.args == ("E7", [1, 2])
        assert error.__cause__.detail == [1, 2]
        assert error.__notes__ == ["headrace: sample 5"]

    def test_in_order_the_failing_batch_is_lost_and_the_rest_comes(self):
        dataset = Pairs(12, hook=Raises(partial(ValueError, "bad"), 5))
        batches, errors = outcomes(iter(loading(dataset, batch_size=4, num_workers=2, in_order=True)))
        assert [batch[0].tolist() for batch in batches] == [[0, 1, 2, 3], [8, 9, 10, 11]]
        assert len(errors) == 1

    @pytest.mark.parametrize("mode", ["default collate", "custom collate", "variable shapes"])
    def test_as_ready_only_the_failing_sample_is_lost(self, mode):
        mode = MODES[mode]
        loader = mode.loader(23, Raises(partial(ValueError, "bad"), 5, 11, 12), in_order=False)
        batches, errors = outcomes(iter(loader))
        rows = [row for batch in batches for row in mode.rows(batch)]
        mode.check(rows, [index for index in range(23) if index not in (5, 11, 12)], ordered=False)
        assert [type(error) for error in errors] == [ValueError] * 3
        assert {error.__notes__[0] for error in errors} == {f"headrace: sample {i}" for i in (5, 11, 12)}

    @each_order
    def test_the_next_epoch_is_whole_again(self, in_order):
        dataset = Pairs(9, hook=Raises(partial(ValueError, "bad"), 4))
        with loading(dataset, batch_size=3, in_order=in_order, persistent_workers=True) as loader:
            for _ in range(3):
                _, errors = outcomes(iter(loader))
                assert len(errors) == 1

    @each_order
    @pytest.mark.parametrize(
        ("make", "kind", "text"),
        [value if hasattr(value, "marks") else pytest.param(*value) for value in ODD.values()],
        ids=ODD,
    )
    def test_exceptions_that_do_not_travel_well(self, make, kind, text, in_order):
        batches, errors = outcomes(iter(loading(Pairs(4, hook=Raises(make, 1)), in_order=in_order)))
        assert [batch[0].tolist() for batch in batches] == [[0], [2], [3]]
        assert [type(error) for error in errors] == [kind]
        assert text in str(errors[0])
        assert re.search(r"\nOriginal .*Traceback \(most recent call last\)", str(errors[0]))

    @each_order
    def test_a_local_exception_type(self, in_order):
        class Local(Exception):
            pass

        _, errors = outcomes(iter(loading(Pairs(2, hook=Raises(partial(Local, "here"), 1)), in_order=in_order)))
        assert [type(error) for error in errors] == [RuntimeError]
        assert "Caught Local" in str(errors[0])

    @each_order
    def test_leaving_the_process_is_the_death_of_a_worker(self, in_order):
        batches, errors = outcomes(iter(loading(Pairs(4, hook=Raises(partial(SystemExit, 4), 2)), in_order=in_order)))
        assert [batch[0].tolist() for batch in batches] == [[0], [1], [3]]
        (error,) = errors
        assert type(error) is headrace.WorkerDied
        assert "exit code 4" in str(error)
        assert "sample 2" in str(error)

    @each_order
    def test_a_dataset_shorter_than_it_says(self, in_order):
        dataset = Squares(6)
        dataset.n = 4
        loader = loading(dataset, batch_size=1, sampler=range(6), in_order=in_order)
        batches, errors = outcomes(iter(loader))
        assert samples(batches) == [0, 1, 4, 9]
        assert [type(error) for error in errors] == [IndexError] * 2
        assert [error.__notes__ for error in errors] == [["headrace: sample 4"], ["headrace: sample 5"]]

    def test_without_workers_the_error_is_the_dataset_s_own(self):
        error = Coded("E1")
        iterator = iter(loading(Pairs(3, hook=Raises(lambda: error, 1)), num_workers=0))
        next(iterator)
        with raises(Coded) as caught:
            next(iterator)
        assert caught.value is error
        assert next(iterator)[0].tolist() == [2]


class TestSkip:
    @pytest.mark.parametrize("num_workers", [0, 1, 2])
    def test_batches_shrink_in_order(self, num_workers):
        loader = skipping(12, 1, 6, 7, num_workers=num_workers, batch_size=4, in_order=True)
        assert [batch[0].tolist() for batch in loader] == [[0, 2, 3], [4, 5], [8, 9, 10, 11]]
        check_skipped(loader, 1, 6, 7)

    @pytest.mark.parametrize("drop_last", [False, True])
    def test_batches_are_filled_up_as_ready(self, drop_last):
        loader = skipping(23, 1, 6, 7, num_workers=2, batch_size=4, in_order=False, drop_last=drop_last)
        batches = [batch[0].tolist() for batch in loader]
        found = sorted(index for batch in batches for index in batch)
        good = [index for index in range(23) if index not in (1, 6, 7)]
        if drop_last:  # 20 were drawn, 17 are good: four batches
            assert [len(batch) for batch in batches] == [4] * 4
            assert set(found) < set(good)
            assert len(set(found)) == 16
        else:
            assert [len(batch) for batch in batches] == [4] * 5
            assert found == good
        check_skipped(loader, 1, 6, 7)

    @each_order
    @pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
    def test_every_way_of_loading(self, mode, in_order):
        loader = mode.loader(
            20, Raises(partial(ValueError, "bad"), 3, 11), in_order=in_order, on_error=headrace.Skip(0.5)
        )
        rows = [row for batch in loader for row in mode.rows(batch)]
        skipped = sorted(failure.index for failure in loader.stats().skipped)
        if mode is MODES["bulk"]:  # one call is one failure of all its samples
            assert skipped == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
        else:
            assert skipped == [3, 11]
        mode.check(rows, [index for index in range(20) if index not in skipped], ordered=in_order)
        assert loader.stats().samples == len(rows)

    @each_order
    def test_a_whole_batch_may_go(self, in_order):
        loader = skipping(8, 2, 3, num_workers=2, batch_size=2, in_order=in_order)
        batches = [sorted(batch[0].tolist()) for batch in loader]
        assert len(batches) == 3
        assert sorted(index for batch in batches for index in batch) == [0, 1, 4, 5, 6, 7]

    @each_order
    def test_everything_may_go(self, in_order):
        loader = skipping(6, *range(6), num_workers=2, batch_size=2, in_order=in_order, max_fraction=1.0)
        assert list(loader) == []
        check_skipped(loader, *range(6))

    @pytest.mark.parametrize("num_workers", [0, 2])
    @each_order
    def test_too_many(self, in_order, num_workers):
        loader = skipping(100, 10, 20, 30, num_workers=num_workers, batch_size=5, in_order=in_order, max_fraction=0.02)
        seen = []
        with raises(headrace.TooManyErrors, match="3 of 100 samples failed.*max_fraction=0.02") as caught:
            for batch in loader:
                seen += batch[0].tolist()
        assert isinstance(caught.value, RuntimeError)
        assert isinstance(caught.value.__cause__, ValueError)
        assert len(set(seen)) == len(seen) <= 97
        check_skipped(loader, 10, 20, 30)

    def test_the_share_is_that_of_each_epoch(self):
        loader = skipping(100, 10, 20, num_workers=1, batch_size=50, max_fraction=0.02)
        for _ in range(3):
            assert len(list(loader)) == 2
        assert len(loader.stats().skipped) == 6

    @each_count
    def test_none_is_too_many(self, num_workers):
        loader = skipping(4, 2, num_workers=num_workers, max_fraction=0.0)
        with raises(headrace.TooManyErrors):
            list(loader)

    @each_count
    def test_skipping_hides_no_error_of_collate(self, num_workers):
        loader = loading(
            Pairs(4), batch_size=2, num_workers=num_workers, collate_fn=complain, on_error=headrace.Skip(1.0)
        )
        with raises(TypeError, match="collate"):
            next(iter(loader))

    def test_skipping_hides_no_error_of_worker_init(self):
        loader = loading(Pairs(4), worker_init_fn=complain, on_error=headrace.Skip(1.0))
        with raises(TypeError, match="collate"):
            list(loader)

    def test_collation_draws_the_same_whoever_failed(self):
        """The first sample of a batch is skipped; what collate_fn draws does not depend on who made it."""
        found = []
        for num_workers in (0, 1, 2):
            torch.manual_seed(3)
            loader = skipping(6, 0, 3, num_workers=num_workers, batch_size=3, in_order=True, collate_fn=noisy)
            found.append([[draw[1].tolist(), *draw[2:]] for draw in loader])
        assert found[0] == found[1] == found[2]

    @each_count
    def test_an_item_of_a_stream(self, num_workers):
        dataset = FailsOnce(6, at=2)
        loader = loading(dataset, num_workers=num_workers, on_error=headrace.Skip(0.5))
        assert sorted(samples(loader)) == sorted([0, 1, 3, 4, 5] * max(1, num_workers))  # it is not sharded


@each_count
def test_a_stream_goes_on_after_an_error(num_workers):
    batches, errors = outcomes(iter(loading(FailsOnce(6, at=2), num_workers=min(num_workers, 1))))
    assert samples(batches) == [0, 1, 3, 4, 5]
    assert [type(error) for error in errors] == [ValueError]


def skipping(n, *bad, max_fraction=0.5, **options):
    dataset = Pairs(n, hook=Raises(partial(ValueError, "bad"), *bad))
    return loading(dataset, on_error=headrace.Skip(max_fraction=max_fraction), **options)


def check_skipped(loader, *indices):
    skipped = loader.stats().skipped
    assert sorted(failure.index for failure in skipped) == list(indices)
    for failure in skipped:
        assert type(failure.error) is ValueError
        assert failure.error.args == ("bad",)


def complain(_):
    raise TypeError("collate")


def unsendable(_):
    return lambda: None


def generator(batch):
    return (index for index, _ in batch)


def with_history(batch):
    return torch.ones(2, requires_grad=True) * 2


class Plain:
    """An ordinary object."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return type(other) is Plain and other.value == self.value

    __hash__ = None


class TestCollate:
    @each_order
    @pytest.mark.parametrize("collate", [unsendable, generator, with_history])
    def test_a_batch_that_cannot_be_sent(self, collate, in_order):
        loader = loading(Pairs(6), batch_size=2, num_workers=2, collate_fn=collate, in_order=in_order)
        batches, errors = outcomes(iter(loader))
        assert not batches
        assert [type(error) for error in errors] == [headrace.BatchNotSendable] * 3
        assert "num_workers=0" in str(errors[0])

    @each_order
    def test_a_sample_that_cannot_be_sent(self, in_order):
        dataset = Pairs(3, make=unsendable)
        for options in ({"batch_size": None}, {"batch_size": 1, "collate_fn": list}):
            _, errors = outcomes(iter(loading(dataset, in_order=in_order, **options)))
            assert [type(error) for error in errors] == [headrace.BatchNotSendable] * 3

    def test_a_batch_of_a_stream_that_cannot_be_sent(self):
        _, errors = outcomes(iter(loading(Numbers(2), collate_fn=unsendable)))
        assert [type(error) for error in errors] == [headrace.BatchNotSendable] * 2

    @each_order
    def test_samples_need_not_be_sendable_when_the_batch_is(self, in_order):
        loader = loading(
            Pairs(8, make=unsendable), batch_size=4, num_workers=2, collate_fn=indices_only, in_order=in_order
        )
        assert sorted(index for batch in loader for index in batch) == list(range(8))

    @each_order
    def test_whatever_it_returns_arrives(self, in_order):
        loader = loading(Pairs(len(JUNK)), collate_fn=junk, num_workers=1, in_order=in_order)
        found = list(loader)
        assert found == JUNK if in_order else len(found) == len(JUNK)
        assert all(any(type(one) is type(other) and one == other for other in JUNK) for one in found)

    @each_order
    def test_errors_come_with_their_type_and_cause(self, in_order):
        batches, errors = outcomes(iter(loading(Pairs(4), collate_fn=odd_fails, in_order=in_order)))
        assert sorted(index for batch in batches for index in batch[0].tolist()) == [0, 2]
        assert [type(error) for error in errors] == [Coded] * 2
        assert errors[0].__cause__.args == ("odd", None)

    def test_stacking_unequal_samples_fails_as_torch_does(self):
        dataset = Pairs(4, make=torch.ones)
        _, errors = outcomes(iter(loading(dataset, batch_size=2)))
        assert [type(error) for error in errors] == [RuntimeError] * 2
        assert "stack expects each tensor to be equal size" in str(errors[0])

    def test_a_number_too_large_for_its_batch_fails_as_torch_does(self, capfd):
        dataset = Large()
        with raises((RuntimeError, OverflowError, ValueError, TypeError)) as expected:
            list(torch.utils.data.DataLoader(dataset, batch_size=4))
        batches, errors = outcomes(iter(loading(dataset, batch_size=4)))
        assert len(batches) == 1
        assert [type(error) for error in errors] == [type(expected.value)]


class Large(Squares):
    def __init__(self):
        super().__init__(8)

    def __getitem__(self, index):
        return 1 if index != 5 else 1 << 70


JUNK = [None, 7, "text", b"", (), [], {}, Plain([1]), int, ..., float("inf"), {1: (None, {2})}]


def junk(batch):
    return JUNK[batch[0][0]]


def indices_only(batch):
    return [index for index, _ in batch]


def odd_fails(batch):
    if any(index % 2 for index, _ in batch):
        raise Coded("odd")
    return listed(batch)


class TestSamplers:
    @each_order
    @each_count
    def test_what_was_drawn_before_a_sampler_raised_is_not_lost(self, num_workers, in_order):
        loader = loading(Squares(100), sampler=RaisingSampler(13), num_workers=num_workers, in_order=in_order)
        batches, errors = outcomes(iter(loader))
        assert [type(error) for error in errors] == [ArithmeticError]
        assert sorted(samples(batches)) == [i * i for i in range(13)]

    @each_order
    def test_indices_out_of_range(self, in_order):
        loader = loading(Squares(3), sampler=[0, 7, 1, -1], num_workers=2, in_order=in_order)
        batches, errors = outcomes(iter(loader))
        assert sorted(samples(batches)) == [0, 1]
        assert [type(error) for error in errors] == [IndexError] * 2
        assert {note for error in errors for note in error.__notes__} == {
            "headrace: sample 7",
            "headrace: sample -1",
        }

    @each_order
    def test_any_object_can_be_an_index(self, in_order):
        keys = [("a", 1), frozenset({2}), "c", 2**80, None, 1.5]
        loader = loading(Echo(), batch_size=2, sampler=keys, collate_fn=list, num_workers=2, in_order=in_order)
        found = [key for batch in loader for key in batch]
        assert found == keys if in_order else set(found) == set(keys)

    def test_an_index_that_cannot_be_sent_is_named(self):
        loader = loading(Echo(), sampler=[0, threading.Lock()], num_workers=1)
        with raises(TypeError, match="lock"):
            list(loader)


class Echo:
    def __len__(self):
        return 6

    def __getitem__(self, key):
        return key


def test_a_dataset_that_cannot_be_sent_to_spawned_workers(workers):
    loader = loading(Unpicklable(4), num_workers=2, multiprocessing_context="spawn")
    with pytest.warns(UserWarning, match="picklable for the start method 'spawn'"), raises(TypeError):
        iter(loader)
    assert not workers()


LITTLE_ADDRESS_SPACE = """
import json, resource
import headrace
loader = headrace.DataLoader([1, 2, 3], num_workers=1)
used = 4096 * int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), used + (64 << 20)))
try:
    list(loader)
except headrace.SlabError as error:
    print(json.dumps([isinstance(error, RuntimeError), str(error)]))
print(json.dumps([batch.tolist() for batch in headrace.DataLoader([1, 2, 3], num_workers=0)]))
"""


def test_too_little_address_space():
    program = [sys.executable, "-W", "error", "-c", LITTLE_ADDRESS_SPACE]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=240, check=True)
    refused, batches = map(json.loads, done.stdout.splitlines())
    assert refused[0]
    assert "address space" in refused[1]
    assert "num_workers=0" in refused[1]
    assert batches == [[1], [2], [3]]


class TestArguments:
    @pytest.mark.parametrize("value", [headrace.Skip, "skip", 0.5, True])
    def test_on_error(self, value):
        with raises(TypeError, match=r"on_error= takes headrace.Raise\(...\) or headrace.Skip\(...\)"):
            headrace.DataLoader(Squares(2), on_error=value)

    @pytest.mark.parametrize("value", [headrace.Loading, "sample", headrace.Seeding.SAMPLE, {}])
    def test_loading(self, value):
        with raises(TypeError, match=r"loading= takes headrace.Loading\(...\)"):
            headrace.DataLoader(Squares(2), loading=value)

    @pytest.mark.parametrize("value", ["worker", 1, None])
    def test_seeding(self, value):
        with raises(TypeError, match="Seeding.SAMPLE or Seeding.WORKER"):
            headrace.Loading(seeding=value)

    @pytest.mark.parametrize("value", [0, -1])
    def test_memory_limit(self, value):
        with raises(ValueError, match="positive number of bytes"):
            headrace.Loading(memory_limit=value)

    @pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
    def test_max_fraction(self, value):
        with raises(ValueError, match="from 0 to 1"):
            headrace.Skip(max_fraction=value)

    @pytest.mark.parametrize("value", [3.5, object(), ["cuda"]])
    def test_device_of_a_wrong_type(self, value):
        with raises(TypeError, match="device= takes a name"):
            iter(headrace.DataLoader(Squares(2), num_workers=0, device=value))

    @pytest.mark.parametrize("value", ["abacus", "meta", "mps"])
    def test_device_that_does_not_exist(self, value):
        with raises(headrace.DeviceUnavailable, match=value) as caught:
            iter(headrace.DataLoader(Squares(2), num_workers=0, device=value))
        assert isinstance(caught.value, RuntimeError)

    def test_nothing_unknown_is_swallowed(self):
        with raises(TypeError, match="cache"):
            headrace.DataLoader(Squares(2), cache="shm://x")
