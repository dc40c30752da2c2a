"""How things are measured: CPU and memory of a process tree, isolated and interleaved runs."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import statistics
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Self, TypeVar

from benchmarks import clock
from benchmarks.clock import OutOfTime, check_time

K = TypeVar("K")
Figures = Mapping[str, Any]
TICKS = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")
SHARED = ("/dev/shm", "/memfd:", "/dev/zero", "/SYSV")


def descendants(root: int | None = None) -> list[int]:
    """Process ids of all living descendants of `root` (this process), parents first."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    queue = [root or os.getpid()]
    while queue:
        below = children.get(queue.pop(0), [])
        found += below
        queue += below
    return found


def tree_cpu() -> float:
    """CPU seconds (user + system) of this process and all it ever started.

    Living processes are read from their nanosecond CPU clocks, reaped children from rusage; a
    process that ends between two calls moves from the one to the other, so differences are exact.
    """
    reaped = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = time.process_time() + reaped.ru_utime + reaped.ru_stime
    for pid in descendants():
        try:
            total += time.clock_gettime((~pid << 3) | 2)  # the kernel's MAKE_PROCESS_CPUCLOCK
            fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
            total += (int(fields[13]) + int(fields[14])) / TICKS
        except OSError:
            continue
    return total


def tree_read() -> int:
    """Bytes that this process and all it ever started had read from storage; the page cache's are not among them."""
    total = 0
    for pid in [os.getpid(), *descendants()]:  # a process counts the children it reaped
        try:
            lines = (PROC / str(pid) / "io").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))
    return total


@dataclass(frozen=True)
class Memory:
    """Bytes and descriptors held by this process and its descendants at one moment."""

    total: int
    """Proportional set size: private memory plus this tree's share of what is mapped."""
    shared: int
    """Allocated bytes of the shared memory they map (tmpfs, memfd), each file counted once."""
    descriptors: int
    processes: int


def tree_memory() -> Memory:
    """Read /proc/*/smaps_rollup, maps and fd of the tree: some milliseconds."""
    total = descriptors = processes = 0
    shared: dict[str, int] = {}
    for pid in [os.getpid(), *descendants()]:
        folder = PROC / str(pid)
        try:
            rollup = (folder / "smaps_rollup").read_text().splitlines()[1:]
            maps = (folder / "maps").read_text().splitlines()
            files = list((folder / "fd").iterdir())
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Pss:"))
        descriptors += len(files)
        processes += 1
        for line in maps:
            span, mode, _, _, inode, *path = line.split(maxsplit=5)
            if mode[3] == "s" and path and path[0].startswith(SHARED):
                shared[inode] = _allocated(folder / "map_files" / span, files, int(inode))
    return Memory(total, sum(shared.values()), descriptors, processes)


def _allocated(mapped: Path, files: list[Path], inode: int) -> int:
    """Bytes that a mapped file really has, which may be far fewer than the mapping reserves.

    `map_files` needs privileges; without them an open descriptor of the file answers.
    """
    for path in (mapped, *files):
        with contextlib.suppress(OSError):
            found = path.stat()
            if found.st_ino == inode:
                return found.st_blocks * 512
    return 0


def machine_cpu() -> float:
    """CPU seconds the whole machine has been busy, time stolen by its host included."""
    user, nice, system, _, _, interrupt, soft, steal, *_ = (
        int(ticks) for ticks in (PROC / "stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + interrupt + soft + steal) / TICKS


@dataclass
class Meter:
    """Context manager: wall and CPU seconds of the tree between entry and exit."""

    wall: float = 0.0
    cpu: float = 0.0
    main: float = 0.0
    """CPU seconds of this process alone."""
    others: float = 0.0
    """Cores that the rest of the machine kept busy meanwhile: how much to trust `wall`."""
    _start: tuple[float, ...] = field(default=(), repr=False)

    def __enter__(self) -> Self:
        self._start = machine_cpu(), tree_cpu(), time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        wall, main = time.perf_counter(), time.process_time()
        ends = machine_cpu(), tree_cpu(), main, wall
        busy, self.cpu, self.main, self.wall = (end - start for end, start in zip(ends, self._start, strict=True))
        self.others = max(busy - self.cpu, 0.0) / self.wall


class RunError(RuntimeError):
    """An isolated run raised, died or did not end in time; the message is its last line."""


def _child(run: Callable[[], Figures], pipe: Connection) -> None:
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        pipe.send(("done", dict(run())))
    except BaseException as error:  # noqa: BLE001  everything a run can do wrong is a result to report
        if os.environ.get("BENCHMARKS_TRACEBACK"):
            traceback.print_exc()
        pipe.send(("failed", f"{type(error).__name__}: {error}".splitlines()[0]))


class Isolated:
    """One run in a process of its own, under way.

    Forked by default, so the run starts with torch imported and nothing else alive; `spawn` where
    CUDA is used. A run that exceeds `limit` seconds is killed with its workers.
    """

    def __init__(self, run: Callable[[], Figures], *, method: str = "fork", limit: float = 300.0) -> None:
        context = multiprocessing.get_context(method)
        self.pipe, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=_child, args=(run, theirs))  # type: ignore[attr-defined]
        self.process.start()
        theirs.close()
        self.limit = limit
        self.until = min(time.monotonic() + limit, clock.end())

    def end(self) -> None:
        """Kill it, with its workers; idempotent."""
        process = self.process
        if process.pid is not None and (process.is_alive() or descendants(process.pid)):
            _end_group(process.pid)
        process.join(5)
        self.pipe.close()

    def result(self) -> dict[str, Any]:
        """Its figures, waiting for them; RunError if there are none."""
        process = self.process
        try:
            if not self.pipe.poll(max(self.until - time.monotonic(), 0)):
                if time.monotonic() >= clock.end():
                    raise OutOfTime
                raise RunError(f"no result after {self.limit:.0f} s")
            try:
                state, figures = self.pipe.recv()
            except EOFError:
                process.join(5)
                raise RunError(f"the process ended with {process.exitcode}") from None
            process.join(10)
        finally:
            self.end()
        if state == "failed":
            raise RunError(figures)
        return dict(figures)


def isolated(run: Callable[[], Figures], *, method: str = "fork", limit: float = 300.0) -> dict[str, Any]:
    """Call `run` in a process of its own and return its figures; OutOfTime where there is none left for it."""
    check_time()
    return Isolated(run, method=method, limit=limit).result()


def _end_group(pgid: int) -> None:
    """Kill what an isolated run left behind: it was the leader of its own process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, 9)


@dataclass
class Runs:
    """All figures one arm of an experiment gave, one mapping per repeat."""

    figures: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, other: Runs) -> None:
        """More of the same arm."""
        self.figures += other.figures
        self.failures += other.failures

    def median(self, key: str) -> float:
        """Median over the repeats, NaN when there is none."""
        values = [float(run[key]) for run in self.figures if key in run]
        return statistics.median(values) if values else float("nan")

    def spread(self, key: str) -> str:
        """Smallest and largest value over the repeats, as text."""
        values = [float(run[key]) for run in self.figures if key in run]
        digits = 1 if values and max(values) < 100 else 0
        return f"{min(values):.{digits}f} – {max(values):.{digits}f}" if values else "-"


def disturbance(results: Mapping[str, Runs]) -> str:
    """How busy others kept the machine, as a note for the report."""
    others = [run["others"] for runs in results.values() for run in runs.figures if "others" in run]
    if not others:
        return "no run ended"
    return f"other processes used {statistics.median(others):.2f} cores (median), {max(others):.2f} at most"


def interleaved(
    arms: Mapping[str, Callable[[], Figures]],
    *,
    repeats: int,
    say: Callable[[str], None] = lambda _: None,
    method: str = "fork",
    limit: float = 300.0,
    at_once: int = 1,
) -> dict[str, Runs]:
    """Run every arm `repeats` times in isolation, A B C, C B A, A B C, …

    Neighbours in time share the machine's mood and drift cancels. An arm that fails twice is not
    tried again; its failures stay in the result. A repeat that would not end in time (`clock.shared`)
    is not begun, except the first; what does not end by the time set by `end_by` is given up, and
    raises OutOfTime where it is the first. `at_once` runs may be under way together: only for arms
    that leave nearly all of the machine to the others.
    """
    results = {name: Runs() for name in arms}

    def begun(names: list[str], count: str) -> Iterator[tuple[str, Isolated]]:
        for name in names:
            check_time()
            say(f"{count} {name}")
            yield name, Isolated(arms[name], method=method, limit=limit)

    for repeat in clock.rounds(repeats, say):
        names = [name for name in arms if len(results[name].failures) < 2]
        count = f"{repeat + 1}/{repeats}"
        queue = begun(names if repeat % 2 == 0 else names[::-1], count)
        with clock.unless_first(repeat), contextlib.closing(side_by_side(queue, at_once)) as ended:
            for name, one in ended:
                try:
                    results[name].figures.append(one.result())
                except RunError as failure:
                    results[name].failures.append(str(failure))
                    say(f"{count} {name} failed: {failure}")
    return results


def side_by_side(begun: Iterator[tuple[K, Isolated]], at_once: int) -> Generator[tuple[K, Isolated], None, None]:
    """So many runs under way at a time, each as soon as it has ended or its time is up; others are begun meanwhile.

    Nothing is left running once this is closed.
    """
    running: dict[Any, tuple[K, Isolated]] = {}
    try:
        while True:
            for key, one in islice(begun, at_once - len(running)):
                running[one.pipe] = key, one
            if not running:
                return
            soonest = min(running, key=lambda pipe: running[pipe][1].until)
            patience = running[soonest][1].until - time.monotonic()
            for pipe in wait(list(running), max(patience, 0)) or [soonest]:
                yield running.pop(pipe)
    finally:
        for _, one in running.values():
            one.end()
