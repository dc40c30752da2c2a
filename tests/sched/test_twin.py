"""What either twin refuses: numbers of lanes, slots, groups and rows that there are not, and a lock it cannot have."""

import errno
import runpy
import sys
from array import array
from collections.abc import Callable

import pytest

from headrace.sched import ledger_layout as W
from headrace.sched import native_ledger
from headrace.sched.epochs.publication import Batch, IndexKind
from headrace.sched.epochs.trainer_ledger import TrainerLedger
from headrace.sched.lanes.lane_ledger import LaneLedger
from headrace.sched.lanes.lane_messages import TakeRule, TakeSize, Written
from headrace.sched.ledger_layout import Dims
from tests.sched.memory import Words

DIMS = Dims(lanes=3, groups=8, slots=6, rows=4)
needs_native = pytest.mark.skipif(native_ledger.module is None, reason="needs the native module: make native")
SIZE = TakeSize(TakeRule.CHUNKS)
BATCH = Batch(0, 4, False, 0, 4, IndexKind.INTEGERS, 0, True)
OUTSIDE: dict[str, Callable[[LaneLedger, TrainerLedger], object]] = {
    "slot 6: there are 6": lambda lane, _: lane.finish(Written(6, 0, 1, 0, 0, None)),
    "slot -1: there are 6": lambda lane, _: lane.visit(Written(-1, 0, 1, 0, 0, None), None, SIZE),
    "group 8: there are 8": lambda lane, _: lane.finish(Written(0, 0, 1, 8, 0, None)),
    "2 rows from 3 on: there are 4": lambda lane, _: lane.finish(Written(0, 3, 2, 0, 0, None)),
    "-1 rows from 3 on: there are 4": lambda lane, _: lane.finish(Written(0, 3, -1, 0, 0, None)),
    "2 tickets from 3 on: there are 4": lambda lane, _: lane.visit(Written(0, 0, 2, 0, 3, None), None, SIZE),
    "slot 7: there are 6": lambda lane, _: lane.reserve(7, 1),
    "slot 8: there are 6": lambda lane, _: lane.shape(8, 0, lambda rows: rows),
    "slot 9: there are 6": lambda lane, _: lane.ready(9, 0, 0, failed=False),
    "slot 10: there are 6": lambda _, trainer: trainer.look([0, 10]),
    "slot 11: there are 6": lambda _, trainer: trainer.is_busy(11, 3),
    "slot 12: there are 6": lambda _, trainer: trainer.publish(BATCH._replace(slot=12), 3),
    "group -2: there are 8": lambda _, trainer: trainer.publish(BATCH._replace(group=-2), 3),
    "5 rows from 0 on: there are 4": lambda _, trainer: trainer.publish(BATCH._replace(expected=5), 3),
    "5 tickets from 0 on: there are 4": lambda _, trainer: trainer.publish(BATCH._replace(count=5), 3),
    "4 lanes from 0 on: there are 3": lambda _, trainer: trainer.publish(BATCH, 4),
    "5 lanes from 0 on: there are 3": lambda _, trainer: trainer.wake(5),
    "6 lanes from 0 on: there are 3": lambda _, trainer: trainer.is_busy(0, 6),
    "position 4: there are 4": lambda _, trainer: trainer.publish(BATCH, 3, [0, 4]),
}


@pytest.mark.parametrize("words", OUTSIDE)
def test_a_number_of_what_is_not_there_is_refused(words: str, native: bool) -> None:
    memory = Words(DIMS.words, native=native)
    lane, trainer = memory.lane(DIMS, 0), memory.trainer(DIMS)
    trainer.reset(free_order=True)
    before = memory[0 : DIMS.words]
    with pytest.raises(IndexError, match=words):
        OUTSIDE[words](lane, trainer)
    assert memory[0 : DIMS.words] == before, "something was stored"


@pytest.mark.parametrize("objects", [[], [1], [1, 2, 3]])
def test_rows_have_an_object_each(objects: list[int], native: bool) -> None:
    lane = Words(DIMS.words, native=native).lane(DIMS, 0)
    with pytest.raises(ValueError, match=f"{len(objects)} objects for 2 rows"):
        lane.finish(Written(0, 0, 2, 0, 0, objects))


@pytest.mark.parametrize("lane", [-1, 3])
def test_a_lane_that_there_is_not_has_no_ledger(lane: int, native: bool) -> None:
    with pytest.raises(IndexError, match=f"lane {lane}: there are 3"):
        Words(DIMS.words, native=native).lane(DIMS, lane)


def test_words_that_are_too_few_are_no_ledger(native: bool) -> None:
    with pytest.raises(ValueError, match=f"{DIMS.words - 1} words where the ledger has {DIMS.words}"):
        Words(DIMS.words - 1, native=native).trainer(DIMS)


@needs_native
def test_a_ledger_that_was_not_made_does_nothing() -> None:
    with pytest.raises(ValueError, match="without words"):
        native_ledger.module.Ledger.__new__(native_ledger.module.Ledger).wake(0)
    with pytest.raises(ValueError, match="without words"):
        native_ledger.module.Mutex.__new__(native_ledger.module.Mutex).__enter__()


@needs_native
def test_an_operation_that_cannot_have_the_lock_does_nothing() -> None:
    words = memoryview(array("q", bytes(8 * DIMS.words)))
    mutex = native_ledger.mutex(words)
    mutex.make()
    ledger = native_ledger.NativeTrainer(words, DIMS, mutex)
    ledger.reset(free_order=True)
    for word in range(W.MUTEX, W.MUTEX + W.MUTEX_WORDS):  # no lock of any kind
        words[word] = 0x7F7F7F7F7F7F7F7F
    before = words.tolist()
    with pytest.raises(OSError, match="cannot take the lock of the run, so nothing was done") as caught:
        ledger.publish(BATCH, 3)
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(OSError, match="cannot take the lock"):
        mutex.__enter__()
    assert words.tolist() == before


def test_free_threaded_builds_do_not_load_it(monkeypatch):
    monkeypatch.setattr(sys, "abiflags", "t")
    assert runpy.run_path(native_ledger.__file__)["module"] is None
