"""Rules every test lives under: repeatable randomness, one native thread, and nothing left behind."""

import contextlib
import ctypes
import gc
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_sharer
import multiprocessing.resource_tracker
import os
import platform
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from headrace.engine.worker.randomness import generators
from tests.names import OURS

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so a shell starts what it puts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


pytest_plugins = ["tests.distribution", "tests.selection", "tests.watch", "tests.services.fixtures"]

SEED = 20_240_601
GRACE_S = 20.0
"""How long teardown may take after the test returned before what remains is a leak."""

# Forked children inherit OpenMP's locks but not its threads; with one thread there is no pool to miss.
torch.set_num_threads(1)

# What a test changes, its workers inherit, and they start at once. Not every Python's default: from 3.14 on that is a
# fork server, under which parity/test_start_methods and loader/test_forkserver look at what may differ.
multiprocessing.set_start_method("fork")

_PASSED = pytest.StashKey[bool]()


@pytest.fixture(autouse=True)
def seed() -> int:
    """The seed that Python's, numpy's and torch's global generators start each test from."""
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    return SEED


@dataclass(frozen=True)
class Holdings:
    """What this process holds of the machine, each thing under a stable identity with a name for people."""

    threads: dict[object, str]
    processes: dict[object, str]
    descriptors: dict[object, str]
    shared_memory: dict[object, str]
    exceptions: dict[object, str]
    locks: dict[object, str]

    @classmethod
    def now(cls) -> "Holdings":
        return cls(_threads(), _processes(), _descriptors(), _shared_memory(), _exceptions(), _locks())

    def still(self, later: "Holdings") -> "Holdings":
        """What of this is held later too."""
        return Holdings(
            *({key: name for key, name in kind.items() if key in now} for kind, now in zip(self, later, strict=True))
        )

    def __iter__(self) -> Iterator[dict[object, str]]:
        yield from (self.threads, self.processes, self.descriptors, self.shared_memory, self.exceptions, self.locks)

    def beyond(self, before: "Holdings") -> list[str]:
        """One line per kind of thing held now and not before; empty when nothing leaked."""
        descriptors = _new(self.descriptors, before.descriptors)
        if any("/dev/nvidia" in name for name in descriptors.values()):
            # The CUDA driver came up during this test. It keeps device files, event descriptors and sockets
            # until exit, and the anonymous ones among them cannot be told from a leak.
            descriptors = {}
        kinds = {
            "threads": _new(self.threads, before.threads),
            "child processes": _new(self.processes, before.processes),
            "file descriptors": descriptors,
            "/dev/shm entries": _new(self.shared_memory, before.shared_memory),
            "exceptions, as if they were still being handled": _new(self.exceptions, before.exceptions),
            "locks in shared memory": _new(self.locks, before.locks),
        }
        return [f"{kind}: {', '.join(sorted(new.values()))}" for kind, new in kinds.items() if new]


def _new(after: dict[object, str], before: dict[object, str]) -> dict[object, str]:
    return {key: name for key, name in after.items() if key not in before}


def _threads() -> dict[object, str]:
    # Python threads only: the native ones of torch and OpenMP start on first use and stay by design.
    # tqdm (under Lightning's progress bar) keeps one monitor thread per process.
    return {t: t.name for t in threading.enumerate() if type(t).__name__ != "TMonitor"}


TORCH_FILE = re.compile(r"torch_(\d+)_")
GET_ROBUST_LIST = {"x86_64": 274, "aarch64": 100}


def _locks() -> dict[object, str]:
    """The robust mutex that this thread took last and has not let go of.

    In memory that is unmapped then, it would have the thread's next one write to whatever lies there.
    """
    number = GET_ROBUST_LIST.get(platform.machine())
    if number is None:
        return {}
    head, size = ctypes.c_void_p(), ctypes.c_size_t()
    if ctypes.CDLL(None).syscall(number, 0, ctypes.byref(head), ctypes.byref(size)) or not head.value:
        return {}
    first = ctypes.c_void_p.from_address(head.value).value
    return {} if first in (None, head.value) else {first: f"at {first:#x}"}


def _descendants(pid: int) -> Iterator[psutil.Process]:
    """As psutil finds them, which looks at every process of the machine: this is done twice for every test."""
    if not Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").exists():  # some kernels do not say
        yield from psutil.Process(pid).children(recursive=True)
        return
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            children = [int(child) for child in (task / "children").read_text().split()]
        except OSError:  # it has ended
            continue
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                yield psutil.Process(child)
            yield from _descendants(child)


def _processes() -> dict[object, str]:
    found: dict[object, str] = {}
    for child in _descendants(os.getpid()):
        try:
            command = " ".join(child.cmdline())
        except psutil.ZombieProcess:
            if child.ppid() == os.getpid():  # others are reaped by their own parent
                found[child] = f"{child.pid} (dead but never waited for)"
            continue
        except psutil.NoSuchProcess:
            continue
        # One per process, started by multiprocessing on first use and ended by its parent's exit. The
        # workers a fork server starts are its children and do count.
        if "multiprocessing.resource_tracker import main" in command:
            continue
        if "multiprocessing.forkserver import main" in command:
            continue
        # torch's keeper of file-backed shared tensors: one per process as well.
        if "torch_shm_manager" in command:
            continue
        found[child] = f"{child.pid} ({command[:80]})"
    return found


def _descriptors() -> dict[object, str]:
    # The two helpers above each hold one pipe end open in this process for as long as it lives.
    helpers = {
        multiprocessing.resource_tracker._resource_tracker._fd,
        multiprocessing.forkserver._forkserver._forkserver_alive_fd,
    }
    found: dict[object, str] = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = entry.readlink()
        except FileNotFoundError:  # the descriptor that listed the directory
            continue
        if int(entry.name) not in helpers:
            found[entry, target] = f"fd {entry.name} -> {target}"
    return found


def _shared_memory() -> dict[object, str]:
    """What is ours in a folder that all programs of the machine share, by its name: our caches, and torch's files.

    Those are called after the process that made them. One whose process has ended was a worker's, or is nobody's.
    """
    found: dict[object, str] = {}
    for entry in Path("/dev/shm").iterdir():
        made_by = TORCH_FILE.match(entry.name)
        if OURS in entry.name or (made_by is not None and _is_ours_or_gone(int(made_by[1]))):
            found[entry] = entry.name
    return found


def _is_ours_or_gone(pid: int) -> bool:
    try:
        return pid == os.getpid() or psutil.Process() in psutil.Process(pid).parents()
    except psutil.NoSuchProcess:
        return True


def _exceptions() -> dict[object, str]:
    # One raised by a trace function may stay for good. Every later exception, and those of forked processes, would
    # show it as their cause.
    error = sys.exception()
    return {} if error is None else {error: repr(error)}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    if report.when == "call":
        item.stash[_PASSED] = report.passed
    return report


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves threads, processes, descriptors or shared memory; `leaks_ok(reason)` opts out.

    Only a test that passed is judged: the traceback of a failure keeps its frames, and what they own, alive.
    """
    marker = request.node.get_closest_marker("leaks_ok")
    if marker is not None:
        if not (marker.args and isinstance(marker.args[0], str)):
            pytest.fail("leaks_ok needs a reason", pytrace=False)
        yield
        return
    before = Holdings.now()
    yield
    if not request.node.stash.get(_PASSED, False):
        return
    after = Holdings.now()
    leaked = after.beyond(before)
    deadline = time.monotonic() + GRACE_S
    while leaked and time.monotonic() < deadline:
        gc.collect()
        # Sending a tensor to a process starts a thread with a socket that serves its descriptor for ever.
        multiprocessing.resource_sharer.stop(timeout=1)
        time.sleep(0.02)
        after = after.still(Holdings.now())
        leaked = after.beyond(before)
    if leaked:
        pytest.fail("the test left behind\n  " + "\n  ".join(leaked), pytrace=False)


@pytest.fixture
def unseeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose generator nobody has seeded, whatever tests did before."""
    torch.seed()
    monkeypatch.setattr(generators, "_OURS", torch.initial_seed())


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Tests and what they import stay: the collector need not look at all of it again and again."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Nor later, whenever a test has it look."""
    gc.enable()
    gc.collect()
    gc.freeze()
    if len(session.items) > MANY:
        _use_huge_pages()


PRIVATE_MEMORY = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p 0+ 00:00 0\s*(?:\[heap\])?$")
HUGE_PAGE, MADV_COLLAPSE = 2 << 20, 25
MANY = 100
"""So many tests are worth the time it takes, about half a second."""


def _use_huge_pages() -> None:
    """A fork copies the table of all pages, and what the tests import has 140,000: with its end it took 22 ms, now 10.

    In huge pages it is a few hundred; who writes to one gets usual ones. Where the kernel has none, it says so.
    """
    madvise = ctypes.CDLL(None).madvise
    for line in Path("/proc/self/maps").read_text().splitlines():
        if area := PRIVATE_MEMORY.match(line):
            begin, end = -(-int(area[1], 16) // HUGE_PAGE) * HUGE_PAGE, int(area[2], 16) // HUGE_PAGE * HUGE_PAGE
            if begin < end:
                madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), MADV_COLLAPSE)


def pytest_sessionfinish() -> None:
    """Some libraries look at exit for what was never collected."""
    gc.unfreeze()
