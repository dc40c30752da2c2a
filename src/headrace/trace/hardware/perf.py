"""Samples of a program and all it starts, taken by the kernel: perf events without the ``perf`` program.

The events are opened for the calling thread on each processor, switched off, to be inherited, and to be switched on by
``exec``. So the program started next, and nothing of this process, is sampled, with its threads and children. The
kernel writes records to a ring per processor; this process empties the rings into a file (``records`` reads it).
"""

import ctypes
import errno
import fcntl
import json
import mmap
import os
import platform
import resource
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Self

from headrace.core.errors import TraceError
from headrace.trace.hardware import perf_events as E
from headrace.trace.hardware import records as R

_ATTR = struct.Struct("<IIQQQQQIIQQQQIi")
_SYSCALL = {"x86_64": 298, "aarch64": 241}
_DISABLED, _INHERIT, _NO_KERNEL, _NO_HYPERVISOR = 1 << 0, 1 << 1, 1 << 5, 1 << 6
_MMAP, _COMM, _FREQUENCY, _ENABLE_ON_EXEC, _TASK, _WATERMARK = (1 << bit for bit in (8, 9, 10, 12, 13, 14))
_SAMPLE_ID_ALL, _MMAP2, _COMM_EXEC, _USE_CLOCK = 1 << 18, 1 << 23, 1 << 24, 1 << 25
_SET_OUTPUT, _GET_ID = 0x2405, 0x80082407
_CLOSE_ON_EXEC = 8
_MONOTONIC = 1
_TIMES = 3  # read_format: time enabled, time running
_HEAD, _TAIL = 1024, 1032
PAGES = 128
"""Of a ring: what an unprivileged user may lock per processor (perf_event_mlock_kb)."""

ABSENT = {errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV, errno.ENXIO, errno.EINVAL}
"""Answers that mean: this machine has no such event."""


class PerfSampler:
    """Open it, start the program from the same thread, `drain` now and then, `finish` when the program has ended."""

    def __init__(self, path: Path, names: Sequence[str] | None, frequency: int) -> None:
        """``names``: events that must be there; None for the usual ones, as far as they are. Raises ``TraceError``."""
        self.kernel = True
        self._files: list[tuple[E.Event, int]] = []
        self._rings: list[mmap.mmap] = []
        self._ids: dict[int, str] = {}
        self._frequency = frequency
        self._limits: tuple[int, int] | None = None
        try:
            self._spool: IO[bytes] = path.open("wb")
        except OSError as error:
            raise TraceError(
                f"{path}: cannot be written ({error.strerror}); name a file in a directory that exists"
            ) from error
        try:
            self._open(names)
        except BaseException:
            self.close()
            path.unlink(missing_ok=True)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def events(self) -> list[str]:
        return list(dict.fromkeys(self._ids.values()))

    def drain(self) -> None:
        """Empty the rings into the file."""
        for ring in self._rings:
            head = int.from_bytes(ring[_HEAD : _HEAD + 8], "little")
            tail = int.from_bytes(ring[_TAIL : _TAIL + 8], "little")
            if head == tail:
                continue
            size = len(ring) - mmap.PAGESIZE  # its first page is the kernel's: head and tail, which only grow
            start, length = tail % size, head - tail
            first = min(length, size - start)
            at = mmap.PAGESIZE + start
            self._spool.write(ring[at : at + first] + ring[mmap.PAGESIZE : mmap.PAGESIZE + length - first])
            ring[_TAIL : _TAIL + 8] = head.to_bytes(8, "little")

    def finish(self) -> None:
        """Write the rest and the exact totals."""
        self.drain()
        totals: dict[str, list[int]] = {}
        for event, file in self._files:
            count, enabled, running = struct.unpack("<QQQ", os.read(file, 24))
            known = totals.setdefault(event.name, [0, 0, 0])
            totals[event.name] = [known[0] + count, known[1] + enabled, known[2] + running]
        self._note({"totals": totals})
        self.close()

    def close(self) -> None:
        for ring in self._rings:
            ring.close()
        for _, file in self._files:
            os.close(file)
        self._rings, self._files = [], []
        self._spool.close()
        self.as_before()
        self._limits = None  # closed twice, it must not undo what somebody else has set since

    def as_before(self) -> None:
        """Undo what sampling needed of this process: for the program, before it is executed."""
        if self._limits is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)

    def _note(self, facts: dict[str, object]) -> None:
        self._spool.write(R.note(json.dumps(facts).encode()))

    def _open(self, names: Sequence[str] | None) -> None:
        processors = _online()
        wanted = [E.event(name) for name in dict.fromkeys([E.TIME, *(E.USUAL if names is None else names)])]
        self._limits = _raised_limit(len(processors) * (len(wanted) + 1))
        for processor in processors:
            leader = -1
            for event in list(wanted):
                file = self._event(event, processor, tracking=leader < 0)
                if file < 0:
                    if names is not None and event.name in names:
                        raise TraceError(
                            f"--events {event.name}: this machine cannot count it (a virtual machine often has "
                            "no counters); leave it out"
                        )
                    wanted.remove(event)
                    continue
                self._files.append((event, file))
                identity = fcntl.ioctl(file, _GET_ID, bytes(8))
                self._ids[int.from_bytes(identity, "little")] = event.name
                if leader < 0:
                    leader = file
                    self._rings.append(_ring(file))
                else:
                    fcntl.ioctl(file, _SET_OUTPUT, leader)
        self._note({"kernel": self.kernel, "frequency": self._frequency})
        paces = {event.name: E.pace(event, self._frequency) for event in wanted}
        self._note({"periods": {name: pace for name, (pace, per_second) in paces.items() if not per_second}})
        known = list(self._ids.items())
        for at in range(0, len(known), 100):  # a record has less than 64 KiB
            self._note({"events": {str(identity): name for identity, name in known[at : at + 100]}})

    def _event(self, event: E.Event, processor: int, *, tracking: bool) -> int:
        """A descriptor, or -1 where there is no such event."""
        flags = _DISABLED | _INHERIT | _ENABLE_ON_EXEC | _SAMPLE_ID_ALL | _USE_CLOCK | _NO_HYPERVISOR | _WATERMARK
        pace, per_second = E.pace(event, self._frequency)
        if per_second:
            flags |= _FREQUENCY
        if tracking:  # one event per processor tells of mappings, names and forks
            flags |= _MMAP | _MMAP2 | _COMM | _COMM_EXEC | _TASK
        while True:
            file, code = _perf_event_open(event, pace, flags if self.kernel else flags | _NO_KERNEL, processor)
            if file >= 0:
                return file
            if code in {errno.EACCES, errno.EPERM} and self.kernel:
                self.kernel = False  # others may look at their own code only
                continue
            if code in ABSENT and event.name != E.TIME:
                return -1
            raise TraceError(_refusal(code))


def _perf_event_open(event: E.Event, pace: int, flags: int, processor: int) -> tuple[int, int]:
    number = _SYSCALL.get(platform.machine())
    if number is None or platform.system() != "Linux":
        raise TraceError(
            f"samples are taken on Linux on x86-64 and arm64, not on {platform.system()} {platform.machine()}"
        )
    attributes = _ATTR.pack(
        event.type,
        _ATTR.size,
        event.config,
        pace,
        R.SAMPLE_TYPE if flags & _FREQUENCY else R.SAMPLE_TYPE_FIXED,
        _TIMES,
        flags,
        PAGES // 2 * mmap.PAGESIZE,  # wake nobody before that: a wake-up per sample costs more than the sample
        0,
        *(0, 0, 0, 0, 0),
        _MONOTONIC,
    )
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (ctypes.c_long(0), ctypes.c_long(processor), ctypes.c_long(-1), ctypes.c_long(_CLOSE_ON_EXEC))
    file = int(libc.syscall(ctypes.c_long(number), ctypes.create_string_buffer(attributes, _ATTR.size), *arguments))
    return file, ctypes.get_errno()


def _refusal(code: int) -> str:
    if code in {errno.EACCES, errno.EPERM}:
        try:
            level = Path("/proc/sys/kernel/perf_event_paranoid").read_text().strip()
        except OSError:
            level = "unknown"
        return (
            f"the kernel does not allow sampling (perf_event_paranoid is {level}); an administrator can allow it with "
            "'sysctl kernel.perf_event_paranoid=2' (1 to see kernel functions too), a container needs "
            "--cap-add PERFMON or a seccomp profile that allows perf_event_open"
        )
    if code == errno.ENOSYS:
        return "this kernel has no perf events; 'headrace trace hw --callgrind' works without them"
    if code == errno.EMFILE:
        return "too many open files: sampling takes one per event and processor; raise the limit with 'ulimit -n'"
    return f"the kernel refused to sample ({os.strerror(code)}); 'headrace trace hw --callgrind' works without"


def _ring(file: int) -> mmap.mmap:
    """A ring of the event, as large as may be locked."""
    pages = PAGES
    while True:
        try:
            return mmap.mmap(file, (pages + 1) * mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        except OSError as error:
            if error.errno not in {errno.EPERM, errno.ENOMEM} or pages == 1:
                raise TraceError(
                    f"no memory for samples ({error.strerror}); raise kernel.perf_event_mlock_kb or 'ulimit -l'"
                ) from error
            pages //= 2


def _online() -> list[int]:
    """Numbers of the processors that are in use."""
    found: list[int] = []
    for part in Path("/sys/devices/system/cpu/online").read_text().strip().split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def _raised_limit(count: int) -> tuple[int, int] | None:
    """Make room for so many more descriptors; the limits as they were, if they had to be changed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 256
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return None
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
    return soft, hard
