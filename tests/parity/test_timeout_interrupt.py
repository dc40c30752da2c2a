"""Contract sections 11 and 12: timeouts, deadly samples, Ctrl-C, and the end of the main process."""

import os
import select
import signal
import sys

import psutil
import pytest

from tests.parity.datasets import Deadly, Gated, Squares
from tests.parity.support import alive, children, program, raises, samples, wait_until


def test_timeout(loader_class):
    dataset = Gated(4, held=1)
    iterator = iter(loader_class(dataset, num_workers=1, timeout=1))
    assert next(iterator).tolist() == [0]
    with raises(RuntimeError, match="^DataLoader timed out after 1 seconds"):
        next(iterator)
    dataset.gate.set()


def test_no_timeout_while_batches_come(loader_class):
    assert samples(loader_class(Squares(6), num_workers=2, timeout=240)) == [i * i for i in range(6)]


@pytest.mark.parametrize("how", ["signal", "exit"])
def test_sample_that_always_kills_its_worker(loader_class, how):
    before = children()
    loader = loader_class(Deadly(how), num_workers=1)
    with raises(RuntimeError, match="^DataLoader worker .* exited unexpectedly"):
        list(loader)
    assert wait_until(lambda: children() <= before)


@pytest.mark.parametrize("target", ["process", "group"])
@pytest.mark.sampled
def test_interrupt(loader_name, target, tmp_path):
    with program("interrupt", loader_name, str(tmp_path)) as running:
        assert wait_until(lambda: len(list(tmp_path.iterdir())) == 3), "it, and each of its workers, leaves a file"
        workers = psutil.Process(running.pid).children(recursive=True)
        (os.kill if target == "process" else os.killpg)(running.pid, signal.SIGINT)
        out, err = running.communicate(timeout=240)
        assert (out, err, running.returncode) == ("interrupted\n", "", 0)
        assert wait_until(lambda: not any(map(alive, workers)))


def test_workers_end_when_the_main_process_is_killed(loader_name):
    if loader_name == "torch" and sys.version_info >= (3, 14):
        pytest.skip("torch's workers of a fork server take the server for the trainer, and stay")
    with program("wait", loader_name) as running:
        assert wait_until(lambda: bool(select.select([running.stdout], [], [], 0)[0]))
        workers = [psutil.Process(int(pid)) for pid in running.stdout.readline().split()]
        assert len(workers) >= 2
        running.kill()
        running.wait(timeout=240)
        assert wait_until(lambda: not any(map(alive, workers)))


def test_interpreter_ends_with_workers_alive(loader_name):
    with program("leave", loader_name) as running:
        out, err = running.communicate(timeout=240)
        assert (err, running.returncode) == ("", 0)
        workers = [int(pid) for pid in out.split()]
        assert len(workers) >= 2
        assert wait_until(lambda: not any(psutil.pid_exists(pid) and alive(psutil.Process(pid)) for pid in workers))


def test_dropping_an_iterator_ends_its_workers(loader_class):
    before = children()
    iterator = iter(loader_class(Squares(50), num_workers=2))
    next(iterator)
    assert len(children() - before) >= 2
    del iterator
    assert wait_until(lambda: children() <= before)
