"""A process that the user forks: its iterations are its own, and the other one's are left alone."""

import gc
import os
import signal
import threading
from collections.abc import Callable

import pytest

import headrace
from headrace.engine.processes import forker
from tests.loader.data import Pairs

SAMPLES = 400


def forked(work: Callable[[], bool]) -> int:
    """Do ``work`` in a forked process; its number. It exits with 0 if that was true."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(60)
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return pid


def ended_well(pid: int) -> bool:
    return os.waitpid(pid, 0)[1] == 0


def numbers(batches) -> list[int]:
    return [
        number for batch in batches for number in (batch[0] if isinstance(batch, (list, tuple)) else batch).tolist()
    ]


def loader(**options):
    return headrace.DataLoader(Pairs(SAMPLES), **{"batch_size": 8, "num_workers": 2, "shuffle": True} | options)


PERSISTENT = pytest.mark.parametrize("persistent", [False, True], ids=["new workers", "persistent"])


@PERSISTENT
def test_an_epoch_of_its_own_while_the_other_one_is_in_mid_epoch(persistent):
    with loader(persistent_workers=persistent) as loading:
        iterator = iter(loading)
        found = numbers(next(iterator) for _ in range(5))

        def work() -> bool:
            nonlocal iterator
            del iterator
            gc.collect()
            return sorted(numbers(loading)) == list(range(SAMPLES))

        assert ended_well(forked(work))
        assert sorted(found + numbers(iterator)) == list(range(SAMPLES))


@PERSISTENT
def test_both_go_on_at_once_after_an_epoch(persistent):
    with loader(persistent_workers=persistent) as loading:
        assert sorted(numbers(loading)) == list(range(SAMPLES))
        pid = forked(lambda: all(sorted(numbers(loading)) == list(range(SAMPLES)) for _ in range(3)))
        for _ in range(3):
            assert sorted(numbers(loading)) == list(range(SAMPLES))
        assert ended_well(pid)


def test_an_iteration_is_not_shared():
    with loader() as loading:
        iterator = iter(loading)
        found = numbers([next(iterator)])

        def work() -> bool:
            with pytest.raises(RuntimeError, match=r"belongs to process .* call iter\(loader\) here"):
                next(iterator)
            return True

        assert ended_well(forked(work))
        assert sorted(found + numbers(iterator)) == list(range(SAMPLES))


def test_closing_there_closes_nothing_here():
    with loader() as loading:
        iterator = iter(loading)
        found = numbers([next(iterator)])

        def work() -> bool:
            loading.close()
            return True

        assert ended_well(forked(work))
        assert sorted(found + numbers(iterator)) == list(range(SAMPLES))


def test_one_fork_at_a_time():
    """There are libraries that refuse a fork while another thread forks; in the new process it is anybody's turn."""

    def fork() -> None:
        with forker.one_fork:
            order.append("other")

    def have_a_turn() -> bool:
        with forker.one_fork:
            return True

    order: list[str] = []
    other = threading.Thread(target=fork)
    with forker.one_fork:
        other.start()
        assert ended_well(forked(have_a_turn))
        order.append("first")
    other.join()
    assert order == ["first", "other"]
