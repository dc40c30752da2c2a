"""The processes of a loader: forked without the locks of others, deaf to the trainer's signals, never left behind."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from torch.utils.data import get_worker_info

import headrace
from headrace.engine.processes import forker, starting, worker_pool
from headrace.engine.worker.startup import forking
from tests.loader.data import Numbers, Once, Pairs, first
from tests.loader.support import PATIENCE, forkers, kill
from tests.parity.support import alive, raises, wait_until

LOCK = threading.Lock()


def locked(index: int) -> None:
    """A hook that takes a lock of the trainer's for a moment."""
    with LOCK:
        pass


class Held:
    """A thread that holds the lock while the block runs."""

    def __enter__(self):
        self._done, began = threading.Event(), threading.Event()

        def hold() -> None:
            with LOCK:
                began.set()
                self._done.wait()

        self._thread = threading.Thread(target=hold, name="holder")
        self._thread.start()
        assert began.wait(240)

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()


class Touched:
    """A hook that leaves a file."""

    def __init__(self, path: Path):
        self._path = path

    def __call__(self, index: int) -> None:
        self._path.touch()


class Numbered:
    """A ``worker_init_fn`` that adds the process's number to a file."""

    def __init__(self, path: Path):
        self._path = path

    def __call__(self, lane: int) -> None:
        with self._path.open("a") as file:
            file.write(f"{os.getpid()}\n")


class LockedNumbers(Numbers):
    def __iter__(self):
        for number in super().__iter__():
            locked(number)
            yield number


class Both:
    """Two hooks."""

    def __init__(self, *hooks):
        self.hooks = hooks

    def __call__(self, index):
        for hook in self.hooks:
            hook(index)


class Stalls:
    """A hook that takes its time at one index, until a file is there."""

    def __init__(self, at: int, until: Path) -> None:
        self.at, self.until = at, until

    def __call__(self, index: int) -> None:
        while index == self.at and not self.until.exists():
            time.sleep(0.001)


class TestLocks:
    def test_a_worker_is_replaced_while_a_thread_holds_a_lock(self, workers):
        loader = headrace.DataLoader(Pairs(60, hook=locked), batch_size=5, num_workers=2, timeout=PATIENCE)
        iterator = iter(loader)
        indices = next(iterator)[0].tolist()
        with Held():
            for process in workers():
                kill(process)
            indices += [index for batch in iterator for index in batch[0].tolist()]
        assert indices == list(range(60))
        assert loader.stats().restarts >= 1

    def test_a_stream_goes_on_while_a_thread_holds_a_lock(self, workers):
        loader = headrace.DataLoader(
            LockedNumbers(60), batch_size=5, num_workers=2, timeout=PATIENCE, loading=headrace.Loading(repeats=True)
        )
        iterator = iter(loader)
        numbers = next(iterator).tolist()
        with Held():
            for process in workers():
                kill(process)
            numbers += [number for batch in iterator for number in batch.tolist()]
        assert sorted(numbers) == list(range(60))

    def test_a_spare_is_started_while_a_thread_holds_a_lock(self, tmp_path):
        """The one worker is held up by sample 40, so somebody must stand in for the rest to come."""
        dataset = Pairs(400, hook=Both(locked, Stalls(40, tmp_path / "go")), seconds=0.001)
        loader = headrace.DataLoader(
            dataset, batch_size=4, num_workers=1, timeout=PATIENCE, in_order=False,
            scheduling=headrace.Scheduling(spares=1), shuffle=False,
        )  # fmt: skip
        iterator = iter(loader)
        indices = next(iterator)[0].tolist()
        with Held():
            while len(indices) < 60:
                indices += next(iterator)[0].tolist()
            assert loader.stats().spares >= 1
        (tmp_path / "go").touch()
        indices += [index for batch in iterator for index in batch[0].tolist()]
        assert sorted(indices) == list(range(400))


class TestForker:
    def test_python_has_nothing_to_say_about_its_forks(self, workers):
        """It warns where a process with several threads forks: at ``iter()``, as with torch, and never after."""
        loader = headrace.DataLoader(Pairs(60), batch_size=5, num_workers=2, timeout=PATIENCE)
        with Held():
            iterator = iter(loader)
            next(iterator)
            for process in workers():
                kill(process)
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                for _ in iterator:
                    pass
        assert loader.stats().restarts >= 1
        assert [str(warning.message) for warning in told] == []

    def test_the_first_batches_do_not_wait_for_it(self, tmp_path, monkeypatch):
        forked = []

        def fork(*arguments):
            forked.append(wait_until((tmp_path / "made").exists))
            return forker.Forker(*arguments)

        monkeypatch.setattr(starting, "Forker", fork)
        loader = headrace.DataLoader(Pairs(20, hook=Touched(tmp_path / "made")), num_workers=2, timeout=PATIENCE)
        assert len(list(loader)) == 20
        assert forked == [True]

    def test_there_is_one_again_in_the_next_epoch(self, workers):
        loader = headrace.DataLoader(Pairs(60), batch_size=5, num_workers=2, timeout=PATIENCE, persistent_workers=True)
        iterator = iter(loader)
        next(iterator)
        for process in (*forkers(), *workers()):
            kill(process)
        with pytest.warns(RuntimeWarning, match="is gone"):
            for _ in iterator:
                pass
        iterator = iter(loader)
        assert len(forkers()) == 1
        for process in workers():
            kill(process)
        assert sum(len(batch[0]) for batch in iterator) == 60

    def test_one_that_was_killed_unnoticed_is_replaced_in_the_next_epoch(self, workers):
        loader = headrace.DataLoader(Pairs(60), batch_size=5, num_workers=2, timeout=PATIENCE, persistent_workers=True)
        assert len(list(loader)) == 12
        (before,) = forkers()
        kill(before)
        assert wait_until(lambda: not alive(before))
        iterator = iter(loader)
        assert len(forkers()) == 1
        for process in workers():
            kill(process)
        assert sum(len(batch[0]) for batch in iterator) == 60
        assert loader.stats().restarts >= 1

    def test_it_ends_with_the_iteration(self):
        loader = headrace.DataLoader(Pairs(20), num_workers=2)
        iterator = iter(loader)
        next(iterator)
        assert len(forkers()) == 1
        for _ in iterator:
            pass
        assert not forkers()

    def test_there_is_none_where_workers_inherit_nothing(self):
        loader = headrace.DataLoader(Pairs(4), num_workers=1, multiprocessing_context="spawn")
        iterator = iter(loader)
        assert not forkers()
        assert len(list(iterator)) == 4

    def test_every_sample_comes_once_though_it_was_killed(self, workers):
        """With the workers, as the out-of-memory killer may do."""
        loader = headrace.DataLoader(Pairs(60), batch_size=5, num_workers=2, timeout=PATIENCE)
        iterator = iter(loader)
        indices = next(iterator)[0].tolist()
        for process in (*forkers(), *workers()):
            kill(process)
        with pytest.warns(RuntimeWarning, match="the process that replaces workers is gone"):
            indices += [index for batch in iterator for index in batch[0].tolist()]
        assert indices == list(range(60))

    def test_a_worker_of_it_dies_after_it_was_killed(self, workers):
        loader = headrace.DataLoader(Pairs(200), batch_size=5, num_workers=1, timeout=PATIENCE)
        iterator = iter(loader)
        indices = next(iterator)[0].tolist()
        kill(workers()[0])
        indices += next(iterator)[0].tolist()
        while not loader.stats().restarts:
            indices += next(iterator)[0].tolist()
        forked = workers()
        for process in (*forkers(), *forked):
            kill(process)
        with pytest.warns(RuntimeWarning, match="is gone"):
            indices += [index for batch in iterator for index in batch[0].tolist()]
        assert indices == list(range(200))
        assert wait_until(lambda: not any(map(alive, forked)))

    def test_a_worker_that_it_forked_and_told_nobody_of_does_not_begin(self, workers, monkeypatch, tmp_path):
        """Killed between the two: with the worker that is forked instead, two would have been in one lane."""
        start = forking._ForkServer._start

        def start_and_die(*arguments):
            (tmp_path / "untold").write_text(str(start(*arguments)))
            os.kill(os.getpid(), signal.SIGKILL)

        monkeypatch.setattr(forking._ForkServer, "_start", start_and_die)
        loader = headrace.DataLoader(
            Pairs(60), batch_size=5, num_workers=1, timeout=PATIENCE, worker_init_fn=Numbered(tmp_path / "begun")
        )
        iterator = iter(loader)
        indices = next(iterator)[0].tolist()
        kill(workers()[0])
        with pytest.warns(RuntimeWarning, match="is gone"):
            indices += [index for batch in iterator for index in batch[0].tolist()]
        assert indices == list(range(60))
        untold = (tmp_path / "untold").read_text()
        assert wait_until(lambda: untold not in {str(each.pid) for each in psutil.process_iter() if alive(each)})
        begun = (tmp_path / "begun").read_text().split()
        assert len(begun) == 2
        assert untold not in begun

    def test_one_that_does_not_answer_is_given_up(self, workers, monkeypatch):
        monkeypatch.setattr(forker, "ANSWER_SECONDS", 0.2)
        loader = headrace.DataLoader(Pairs(60), batch_size=5, num_workers=2, timeout=PATIENCE)
        iterator = iter(loader)
        indices = next(iterator)[0].tolist()
        forkers()[0].suspend()
        for process in workers():
            kill(process)
        with pytest.warns(RuntimeWarning, match="is gone"):
            indices += [index for batch in iterator for index in batch[0].tolist()]
        assert indices == list(range(60))

    def test_one_that_was_stopped_keeps_no_end_waiting(self):
        iterator = iter(headrace.DataLoader(Pairs(20), num_workers=2))
        next(iterator)
        forkers()[0].suspend()
        began = time.monotonic()
        iterator.close()
        assert time.monotonic() - began < forker.ANSWER_SECONDS / 2
        assert not forkers()

    def test_nobody_else_has_the_trainers_end_of_its_channel(self):
        """Or the trainer's death would not be heard of there."""
        before = sockets(os.getpid())
        iterator = iter(headrace.DataLoader(Pairs(20), num_workers=2))
        next(iterator)
        ours = sockets(os.getpid()) - before
        assert len(ours) == 1
        assert not ours & sockets(forkers()[0].pid)

    def test_how_a_worker_of_it_ended_is_known(self, tmp_path):
        loader = headrace.DataLoader(
            Pairs(10, hook=Both(Once(tmp_path / "once", 3), Segfault(3))), num_workers=1, timeout=PATIENCE
        )
        with raises(headrace.WorkerDied, match="SIGSEGV.*sample 3"):
            list(loader)

    def test_replaced_workers_are_like_the_others(self, workers):
        loader = headrace.DataLoader(Told(40), batch_size=None, num_workers=1, collate_fn=same, timeout=PATIENCE)
        iterator = iter(loader)
        before = next(iterator)
        kill(workers()[0])
        after = list(iterator)[-1]
        assert after.pop("pid") != before.pop("pid")
        assert after == before

    def test_the_trainer_may_be_killed(self):
        """Neither the workers, nor the forker, nor its workers outlive it."""
        assert_ends_with(OUTLIVED, says="replaced", processes=3)

    def test_a_worker_in_c_code_does_not_outlive_the_trainer(self):
        """It keeps the GIL, so no thread of its own can see that the trainer is gone."""
        assert_ends_with(DEAF, says="deaf", processes=2)

    def test_what_is_printed_comes_once(self):
        """Text that waits in the trainer's buffer is not written by processes forked from it."""
        done = subprocess.run(
            [sys.executable, "-c", PRINTED], cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=240,
            check=True,
        )  # fmt: skip
        assert done.stdout.split() == ["before", "during", "after"]


def sockets(pid: int) -> set[str]:
    """What a process has open of them."""
    names = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    return {name for name in names if name.startswith("socket:")}


def assert_ends_with(trainer: str, says: str, processes: int) -> None:
    """Kill such a program once it has said that: all its processes end, and there were so many."""
    program = subprocess.Popen(
        [sys.executable, "-c", trainer], cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True
    )
    with program:
        try:
            assert program.stdout.readline().strip() == says
            others = psutil.Process(program.pid).children(recursive=True)
        finally:
            program.kill()
        assert len(others) == processes
        assert wait_until(lambda: not any(map(alive, others)))


OUTLIVED = """
import multiprocessing, os, signal, sys, psutil, headrace
multiprocessing.set_start_method("fork")  # typed in: nobody else finds what it has
from tests.loader.data import Pairs
loader = headrace.DataLoader(Pairs(1000), num_workers=2)
iterator = iter(loader)
next(iterator)
workers = [child for child in psutil.Process().children() if child.name() == "pt_data_worker"]
for worker in workers:  # all of them: if one were left, it might be done before anybody misses the other
    os.kill(worker.pid, signal.SIGKILL)
while not all(worker.status() == "zombie" for worker in workers):
    pass
while loader.stats().restarts < 2:
    next(iterator)
print("replaced", flush=True)
signal.pause()
"""

DEAF = """
import ctypes, multiprocessing, os, signal, headrace
multiprocessing.set_start_method("fork")  # as above
heard, said = os.pipe()
class Deaf:
    def __len__(self):
        return 1
    def __getitem__(self, index):
        os.write(said, b"!")
        ctypes.PyDLL(None).sleep(600)
iterator = iter(headrace.DataLoader(Deaf(), num_workers=1))
os.read(heard, 1)
print("deaf", flush=True)
signal.pause()
"""

PRINTED = """
import multiprocessing, os, signal, psutil, headrace
multiprocessing.set_start_method("fork")  # as above
from tests.loader.data import Pairs
print("before")
loader = headrace.DataLoader(Pairs(100), num_workers=1)
iterator = iter(loader)
print("during")
next(iterator)
os.kill(next(c.pid for c in psutil.Process().children() if c.name() == "pt_data_worker"), signal.SIGKILL)
for _ in iterator:
    pass
assert loader.stats().restarts == 1
print("after")
"""


class Segfault:
    """A hook that ends its process by SIGSEGV, at one index."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __call__(self, index: int) -> None:
        if index == self.at:
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGSEGV)


def same(sample):
    return sample


class Told(Pairs):
    """What a worker knows of itself."""

    def __getitem__(self, index):
        time.sleep(0.001)
        info = get_worker_info()
        status = Path("/proc/self/status").read_text().splitlines()
        return {
            "pid": os.getpid(),
            "worker": (info.id, info.num_workers, info.seed),
            "daemon": multiprocessing.current_process().daemon,
            "threads": torch.get_num_threads(),
            "name": Path("/proc/self/comm").read_text(),
            "signals": [line for line in status if line.startswith(("SigBlk", "SigIgn"))],
        }


@contextlib.contextmanager
def handling(kind: int, handler):
    before = signal.signal(kind, handler)
    try:
        yield
    finally:
        signal.signal(kind, before)


class Signals(Pairs):
    """Sends its process a signal, and lives on if it may."""

    def __init__(self, n: int, kind: int, at: int, marker: Path) -> None:
        super().__init__(n)
        self.kind, self.at, self.marker = kind, at, marker

    def __getitem__(self, index):
        if index == self.at and first(self.marker):
            os.kill(os.getpid(), self.kind)
        return super().__getitem__(index)


class TestSignals:
    @pytest.mark.parametrize("kind", [signal.SIGUSR1, signal.SIGHUP, signal.SIGINT, signal.SIGWINCH])
    def test_what_the_trainer_handles_does_nothing_to_a_worker(self, kind, tmp_path):
        """A job manager sends it to every process of the job."""
        ran = tmp_path / "ran"
        with handling(kind, lambda *_: ran.touch()):
            loader = headrace.DataLoader(Signals(20, kind, 7, tmp_path / "sent"), num_workers=2, timeout=PATIENCE)
            assert [int(index) for index, _ in loader] == list(range(20))
        assert loader.stats().restarts == 0
        assert not ran.exists()

    def test_sigterm_ends_a_worker_and_runs_no_handler_there(self, tmp_path):
        ran = tmp_path / "ran"
        with handling(signal.SIGTERM, lambda *_: ran.touch()):
            data = Signals(20, signal.SIGTERM, 7, tmp_path / "sent")
            loader = headrace.DataLoader(data, num_workers=2, timeout=PATIENCE)
            assert [int(index) for index, _ in loader] == list(range(20))
        assert loader.stats().restarts == 1
        assert not ran.exists()

    def test_an_event_loop_of_the_trainer_does_not_hear_workers(self, tmp_path):
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        try:
            with handling(signal.SIGALRM, lambda *_: None):  # which workers keep, as they would with torch
                data = Signals(20, signal.SIGALRM, 7, tmp_path / "sent")
                loader = headrace.DataLoader(data, num_workers=2, timeout=PATIENCE)
                assert [int(index) for index, _ in loader] == list(range(20))
            with contextlib.suppress(BlockingIOError):
                assert signal.SIGALRM not in os.read(reader, 100)
        finally:
            signal.set_wakeup_fd(before)
            os.close(reader)
            os.close(writer)

    def test_the_mask_of_the_trainer_is_inherited(self, workers):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        try:
            loader = headrace.DataLoader(Masked(40), batch_size=None, num_workers=1, collate_fn=same, timeout=PATIENCE)
            iterator = iter(loader)
            masks = [next(iterator)]
            kill(workers()[0])
            masks += list(iterator)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert set(masks) == {tuple(sorted({*before, signal.SIGUSR2}))}

    def test_children_are_nobodys_business(self):
        """A trainer that ignores SIGCHLD, so that the system reaps for it, or that waits for every child itself."""
        with handling(signal.SIGCHLD, signal.SIG_IGN):
            loader = headrace.DataLoader(Pairs(20), num_workers=2, timeout=PATIENCE)
            assert len(list(loader)) == 20
        assert not multiprocessing.active_children()

    def test_a_worker_dies_while_the_trainer_ignores_its_children(self, tmp_path):
        with handling(signal.SIGCHLD, signal.SIG_IGN):
            data = Pairs(20, hook=Once(tmp_path / "once", 7))
            loader = headrace.DataLoader(data, num_workers=2, timeout=PATIENCE)
            assert len(list(loader)) == 20
            assert loader.stats().restarts == 1
        assert not multiprocessing.active_children()


class Masked(Pairs):
    def __getitem__(self, index):
        time.sleep(0.001)
        return tuple(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))


def never(worker: int) -> None:
    """A worker_init_fn that does not return."""
    threading.Event().wait()


class TestProgress:
    @pytest.mark.parametrize("dataset", [Pairs(8), Numbers(8)], ids=["map", "stream"])
    def test_the_timeout_names_a_worker_that_never_begins(self, dataset):
        loader = headrace.DataLoader(dataset, num_workers=1, timeout=1, worker_init_fn=never)
        with raises(RuntimeError, match=r"timed out after 1.*worker 0 \(pid \d+\) is still in worker_init_fn"):
            list(loader)

    def test_a_warning_names_it_without_a_timeout(self, monkeypatch):
        monkeypatch.setattr(worker_pool, "START_SECONDS", 0.1)
        loader = headrace.DataLoader(Pairs(8), num_workers=1, worker_init_fn=Late(0.5))
        with pytest.warns(UserWarning, match=r"worker 0 \(pid \d+\) is still in worker_init_fn"):
            assert len(list(loader)) == 8

    @pytest.mark.parametrize(
        ("method", "says"), [("fork", "starts workers without inherited locks"), ("spawn", "the machine .* is busy")]
    )
    def test_a_warning_says_what_a_worker_started_so_may_wait_for(self, method, says, monkeypatch):
        monkeypatch.setattr(worker_pool, "START_SECONDS", 0.0)
        never_at_work = SimpleNamespace(
            started=lambda lane: None,
            begun=lambda lane: 0,
            is_at_work=lambda lane: False,
            is_initializing=lambda lane: False,
        )
        late = worker_pool.Overdue(never_at_work, method)
        late.started(0, 4711)
        with pytest.warns(UserWarning, match=rf"worker 0 \(pid 4711\) is still starting, .*{says}"):
            late.warn()

    def test_a_warning_names_a_sample_that_does_not_end(self, monkeypatch, tmp_path):
        monkeypatch.setattr(worker_pool, "SAMPLE_SECONDS", 0.1)
        monkeypatch.setattr(worker_pool, "START_SECONDS", 60.0)
        release = threading.Timer(1.0, (tmp_path / "go").touch)
        release.start()
        loader = headrace.DataLoader(Pairs(8, hook=Stalls(3, tmp_path / "go")), num_workers=1)
        with pytest.warns(UserWarning, match=r"worker 0 \(pid \d+\) has been making sample 3 for"):
            assert len(list(loader)) == 8
        release.join()


class Late:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, worker: int) -> None:
        time.sleep(self.seconds)


class TestSurroundings:
    def test_what_multiprocessing_shows(self):
        loader = headrace.DataLoader(Pairs(50), num_workers=2)
        iterator = iter(loader)
        next(iterator)
        children = multiprocessing.active_children()
        assert len(children) == 2
        assert all(child.daemon for child in children)
        del iterator
        assert not multiprocessing.active_children()

    def test_a_process_forked_by_the_user_takes_nothing_away(self):
        loader = headrace.DataLoader(Pairs(50), batch_size=5, num_workers=2, timeout=PATIENCE)
        iterator = iter(loader)
        indices = next(iterator)[0].tolist()
        child = os.fork()
        if child == 0:
            try:
                loader.close()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        indices += [index for batch in iterator for index in batch[0].tolist()]
        assert indices == list(range(50))
        assert loader.stats().restarts == 0

    def test_a_thread_may_begin_and_end(self, tmp_path):
        """Workers belong to the process, not to the thread that called iter()."""
        loader = headrace.DataLoader(
            Pairs(50, hook=Once(tmp_path / "once", 30)), batch_size=5, num_workers=2, timeout=PATIENCE
        )
        found = []
        thread = threading.Thread(target=lambda: found.append(iter(loader)))
        thread.start()
        thread.join()
        assert [index for batch in found.pop() for index in batch[0].tolist()] == list(range(50))
