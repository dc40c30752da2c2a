"""Exact instruction counts of operations, where there are no counters: each runs alone under valgrind's callgrind.

A program that runs under valgrind can switch its instrumentation on and off by a pattern of instructions that does
nothing elsewhere. `attach` lets a recorder's probe do so around every operation; it does nothing in other programs.
"""

import ctypes
import mmap
import platform
from collections.abc import Sequence

from headrace.trace.probe import Probe

_REQUEST = bytes.fromhex(
    "4889f8"  # mov rax, rdi: the request and its arguments
    "31d2"  # xor edx, edx: the answer when there is no valgrind
    "48c1c703 48c1c70d 48c1c73d 48c1c733"  # rol rdi, by 3 + 13 + 61 + 51 = 128 bits: as it was
    "4887db"  # xchg rbx, rbx
    "4889d0"  # mov rax, rdx
    "c3"
)
_RUNNING = 0x1001
_TOOL = ord("C") << 24 | ord("T") << 16
_ZERO, _DUMP_AT, _START, _STOP = _TOOL + 1, _TOOL + 3, _TOOL + 4, _TOOL + 5


def attach(probe: Probe, names: Sequence[str], limit: str) -> None:
    """Let the first calls of a probe's operations be measured, if valgrind is there; ``names`` by number, from 1 on."""
    measured = measuring(limit)
    if measured is not None:
        probe.hook(
            lambda number: measured.enter(names[number - 1]),
            lambda number: measured.leave(names[number - 1]),
        )


def measuring(limit: str) -> "Callgrind | None":
    """A counter for the first ``limit`` calls of each operation in this process, or None without valgrind."""
    if not limit.isdigit() or platform.machine() != "x86_64":
        return None
    found = Callgrind(int(limit))
    return found if found.present else None


class Callgrind:
    """Measures the first calls of every operation, without what lies between them.

    Of an operation that consists of others only those are measured, as only those are in the trace.
    """

    def __init__(self, limit: int) -> None:
        """``limit``: calls of each operation to measure; later ones run at valgrind's plain speed."""
        self._limit = limit
        self._calls: dict[str, int] = {}
        self._inside: str | None = None
        self._page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._page.write(_REQUEST)
        entry = ctypes.addressof(ctypes.c_char.from_buffer(self._page))
        self._call = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)(entry)
        self._words = (ctypes.c_uint64 * 6)()

    @property
    def present(self) -> bool:
        """True under valgrind."""
        return self._request(_RUNNING) > 0

    def enter(self, operation: str) -> None:
        """Count from here."""
        self._inside = operation
        if self._calls.get(operation, 0) < self._limit:
            self._request(_START)
            self._request(_ZERO)  # what starting itself cost does not count

    def leave(self, operation: str) -> None:
        """Write what was counted, under the operation's name."""
        called, innermost = self._calls.get(operation, 0), self._inside == operation
        self._inside = None
        if called < self._limit and innermost:
            self._calls[operation] = called + 1
            name = ctypes.create_string_buffer(operation.encode())
            self._request(_DUMP_AT, ctypes.addressof(name))
            self._request(_STOP)

    def _request(self, code: int, argument: int = 0) -> int:
        self._words[0], self._words[1] = code, argument
        return int(self._call(ctypes.addressof(self._words)))
