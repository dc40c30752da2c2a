"""Slow samples: who stands in for their workers, how far they are overtaken, and that nothing is lost by it."""

import os
import signal
import threading
import time
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import get_worker_info

import headrace
from headrace.engine.trainer.cores import CoreUse, Use
from headrace.sched import ledger_layout as W
from tests.loader.data import Pairs, first, fixed
from tests.loader.support import PATIENCE, SIZE, Rows, kill
from tests.loader.support import forked as workers
from tests.parity.support import wait_until

WARM_UP = 100
"""Samples of an ordinary cost, after which it is known what slow is."""


@pytest.fixture(autouse=True)
def free_cores(monkeypatch):
    """Samples here only wait; but lanes that wait for a core which others use look busy, and keep their places."""
    monkeypatch.setattr(CoreUse, "ask", lambda self, pids: Use(1.0, 0.0, 0.0))


class Gate:
    """A hook: chosen samples wait for a file; each tells in another one that it began, and who makes it."""

    def __init__(self, folder: Path, *held: int) -> None:
        self.folder, self.held = folder, set(held)

    def __call__(self, index: int) -> None:
        if index in self.held:
            with (self.folder / f"began-{index}").open("a") as file:
                file.write(f"{os.getpid()}\n")
            while not (self.folder / "open").exists():
                time.sleep(0.001)
        else:
            time.sleep(0.0005)

    def pids(self, index: int) -> list[int]:
        path = self.folder / f"began-{index}"
        return list(map(int, path.read_text().split())) if path.exists() else []

    def open(self) -> None:
        (self.folder / "open").touch()


class KilledInside(Gate):
    """The same, but the first to make a held sample is killed in it when the gate opens."""

    def __call__(self, index: int) -> None:
        super().__call__(index)
        if index in self.held and first(self.folder / "killed"):
            os.kill(os.getpid(), signal.SIGKILL)


class Who(Pairs):
    """(index, the worker's id)."""

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.hook(index)
        info = get_worker_info()
        assert info.id < 8
        return index, info.id


def loader(n: int, hook: Any, *, dataset: type[Pairs] = Pairs, **options: Any) -> headrace.DataLoader[Any]:
    arguments = {"batch_size": SIZE, "num_workers": 2, "in_order": False, "timeout": PATIENCE, **options}
    return headrace.DataLoader(dataset(n, fixed, hook), **arguments)


def indices(batch: Any) -> list[int]:
    return batch[0].tolist()


def check(batches: list[Any], expected: range) -> None:
    """Each index once, with its own contents."""
    rows: Rows = [row for batch in batches for row in zip(indices(batch), batch[1], strict=True)]
    assert sorted(index for index, _ in rows) == list(expected)
    assert all(tensor.equal(fixed(index)) for index, tensor in rows)


def lanes(loading: headrace.DataLoader[Any]) -> list[int]:
    """The role of each lane."""
    run = loading._latest.run
    return [run._ledger.w[run._ledger.dims.lane(lane) + W.L_ROLE] for lane in range(run._pool.lanes)]


def is_aside(loading: headrace.DataLoader[Any], gate: Gate, index: int) -> bool:
    """Whether the worker that makes this sample has given its place away."""
    makers = gate.pids(index)
    pids = loading._latest.run._pool.pids()
    return bool(makers) and makers[-1] in pids and lanes(loading)[pids.index(makers[-1])] == W.ASIDE


def until(iterator: Any, batches: list[Any], condition: Any) -> None:
    """Take batches until something is so."""
    while not condition():
        batches.append(next(iterator))


@pytest.mark.parametrize("workers", [1, 2])
def test_batches_go_on_around_a_slow_sample(workers, tmp_path):
    gate = Gate(tmp_path, WARM_UP)
    loading = loader(400, gate, num_workers=workers, scheduling=headrace.Scheduling(max_displacement=None))
    iterator = iter(loading)
    # With one worker nothing comes after the slow sample unless somebody stands in.
    batches = [next(iterator) for _ in range(400 // SIZE - 1)]
    assert gate.pids(WARM_UP)
    assert WARM_UP not in {index for batch in batches for index in indices(batch)}
    gate.open()
    batches += iterator
    check(batches, range(400))
    assert WARM_UP in indices(batches[-1])
    stats = loading.stats()
    assert stats.hand_offs >= 1
    assert stats.slow >= 1
    assert stats.threshold_seconds > 0
    assert stats.restarts == stats.repeats == 0
    assert len(gate.pids(WARM_UP)) == 1, "it is made once"


def test_what_stats_say_of_slow_samples(tmp_path):
    gate = Gate(tmp_path, WARM_UP)
    loading = loader(400, gate, scheduling=headrace.Scheduling(max_displacement=None, spares=1))
    iterator, batches = iter(loading), []
    until(iterator, batches, lambda: loading.stats().aside == 1)
    assert loading.stats().spares == 1
    gate.open()
    batches += iterator
    stats = loading.stats()
    assert stats.aside == 0
    assert stats.fast + stats.slow == 400
    assert stats.slow >= 1
    assert stats.lane_changes[-1][1] == stats.lanes == 2
    assert stats.thresholds[-1][1] == stats.threshold_seconds > 0
    assert [time for time, _ in stats.thresholds] == sorted(time for time, _ in stats.thresholds)
    assert all(one != other for (_, one), (_, other) in pairwise(stats.thresholds))
    assert 0 <= stats.occupancy <= 1


def test_occupancy_tells_who_waits(tmp_path):
    gate = Gate(tmp_path, *range(40))
    loading = loader(40, gate, prefetch_factor=4, in_order=True)
    iterator = iter(loading)
    gate.open()
    run = loading._latest.run
    for _ in range(8):
        assert wait_until(lambda: all(map(run._ledger.is_ready, run.machine.epoch.open)))
        next(iterator)
    assert loading.stats().occupancy == 1.0

    starved = loader(40, Gate(tmp_path), num_workers=1, prefetch_factor=1, in_order=True)
    iterator = iter(starved)
    run = starved._latest.run
    assert wait_until(lambda: all(map(run._ledger.is_ready, run.machine.epoch.open)))
    for _ in iterator:  # but for the first, nothing is there when it is asked for
        pass
    assert starved.stats().occupancy < 0.5


class Cheap(Gate):
    """Samples that cost nothing, but for those held: many are taken at once."""

    def __call__(self, index: int) -> None:
        if index in self.held:
            super().__call__(index)
        else:
            with (self.folder / "made").open("a") as file:
                file.write(f"{index}\n")

    def made(self) -> list[int]:
        return list(map(int, (self.folder / "made").read_text().split()))


@pytest.mark.parametrize("in_order", [True, False], ids=["in order", "as ready"])
def test_nothing_waits_behind_a_slow_sample_that_it_was_taken_with(tmp_path, in_order):
    n, size, slow = 1280, 64, 640
    gate = Cheap(tmp_path, slow)
    loading = loader(
        n, gate, batch_size=size, in_order=in_order, prefetch_factor=64, scheduling=headrace.Scheduling(hand_off=False)
    )
    iterator = iter(loading)
    batches = [next(iterator) for _ in range(4)]
    words, alone = loading._latest.run._ledger.w, threading.Event()

    def all_others_are_made() -> bool:
        if words[W.UNRESOLVED] == 1:
            alone.set()
        return alone.is_set()

    thread = _opens_when(all_others_are_made, gate)
    batches += iterator
    thread.join()
    assert alone.is_set()
    check(batches, range(n))
    assert sorted([*gate.made(), slow]) == list(range(n)), "none is made twice"


def test_in_order_the_place_is_given_away_too(tmp_path):
    gate = Gate(tmp_path, WARM_UP)
    loading = loader(WARM_UP + 40, gate, num_workers=1, prefetch_factor=8, in_order=True)
    iterator = iter(loading)
    batches = [next(iterator) for _ in range(WARM_UP // SIZE)]
    words = loading._latest.run._ledger.w
    # All that is drawn gets made, except the one sample.
    blocked = _opens_when(lambda: words[W.UNRESOLVED] == 1, gate)
    batches += iterator
    blocked.join()
    check(batches, range(WARM_UP + 40))
    assert [index for batch in batches for index in indices(batch)] == list(range(WARM_UP + 40))
    assert loading.stats().hand_offs >= 1


def _opens_when(condition: Any, gate: Gate) -> Any:
    """Open the gate from another thread as soon as something is so (or patience is lost)."""

    def run() -> None:
        wait_until(condition)
        gate.open()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("scheduling", [{"hand_off": False}, {"spares": 0}])
def test_without_spares_nobody_stands_in(scheduling, tmp_path):
    gate = Gate(tmp_path, WARM_UP)
    loading = loader(200, gate, scheduling=headrace.Scheduling(max_displacement=None, **scheduling))
    iterator = iter(loading)
    batches = [next(iterator) for _ in range(39)]
    assert lanes(loading).count(W.ASIDE) == 0
    assert len(workers()) == 2
    gate.open()
    check(batches + list(iterator), range(200))
    assert loading.stats().hand_offs == 0


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("spares", [1, 2])
def test_no_more_are_aside_than_there_are_spares(spares, tmp_path):
    held = (WARM_UP, WARM_UP + 1, WARM_UP + 2)
    gate = Gate(tmp_path, *held)
    loading = loader(300, gate, num_workers=4, scheduling=headrace.Scheduling(max_displacement=None, spares=spares))
    iterator, batches = iter(loading), []
    while len(batches) < 50:
        batches.append(next(iterator))
        assert lanes(loading).count(W.ASIDE) <= spares
        assert len(workers()) <= 4 + spares
    assert lanes(loading).count(W.ASIDE) == spares
    gate.open()
    check(batches + list(iterator), range(300))


@pytest.mark.parametrize("displacement", [1, 3, 8])
def test_a_sample_is_overtaken_by_so_many_batches(displacement, tmp_path):
    slow, n = WARM_UP + 2, 400
    gate = Gate(tmp_path, slow)
    loading = loader(n, gate, scheduling=headrace.Scheduling(max_displacement=displacement))
    iterator, drawn = iter(loading), slow // SIZE
    batches = [next(iterator) for _ in range(drawn + displacement)]
    assert slow not in {index for batch in batches for index in indices(batch)}
    words, run = loading._latest.run._ledger.w, loading._latest.run
    awaited, later = (run._ledger.dims.slot(slot) for slot in islice(run.machine.epoch.open, 2))
    # Its batch is full but for rows kept for it and what its worker took with it, however much else is made.
    thread = _opens_when(
        lambda: words[later + W.S_DONE] == SIZE > words[awaited + W.S_DONE] == words[awaited + W.S_CLAIMED], gate
    )
    batches.append(next(iterator))
    thread.join()
    assert slow in indices(batches[-1])
    check(batches + list(iterator), range(n))
    for number, batch in enumerate(batches):
        assert all(number - index // SIZE <= displacement for index in indices(batch))


def test_a_sample_that_fails_gives_its_row_to_others(tmp_path):
    """One was kept for it."""

    class Refuse(Gate):
        def __call__(self, index: int) -> None:
            super().__call__(index)
            if index in self.held:
                raise ValueError("no")

    gate = Refuse(tmp_path, WARM_UP)
    loading = loader(
        400, gate, on_error=headrace.Skip(0.1), scheduling=headrace.Scheduling(max_displacement=1, hand_off=False)
    )
    iterator = iter(loading)
    batches = [next(iterator) for _ in range(WARM_UP // SIZE + 1)]
    words = loading._latest.run._ledger.w
    thread = _opens_when(lambda: words[W.UNRESOLVED] < SIZE, gate)  # it, and what its worker took with it
    batches += iterator
    thread.join()
    found = sorted(index for batch in batches for index in indices(batch))
    assert found == [index for index in range(400) if index != WARM_UP]
    assert [failure.index for failure in loading.stats().skipped] == [WARM_UP]


@pytest.mark.parametrize("displacement", [None, 2])
def test_a_worker_killed_aside_is_replaced(displacement, tmp_path):
    gate = Gate(tmp_path, WARM_UP)
    loading = loader(300, gate, scheduling=headrace.Scheduling(max_displacement=displacement))
    iterator = iter(loading)

    def strike() -> bool:
        if not is_aside(loading, gate, WARM_UP):
            return False
        (pid,) = gate.pids(WARM_UP)
        return kill(next(worker for worker in workers() if worker.pid == pid))

    batches = [next(iterator) for _ in range(WARM_UP // SIZE)]
    thread = _opens_when(strike, gate)
    batches += iterator
    thread.join()
    check(batches, range(300))
    assert (loading.stats().restarts, loading.stats().repeats) == (1, 1)


@pytest.mark.parametrize("displacement", [None, 1, 64])
def test_a_slow_sample_that_kills_its_worker_is_made_again(displacement, tmp_path):
    """The others all wait behind the row that is kept for it."""
    gate = KilledInside(tmp_path, WARM_UP)
    loading = loader(300, gate, scheduling=headrace.Scheduling(max_displacement=displacement))
    iterator = iter(loading)
    batches = [next(iterator) for _ in range(WARM_UP // SIZE)]
    run = loading._latest.run

    def nobody_moves() -> bool:
        if not is_aside(loading, gate, WARM_UP):
            return False
        asleep = [bool(run._ledger.w[run._ledger.dims.lane(lane) + W.L_WAITING]) for lane in range(run._pool.lanes)]
        return asleep.count(False) == 1

    thread = _opens_when(nobody_moves, gate)
    batches += iterator
    thread.join()
    check(batches, range(300))
    stats = loading.stats()
    assert (stats.restarts, stats.repeats) == (1, 1)
    assert len(gate.pids(WARM_UP)) == 2


def test_ids_of_spares_follow_those_of_the_workers(tmp_path):
    gate = Gate(tmp_path, WARM_UP)
    started = tmp_path / "started"
    started.mkdir()

    def init(worker: int) -> None:
        (started / str(worker)).touch()

    loading = loader(
        300,
        gate,
        dataset=Who,
        worker_init_fn=init,
        scheduling=headrace.Scheduling(max_displacement=None, spares=1),
    )
    iterator, ids = iter(loading), {}
    for _ in range(58):
        numbers, made_by = next(iterator)
        ids.update(zip(numbers.tolist(), made_by.tolist(), strict=True))
    gate.open()
    for numbers, made_by in iterator:
        ids.update(zip(numbers.tolist(), made_by.tolist(), strict=True))
    assert sorted(ids) == list(range(300))
    assert {path.name for path in started.iterdir()} == {"0", "1", "2"}
    assert set(ids.values()) <= {0, 1, 2}
    assert 2 in {ids[index] for index in range(WARM_UP, 300)}
    assert ids[WARM_UP] in {0, 1}


@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "new workers"])
def test_spares_over_epochs(persistent, tmp_path):
    gate = Gate(tmp_path, WARM_UP)
    loading = loader(200, gate, persistent_workers=persistent, scheduling=headrace.Scheduling(max_displacement=None))
    with loading:
        iterator = iter(loading)
        batches = [next(iterator) for _ in range(39)]
        gate.open()
        batches += iterator
        check(batches, range(200))
        assert loading.stats().hand_offs >= 1
        for _ in range(2):
            check(list(loading), range(200))
            assert len(workers()) == (3 if persistent else 0)


def test_nobody_is_started_before_a_sample_is_slow(tmp_path):
    """Also where what is slow is known from an earlier epoch."""
    loading = loader(200, Gate(tmp_path), scheduling=headrace.Scheduling(hand_off=True))
    for _ in range(3):
        iterator, most = iter(loading), 0
        before = loading.stats().hand_offs
        for _ in iterator:
            most = max(most, loading._latest.run._pool.lanes)
        if loading.stats().hand_offs == before:  # a busy machine may have made one slow
            assert most == 2


def test_an_epoch_given_up_while_a_sample_is_slow(tmp_path):
    gate = Gate(tmp_path, WARM_UP)
    loading = loader(200, gate, persistent_workers=True, scheduling=headrace.Scheduling(max_displacement=None))
    with loading:
        iterator, batches = iter(loading), []
        until(iterator, batches, lambda: is_aside(loading, gate, WARM_UP))
        second = iter(loading)
        batches = [next(second) for _ in range(30)]
        gate.open()
        check(batches + list(second), range(200))
        check(list(loading), range(200))


@pytest.mark.parametrize("rule", ["climb", "formula"])
@pytest.mark.parametrize("persistent", [True, False])
def test_an_automatic_number_of_workers_delivers_once(persistent, rule):
    loading = headrace.DataLoader(
        Pairs(600, fixed, time_a_little),
        batch_size=SIZE,
        in_order=False,
        persistent_workers=persistent,
        scheduling=headrace.Scheduling(lanes=rule),
    )
    with loading:
        for _ in range(2):
            check(list(loading), range(600))
            assert loading.stats().lanes >= 1


@pytest.mark.parametrize("persistent", [True, False])
def test_the_number_of_lanes_found_is_kept(persistent):
    """From epoch to epoch, and by another loader over the same dataset."""
    dataset = Pairs(100_000, fixed, time_a_little)
    options = {"batch_size": SIZE, "shuffle": True, "persistent_workers": persistent, "timeout": PATIENCE}
    with headrace.DataLoader(dataset, **options) as loading:
        began = loading.num_workers
        for _ in loading:
            if loading.stats().lanes > began:
                break
        found = loading.stats().lanes
        assert found > began
        next(iter(loading))
        assert loading.stats().lanes == found
    with headrace.DataLoader(dataset, **options) as other:
        next(iter(other))
        assert other.stats().lanes == found


def time_a_little(index: int) -> None:
    time.sleep(0.004)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_displacement": 0}, "max_displacement"),
        ({"max_displacement": -1}, "max_displacement"),
        ({"spares": -1}, "spares"),
        ({"lanes": "guess"}, "lanes.*'climb', 'formula'"),
    ],
)
def test_what_cannot_be_honoured_is_refused(options, error):
    with pytest.raises(ValueError, match=error):
        headrace.Scheduling(**options)


def test_scheduling_is_a_scheduling():
    with pytest.raises(TypeError, match="scheduling"):
        headrace.DataLoader([1], scheduling=64)


@pytest.mark.parametrize(
    ("options", "workers", "spares"),
    [
        ({}, 1, 1),
        ({}, 8, 2),
        ({}, 17, 4),
        ({"spares": 0}, 8, 0),
        ({"spares": 5}, 2, 5),
        ({"hand_off": False}, 8, 0),
        ({"hand_off": False, "spares": 5}, 8, 0),
    ],
)
def test_how_many_spares(options, workers, spares):
    assert headrace.Scheduling(**options).spares_for(workers) == spares
