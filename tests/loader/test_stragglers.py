"""Samples known to be extraordinarily slow are begun as soon as they are drawn; nothing else changes."""

import time
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.engine.trainer.stragglers import REMEMBERED, Stragglers
from headrace.sched import ledger_layout as W
from headrace.sched.epochs.trainer_ledger import TrainerLedger
from headrace.sched.ledger_layout import Dims
from tests.loader.data import BulkPairs, Pairs, fixed
from tests.loader.support import PATIENCE
from tests.sched.memory import Words

N, BATCH, SLOW = 120, 4, 70
DIMS = Dims(lanes=3, groups=4, slots=4, rows=8)

each_order = pytest.mark.parametrize("in_order", [True, False], ids=["in order", "as ready"])


class Begun:
    """A hook: notes the order in which samples are begun; one takes two hundred times as long as the others."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, index: int) -> None:
        with self.path.open("a") as file:
            file.write(f"{index}\n")
        time.sleep(0.4 if index == SLOW else 0.002)

    def read(self) -> list[int]:
        return list(map(int, self.path.read_text().split()))


def epochs(tmp_path: Path, dataset: type[Pairs] = Pairs, **options: Any) -> list[list[int]]:
    """The order in which the samples of each of two epochs were begun; each epoch must be whole."""
    begun = Begun(tmp_path / "begun")
    scheduling = headrace.Scheduling()
    arguments = {"batch_size": BATCH, "num_workers": 2, "prefetch_factor": 8, "timeout": PATIENCE, **options}
    with headrace.DataLoader(dataset(N, fixed, begun), scheduling=scheduling, **arguments) as loading:
        for _ in range(2):
            found = [index for batch in loading for index in batch[0].tolist()]
            assert sorted(found) == list(range(N))
            if options["in_order"]:
                assert found == list(range(N))
    return [begun.read()[:N], begun.read()[N:]]


@each_order
@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "new workers"])
def test_it_is_begun_when_it_is_drawn(in_order, persistent, tmp_path):
    drawn_with = SLOW // BATCH - 16 + 1  # sixteen batches are outstanding
    for attempt in range(8):  # where the machine is busy with other things, any sample may seem extraordinarily slow
        folder = tmp_path / str(attempt)
        folder.mkdir()
        first, second = epochs(folder, in_order=in_order, persistent_workers=persistent)
        assert first.index(SLOW) >= SLOW - 8
        assert second.index(SLOW) >= BATCH * drawn_with - 8
        if second.index(SLOW) < SLOW - 8:
            return
    pytest.fail("it was never begun before its turn")


def test_what_is_made_a_batch_at_a_time_stays_together(tmp_path):
    first, second = epochs(tmp_path, BulkPairs, in_order=True)
    assert abs(first.index(SLOW) - second.index(SLOW)) <= 16


@pytest.fixture
def ledger() -> TrainerLedger:
    found = TrainerLedger(Words(DIMS.words), DIMS)
    found.reset(free_order=False, limit=4)
    return found


def log(ledger: TrainerLedger, *indices: int) -> None:
    for index in indices:
        ledger.w[W.LOG + ledger.w[W.LOGGED] % W.LOG_SIZE] = index
        ledger.w[W.LOGGED] += 1


def test_some_are_known(ledger):
    known = Stragglers()
    assert known.among(range(8), ledger) == []
    log(ledger, 5, 7, 5)
    known.learn(ledger)
    assert known.among([7, 1, 2, 3, 4, 5, 6, 0], ledger) == [0, 5]
    assert known.among([(7, 1), "5", 7.0, True, 9, 9, 9, 9], ledger) == [], "only numbers are remembered"


def test_half_of_the_lanes_go_on(ledger):
    known = Stragglers()
    log(ledger, *range(8))
    known.learn(ledger)
    assert known.among(range(32), ledger) == [0, 1]
    ledger.w[W.RETRIES] = 1
    assert known.among(range(32), ledger) == [0]
    ledger.w[W.RETRIES] = 5
    assert known.among(range(32), ledger) == []


def test_a_batch_of_them_is_nothing_special(ledger):
    known = Stragglers()
    log(ledger, *range(8))
    known.learn(ledger)
    assert known.among(range(8), ledger) == []


def test_memory_is_bounded(ledger):
    known = Stragglers()
    for first in range(0, REMEMBERED + 64, 32):
        log(ledger, *range(first, first + 32))
        known.learn(ledger)
    assert known.among([0, *range(10**6, 10**6 + 7)], ledger) == []
    assert known.among([REMEMBERED, *range(10**6, 10**6 + 7)], ledger) == [0]


def test_a_log_that_ran_over(ledger):
    known = Stragglers()
    log(ledger, *range(3 * W.LOG_SIZE))
    known.learn(ledger)
    assert known.among([0, *range(10**6, 10**6 + 7)], ledger) == []
    assert known.among([3 * W.LOG_SIZE - 1, *range(10**6, 10**6 + 7)], ledger) == [0]


class Holding(Begun):
    """Every fortieth sample takes until the batches that are usually ahead of it were begun, and a while longer."""

    def __call__(self, index: int) -> None:
        with self.path.open("a") as file:
            file.write(f"{index}\n")
        if index % 40 == 0 and index + AHEAD <= MANY:
            deadline = time.monotonic() + PATIENCE
            while max(self.read()) < index + AHEAD - 1:
                assert time.monotonic() < deadline, "the usual batches were not made meanwhile"
            time.sleep(0.1)
            with self.path.with_name("reach").open("a") as file:
                file.write(f"{max(self.read()) - index}\n")


AHEAD, MANY = 2 * 2 * BATCH, 400
"""Samples of two batches for each of two workers; of the epoch."""


@pytest.mark.parametrize("chosen", [None, 2], ids=["open", "chosen"])
def test_more_is_made_ahead_where_slow_samples_leave_workers_idle(chosen, tmp_path):
    begun = Holding(tmp_path / "begun")
    options = {"batch_size": BATCH, "num_workers": 2, "prefetch_factor": chosen, "in_order": True}
    scheduling = headrace.Scheduling(spares=0)
    with headrace.DataLoader(Pairs(MANY, fixed, begun), scheduling=scheduling, timeout=PATIENCE, **options) as loading:
        assert [index for batch in loading for index in batch[0].tolist()] == list(range(MANY))
    reach = max(map(int, begun.path.with_name("reach").read_text().split()))
    assert reach >= 2 * AHEAD - BATCH if chosen is None else reach < AHEAD + BATCH


class First(Begun):
    """The first sample takes until as many were begun as twice doubling what is usually ahead allows."""

    def __call__(self, index: int) -> None:
        with self.path.open("a") as file:
            file.write(f"{index}\n")
        deadline = time.monotonic() + PATIENCE
        while index == 0 and max(self.read()) < 4 * AHEAD - 1:
            assert time.monotonic() < deadline, "workers stood idle while it was waited for"


def test_more_is_made_ahead_while_the_slow_sample_is_still_waited_for(tmp_path):
    dataset, scheduling = Pairs(MANY, fixed, First(tmp_path / "begun")), headrace.Scheduling(spares=0)
    options = {"batch_size": BATCH, "num_workers": 2, "in_order": True, "timeout": 2 * PATIENCE}
    with headrace.DataLoader(dataset, scheduling=scheduling, **options) as loading:
        assert [index for batch in loading for index in batch[0].tolist()] == list(range(MANY))
