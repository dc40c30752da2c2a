import os
import pickle
import threading

import pytest

from headrace.store.reading.owned import Owned
from headrace.testing.stores import in_child


class Counter:
    def __init__(self):
        self.made, self.ended = [], []
        self.owned = Owned(self.make, self.end)

    def make(self):
        self.made.append(os.getpid())
        return object()

    def end(self, held):
        self.ended.append(held)


def test_it_is_made_once_and_again_after_it_was_closed():
    counter = Counter()
    first = counter.owned.get()
    assert counter.owned.get() is first
    counter.owned.close()
    counter.owned.close()
    assert counter.ended == [first]
    assert counter.owned.get() is not first


def test_threads_share_one():
    counter = Counter()
    threads = [threading.Thread(target=counter.owned.get) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(counter.made) == 1


def test_a_child_makes_its_own_and_ends_only_that():
    counter = Counter()
    first = counter.owned.get()

    def check():
        assert counter.owned.get() is not first
        assert counter.made[-1] == os.getpid()
        counter.owned.close()
        assert first not in counter.ended

    in_child(check)
    assert counter.owned.get() is first


def test_a_child_that_only_closes_ends_nothing():
    counter = Counter()
    counter.owned.get()

    def check():
        counter.owned.close()
        assert counter.ended == []

    in_child(check)


def test_a_lock_held_by_a_thread_of_the_parent_does_not_stop_a_child():
    counter = Counter()
    making, go_on = threading.Event(), threading.Event()

    def slow():
        making.set()
        go_on.wait()
        return object()

    counter.owned._make = slow
    thread = threading.Thread(target=counter.owned.get)
    thread.start()
    making.wait()

    def check():
        counter.owned._make = object
        assert counter.owned.get() is not None

    in_child(check)
    go_on.set()
    thread.join()


def test_one_may_be_made_while_another_is():
    """What a thing opens may itself be opened on first use, in another thread."""
    inner = Owned(object, lambda _: None)
    found = []

    def make():
        thread = threading.Thread(target=lambda: found.append(inner.get()))
        thread.start()
        thread.join(240)
        return found[0]

    assert Owned(make, lambda _: None).get() is inner.get()


def test_a_copy_is_closed():
    owned = Owned(dict, len)
    owned.get()
    copy = pickle.loads(pickle.dumps(owned))
    assert copy._held is None
    assert copy.get() == {}


def test_what_cannot_be_made_is_tried_again():
    owned = Owned(lambda: 1 // 0, lambda _: None)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            owned.get()
