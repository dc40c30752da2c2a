"""Every sample exactly once per epoch, whoever dies, whenever."""

import fcntl
import os
import signal
from functools import partial

import pytest
from torch.utils.data import DataLoader as TorchDataLoader

import headrace
from headrace.sched import ledger_layout as W
from tests.loader.data import (
    Always,
    BulkOnly,
    Count,
    FailsOnce,
    KillingCollate,
    Numbers,
    Once,
    Pairs,
    StatefulIterators,
    StatefulNumbers,
    listed,
)
from tests.loader.support import MODES, PATIENCE, SIZE, Killer, Mode, kill, outcomes
from tests.parity.support import raises, samples, wait_until

N = 60

each_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
each_order = pytest.mark.parametrize("in_order", [True, False], ids=["in order", "as ready"])


@each_order
@each_mode
def test_workers_killed_from_outside(mode: Mode, in_order: bool, workers):
    loader = mode.loader(2 * N, seconds=0.0004, in_order=in_order)
    rows = []
    with Killer(workers, times=3, seed=in_order) as killer:
        for batch in loader:
            rows += mode.rows(batch)
            killer.progress([index for index, _ in rows])
    mode.check(rows, list(range(2 * N)), ordered=in_order)
    stats = loader.stats()
    assert killer.killed
    assert stats.restarts <= killer.killed
    assert stats.samples == 2 * N


@each_order
@each_mode
def test_worker_killed_inside_a_sample(mode: Mode, in_order: bool, tmp_path):
    loader = mode.loader(N, Once(tmp_path / "killed", 17), in_order=in_order)
    rows = [row for batch in loader for row in mode.rows(batch)]
    mode.check(rows, list(range(N)), ordered=in_order)
    stats = loader.stats()
    assert stats.restarts == 1
    assert stats.repeats >= 1
    assert not stats.skipped


@each_order
def test_the_epoch_after_a_death_is_whole_too(in_order, tmp_path):
    mode = MODES["default collate"]
    loader = mode.loader(N, Once(tmp_path / "killed", 31), in_order=in_order, persistent_workers=True)
    with loader:
        for _ in range(3):
            rows = [row for batch in loader for row in mode.rows(batch)]
            mode.check(rows, list(range(N)), ordered=in_order)
    assert loader.stats().restarts == 1


@each_order
@each_mode
def test_a_sample_that_always_kills_is_named(mode: Mode, in_order: bool):
    loader = mode.loader(20, Always(7), in_order=in_order)
    batches, errors = outcomes(iter(loader))
    rows = [row for batch in batches for row in mode.rows(batch)]
    as_drawn = in_order or mode in (MODES["batch sampler"], MODES["bulk"])
    lost = {5, 6, 7, 8, 9} if as_drawn and mode is not MODES["no batches"] else {7}
    mode.check(rows, [index for index in range(20) if index not in lost], ordered=in_order)
    assert [type(error) for error in errors] == [headrace.WorkerDied]
    assert isinstance(errors[0], RuntimeError)
    assert "sample 7" in str(errors[0])
    assert "SIGKILL" in str(errors[0])
    # Which sample of a bulk call it was is found out by making them one by one.
    assert loader.stats().restarts == (3 if mode is MODES["bulk"] else 2)


@each_order
def test_a_sample_that_always_kills_can_be_skipped(in_order):
    mode = MODES["default collate"]
    loader = mode.loader(20, Always(7), in_order=in_order, on_error=headrace.Skip(0.05))
    rows = [row for batch in loader for row in mode.rows(batch)]
    mode.check(rows, [index for index in range(20) if index != 7], ordered=in_order)
    (skipped,) = loader.stats().skipped
    assert skipped.index == 7
    assert isinstance(skipped.error, headrace.WorkerDied)


@each_order
@pytest.mark.parametrize("how_many", [1, 2])
def test_workers_killed_while_idle(how_many, in_order, tmp_path, workers):
    count = Count(tmp_path / "calls")
    mode = MODES["default collate"]
    loader = mode.loader(N, count, in_order=in_order, prefetch_factor=1)
    iterator = iter(loader)
    rows = mode.rows(next(iterator))
    assert wait_until(lambda: count.calls() >= 2 * SIZE)
    words, dims = loader._latest.run._ledger.w, loader._latest.run._ledger.dims
    assert wait_until(lambda: all(words[dims.lane(lane) + W.L_WAITING] for lane in range(2)))
    victims = workers()[:how_many]
    assert len(victims) == how_many
    for victim in victims:
        assert kill(victim)
    rows += [row for batch in iterator for row in mode.rows(batch)]
    mode.check(rows, list(range(N)), ordered=in_order)
    # One death may stay unnoticed: the other worker, or the one in its place, did everything in time.
    assert loader.stats().restarts in range(how_many - 1, how_many + 1)
    assert loader.stats().repeats == 0


@each_order
def test_a_bulk_call_is_repeated_as_a_bulk_call(in_order, tmp_path):
    dataset = BulkOnly(20, hook=Once(tmp_path / "killed", 7))
    loader = headrace.DataLoader(dataset, batch_size=SIZE, num_workers=2, in_order=in_order)
    rows = [row for batch in loader for row in MODES["bulk"].rows(batch)]
    MODES["bulk"].check(rows, list(range(20)), ordered=in_order)


@each_order
@each_mode
def test_all_workers_killed_at_once(mode: Mode, in_order: bool, workers):
    loader = mode.loader(N, seconds=0.001, in_order=in_order)
    rows, victims = [], []
    for number, batch in enumerate(loader):
        rows += mode.rows(batch)
        if number == 2:
            victims = workers()  # with a spare, where a sample was slow
            for worker in victims:
                assert kill(worker)
    mode.check(rows, list(range(N)), ordered=in_order)
    assert loader.stats().restarts <= len(victims)  # none is missed if all was made in time


@each_order
@pytest.mark.parametrize("size", [1, SIZE])
def test_worker_killed_inside_collate(size, in_order, tmp_path):
    collate = KillingCollate(tmp_path / "killed", 7)
    mode = MODES["custom collate"]
    loader = mode.loader(20, collate_fn=collate, batch_size=size, in_order=in_order)
    rows = [row for batch in loader for row in mode.rows(batch)]
    mode.check(rows, list(range(20)), ordered=in_order)
    assert loader.stats().restarts == 1


@each_order
@pytest.mark.parametrize("size", [1, SIZE])
def test_a_batch_whose_collation_always_kills(size, in_order):
    mode = MODES["custom collate"]
    loader = mode.loader(20, collate_fn=KillingCollate(None, 7), batch_size=size, in_order=in_order, timeout=PATIENCE)
    batches, errors = outcomes(iter(loader))
    rows = [row for batch in batches for row in mode.rows(batch)]
    assert [type(error) for error in errors] == [headrace.WorkerDied]
    assert "collate_fn" in str(errors[0])
    assert len(rows) == 20 - size
    assert 7 not in [index for index, _ in rows]


@pytest.mark.parametrize("dataset", [Pairs(8), Numbers(8)], ids=["map-style", "iterable"])
def test_workers_that_end_in_worker_init(dataset):
    loader = headrace.DataLoader(dataset, num_workers=2, worker_init_fn=end)
    with raises(headrace.WorkerDied, match="exit code 9") as caught:
        next(iter(loader))
    if isinstance(dataset, Pairs):
        assert "worker_init_fn" in str(caught.value)


def end(worker: int) -> None:
    os._exit(9)


def test_a_worker_that_ends_in_worker_init_only_once(tmp_path):
    loader = headrace.DataLoader(Pairs(8), batch_size=2, num_workers=2, worker_init_fn=Once(tmp_path / "ended", 1))
    assert [batch[0].tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def torch_order(dataset, **options):
    return [batch.tolist() for batch in TorchDataLoader(dataset, **options)]


STREAMS = {"plain": Numbers, "stateful dataset": StatefulNumbers, "stateful iterator": StatefulIterators}
each_stream = pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
REPEATS = headrace.Loading(repeats=True)


def repeating(stream):
    """What a stream without a state needs to be taken up again."""
    return REPEATS if stream is Numbers else headrace.Loading()


@each_order
@each_stream
def test_a_stream_killed_inside_an_item_goes_on(stream, in_order, tmp_path):
    expected = torch_order(stream(41), batch_size=3, num_workers=2)
    loader = headrace.DataLoader(
        stream(41, Once(tmp_path / "killed", 20)),
        batch_size=3,
        num_workers=2,
        in_order=in_order,
        loading=repeating(stream),
    )
    found = [batch.tolist() for batch in loader]
    assert (found if in_order else sorted(found)) == (expected if in_order else sorted(expected))
    assert loader.stats().restarts == 1


@each_order
@each_stream
def test_streams_killed_from_outside(stream, in_order, workers):
    expected = torch_order(stream(120), batch_size=3, num_workers=2)
    dataset = stream(120)
    dataset.seconds = 0.0005
    loader = headrace.DataLoader(dataset, batch_size=3, num_workers=2, in_order=in_order, loading=repeating(stream))
    found = []
    with Killer(workers, times=3, seed=in_order) as killer:
        for batch in loader:
            found.append(batch.tolist())
            killer.progress(found[-1])
    assert (found if in_order else sorted(found)) == (expected if in_order else sorted(expected))
    assert killer.killed


class Shared(Numbers):
    """A stream that does not repeat itself: what one process took from its file, nobody gets again."""

    def __init__(self, n, path, hook):
        super().__init__(n, hook)
        self.path = path
        path.write_bytes(bytes(range(n)))

    def __iter__(self):
        with self.path.open("r+b") as file:
            while left := (fcntl.flock(file, fcntl.LOCK_EX), file.seek(0), file.read())[2]:
                file.seek(0)
                file.write(left[1:])
                file.truncate()
                file.flush()
                fcntl.flock(file, fcntl.LOCK_UN)
                self.hook(left[0])
                yield left[0]


@each_order
@pytest.mark.parametrize("at", [0, 7, 30])
def test_a_stream_that_may_not_repeat_itself_raises_as_torch_does(at, in_order, tmp_path):
    loader = headrace.DataLoader(
        Shared(41, tmp_path / "items", Once(tmp_path / "killed", at)), batch_size=3, num_workers=2, in_order=in_order
    )
    iterator, found = iter(loader), []
    message = (
        r"^DataLoader worker \(pid\(s\) \d+\) exited unexpectedly: DataLoader worker \(pid \d+\) is killed by "
        r"signal: SIGKILL .*cannot be had again.*Loading\(repeats=True\)"
    )
    with raises(RuntimeError, match=message) as caught:
        for batch in iterator:
            found += batch.tolist()
    assert isinstance(caught.value, headrace.WorkerDied)
    with raises(headrace.WorkerDied, match="cannot be had again"):  # asked again, it gives what others made at most
        for batch in iterator:
            found += batch.tolist()
    assert len(set(found)) == len(found)
    assert at not in found
    assert loader.stats().restarts == 0


@pytest.mark.parametrize("persistent", [False, True])
def test_a_stream_that_had_ended_needs_no_other_worker(persistent, workers):
    """Nothing of it is lost with its worker, neither at the end of an epoch nor before the next one."""
    loader = headrace.DataLoader(Numbers(6), num_workers=1, persistent_workers=persistent, timeout=PATIENCE)
    for _ in range(2):
        iterator = iter(loader)
        found = [next(iterator) for _ in range(6)]
        (victim,) = workers()
        assert wait_until(partial(iterator.resources.run.machine._streams.ended, 0))
        assert kill(victim)
        assert samples([*found, *iterator]) == list(range(6))
    loader.close()


def test_only_of_an_iterable_dataset_it_is_said_that_it_repeats_itself():
    with raises(ValueError, match="iterable dataset, and Pairs is none"):
        headrace.DataLoader(Pairs(3), loading=REPEATS)
    with raises(TypeError, match="True or False"):
        headrace.Loading(repeats="yes")


@each_stream
def test_a_stream_that_always_kills(stream):
    loader = headrace.DataLoader(stream(9, Always(5)), num_workers=1, loading=repeating(stream))
    iterator = iter(loader)
    assert samples([next(iterator) for _ in range(5)]) == [0, 1, 2, 3, 4]
    for _ in range(2):  # and asking again does not hang
        with raises(headrace.WorkerDied, match="SIGKILL.* batch 5 of the stream of worker 0"):
            next(iterator)


def test_a_stream_that_had_failed_before_its_worker_died(tmp_path):
    """The error was delivered: reading the stream again passes over it."""
    dataset = FailsOnce(10, at=2, hook=Once(tmp_path / "killed", 6))
    batches, errors = outcomes(iter(headrace.DataLoader(dataset, num_workers=1, timeout=PATIENCE, loading=REPEATS)))
    assert samples(batches) == [0, 1, 3, 4, 5, 6, 7, 8, 9]
    assert [type(error) for error in errors] == [ValueError]


def test_a_stream_may_lose_its_worker_once_in_every_batch(tmp_path):
    """Two deaths over two batches, neither of them delivered in between."""
    hook = TwoDeaths(tmp_path, 3, 4)
    iterator = iter(headrace.DataLoader(Numbers(12, hook), num_workers=1, prefetch_factor=6, loading=REPEATS))
    assert samples(iterator) == list(range(12))


class TwoDeaths:
    def __init__(self, folder, *at):
        self.hooks = [Once(folder / str(index), index) for index in at]

    def __call__(self, index):
        for hook in self.hooks:
            hook(index)


@each_stream
def test_a_batch_that_was_finished_but_not_counted_is_not_made_twice(stream, workers):
    """The worker dies between the two stores that finish a batch and count it."""
    loader = headrace.DataLoader(stream(30), batch_size=3, num_workers=1, prefetch_factor=2, loading=repeating(stream))
    iterator = iter(loader)
    found = [next(iterator).tolist()]
    run = iterator.resources.run
    lane, words = run._ledger.dims.lane(0), run._ledger.w
    assert wait_until(lambda: words[lane + W.L_WAITING] != 0)
    (victim,) = workers()
    os.kill(victim.pid, signal.SIGKILL)
    assert wait_until(lambda: not workers())
    words[lane + W.L_MADE] -= 1
    found += [batch.tolist() for batch in iterator]
    assert found == [list(range(at, at + 3)) for at in range(0, 30, 3)]


@each_order
def test_batches_received_before_a_death_stay_as_they_are(in_order, tmp_path):
    loader = headrace.DataLoader(
        Pairs(N, hook=Once(tmp_path / "killed", 40)),
        batch_size=SIZE,
        num_workers=2,
        in_order=in_order,
        collate_fn=listed,
    )
    kept = list(loader)
    rows = [row for batch in kept for row in MODES["custom collate"].rows(batch)]
    MODES["custom collate"].check(rows, list(range(N)), ordered=in_order)
