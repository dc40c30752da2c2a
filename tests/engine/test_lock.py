"""The lock of a run outlives whoever holds it, and keeps nobody waiting for an interpreter."""

import multiprocessing
import os
import pickle
import signal
import threading
import time
from multiprocessing import reduction

import pytest

from headrace.engine.memory import lock as locks
from headrace.engine.memory import reservation
from headrace.engine.memory.lock import Lock, Mutex, new_lock
from headrace.engine.memory.reservation import Reservation
from headrace.sched import ledger_layout as W
from headrace.sched import native_ledger
from headrace.sched.lanes.lane_messages import Next, TakeRule, TakeSize
from headrace.sched.ledger_layout import Dims

fork = multiprocessing.get_context("fork")
pytestmark = pytest.mark.leaks_ok("a mapping, and its descriptor, live as long as the fixture that made them")
needs_native = pytest.mark.skipif(native_ledger.module is None, reason="needs the native module: make native")


@pytest.fixture
def memory():
    made = Reservation(Dims(lanes=4, groups=8, slots=8, rows=8), slot_bytes=1 << 20)
    yield made
    made.close()


@pytest.fixture(params=["record", pytest.param("mutex", marks=needs_native)])
def lock(request, memory, monkeypatch):
    if request.param == "record":
        monkeypatch.setattr(locks.native_ledger, "module", None)
    made = new_lock(memory)
    assert isinstance(made, Lock if request.param == "record" else Mutex)
    yield made
    made.close()


def _die(lock, ready):
    lock.__enter__()
    ready.set()
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_holder_that_is_killed_frees_it(lock, memory):
    for _ in range(20):
        ready = fork.Event()
        process = fork.Process(target=_die, args=(lock, ready))
        process.start()
        assert ready.wait(240)
        with lock:
            memory.words[W.SEED] += 1
        process.join()
        assert process.exitcode == -signal.SIGKILL
        process.close()
    assert memory.words[W.SEED] == 20


def _add(lock, words, times):
    for _ in range(times):
        with lock:
            words[W.SEED] += 1


def test_it_excludes_other_processes(lock, memory):
    processes = [fork.Process(target=_add, args=(lock, memory.words, 3000)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        process.close()
    assert memory.words[W.SEED] == 9000


@needs_native
def test_threads_exclude_each_other(memory):
    mutex = new_lock(memory)
    threads = [threading.Thread(target=_add, args=(mutex, memory.words, 3000)) for _ in range(3)]
    with mutex:
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join()
    assert memory.words[W.SEED] == 9000
    mutex.__exit__(None, None, None)  # not held: nothing happens


def _try(lock, entered):
    with lock:
        entered.set()


@pytest.fixture
def somebody_else(lock):
    """Another process, which wants the lock from the first call on; whether it has had it after so many seconds."""
    entered, started = fork.Event(), []

    def has_it(seconds):
        if not started:
            started.append(fork.Process(target=_try, args=(lock, entered)))
            started[0].start()
        return entered.wait(seconds)

    yield has_it
    for process in started:
        process.join()
        process.close()


def test_who_enters_again_holds_it_until_the_outer_block_leaves(lock, somebody_else):
    with lock:
        with lock, lock:
            pass
        assert not somebody_else(0.2)
    assert somebody_else(20)


def test_a_signal_handler_that_enters_again_does_not_let_it_go(lock, somebody_else):
    def handle(*_):
        with lock:
            pass

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with lock:
            signal.raise_signal(signal.SIGUSR1)
            assert not somebody_else(0.2)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert somebody_else(20)


def _enter_forked(lock, entered):
    with lock:
        with lock:
            pass
        entered.set()


def test_a_process_that_was_forked_inside_the_block_has_not_entered_it(lock):
    entered = fork.Event()
    with lock:
        process = fork.Process(target=_enter_forked, args=(lock, entered))
        process.start()
        assert not entered.wait(0.2)
    assert entered.wait(240)
    process.join()
    process.close()


@needs_native
def test_two_locks_in_the_same_words_are_one(memory):
    mutex, other, taken = new_lock(memory), Mutex(memory), threading.Event()
    thread = threading.Thread(target=_try, args=(mutex, taken))
    with mutex:
        with other:
            pass
        thread.start()
        assert not taken.wait(0.1)
    thread.join()
    assert taken.is_set()


@needs_native
def test_it_is_found_again_in_the_same_memory(memory):
    mutex = new_lock(memory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reduction, "DupFd", _Handle)
        _, other = pickle.loads(pickle.dumps((memory, mutex)))
    words = other._memory.words
    with mutex:
        taken = threading.Event()
        thread = threading.Thread(target=lambda: (other.__enter__(), taken.set(), other.__exit__(None, None, None)))
        thread.start()
        assert not taken.wait(0.05)
    thread.join()
    assert taken.is_set()
    del words
    other._memory.close()


class _Handle:
    def __init__(self, fd):
        self.fd = os.dup(fd)

    def detach(self):
        return self.fd


@needs_native
def test_what_an_interrupt_left_locked_is_free_when_the_lock_is_closed(memory):
    """Else the thread's next lock would write to this memory, which is somebody else's by then."""
    mutex = new_lock(memory)
    mutex.__enter__()
    mutex.close()
    assert not memory.stays
    entered = threading.Thread(target=lambda: (mutex.__enter__(), mutex.__exit__(None, None, None)))
    entered.start()
    entered.join(240)
    assert not entered.is_alive()


@needs_native
def test_memory_with_a_lock_that_another_thread_holds_stays(memory, monkeypatch):
    staying = []
    monkeypatch.setattr(reservation, "_STAYING", staying)
    mutex, entered, over = new_lock(memory), threading.Event(), threading.Event()

    def hold():
        with mutex:
            entered.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait()
    mutex.close()
    over.set()
    thread.join()
    assert memory.stays
    assert staying == [memory.map]


@needs_native
def test_an_operation_waits_for_no_interpreter(memory):
    """A busy thread of this process has the interpreter most of the time; who waits for the lock does not notice."""
    mutex, over = new_lock(memory), threading.Event()
    mine = native_ledger.NativeLane(memory.words, memory.dims, 0, mutex)
    theirs = fork.Process(target=_visit, args=(memory, mutex))
    busy = threading.Thread(target=lambda: [sum(range(2000)) for _ in iter(over.is_set, True)])
    busy.start()
    theirs.start()
    try:
        until = time.monotonic() + 240
        while theirs.is_alive() and time.monotonic() < until:
            assert mine.visit(None, None, TakeSize(TakeRule.CHUNKS)).what == Next.ASLEEP
    finally:
        over.set()
        busy.join()
        theirs.join()
    assert theirs.exitcode == 0
    theirs.close()


def _visit(memory, mutex):
    """Its visits go on while the other process's interpreter is busy: hardly one takes as long as a turn of that."""
    lane = native_ledger.NativeLane(memory.words, memory.dims, 1, mutex)
    slow = 0
    for _ in range(3000):
        began = time.thread_time()
        lane.visit(None, None, TakeSize(TakeRule.CHUNKS))
        slow += time.thread_time() - began > 0.004
    os._exit(slow > 30)
