"""Memory pools are given back while no thread allocates from one."""

import threading
import weakref
from contextlib import nullcontext
from types import SimpleNamespace

from headrace.ondevice import pools

CUDA = SimpleNamespace(use_mem_pool=lambda *_: nullcontext())


class Pool:
    pass


def test_is_given_back_at_once_where_none_is_used():
    pool = Pool()
    gone = weakref.ref(pool)
    pools.retire(pool)
    del pool
    assert gone() is None


def test_is_given_back_by_whoever_uses_one_last():
    mine, other = Pool(), Pool()
    gone = weakref.ref(other)
    with pools.used(mine, 0, CUDA):
        pools.retire(other)
        del other
        assert gone() is not None
    assert gone() is None


def test_who_comes_later_waits_for_that():
    mine, other, later = Pool(), Pool(), Pool()
    gone, came = weakref.ref(other), threading.Event()

    def use():
        with pools.used(later, 0, CUDA):
            assert gone() is None
            came.set()

    thread = threading.Thread(target=use)
    with pools.used(mine, 0, CUDA):
        pools.retire(other)
        del other
        thread.start()
        assert not came.wait(0.05)
    thread.join(60)
    assert came.is_set()
