"""Names of what was executed: function, library, and whether it is the interpreter, native code or the kernel."""

import re
import shutil
import subprocess
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.trace.hardware.elf import opened
from headrace.trace.hardware.records import Change, Records

PYTHON, NATIVE, KERNEL, UNKNOWN = "python", "native", "kernel", "unknown"
_INTERPRETER = re.compile(r"^(python[0-9.]*t?|libpython[0-9.]*.*\.so.*)$")
_KALLSYMS = Path("/proc/kallsyms")


class Function(NamedTuple):
    """A function of a library. ``part`` is "python", "native", "kernel" or "unknown"."""

    name: str
    library: str
    part: str


class Spaces:
    """The address spaces of all processes, as they changed. A forked process begins with its parent's."""

    def __init__(self, changes: Iterable[Change]) -> None:
        self._mappings: dict[int, list[Change]] = defaultdict(list)
        self._execs: dict[int, list[int]] = defaultdict(list)
        self._before: dict[int, list[list[Change]]] = defaultdict(list)
        for change in changes:
            if change.kind == "fork":
                self._mappings[change.process] = list(self._mappings[change.parent])
            elif change.kind == "exec":
                self._before[change.process].append(self._mappings[change.process])
                self._execs[change.process].append(change.time)
                self._mappings[change.process] = []
            else:
                self._mappings[change.process].append(change)

    def program(self, process: int, time: int) -> int:
        """The number of programs the process had executed by then."""
        return bisect_right(self._execs[process], time) if process in self._execs else 0

    def find(self, process: int, program: int, address: int) -> Change | None:
        """The mapping that an address was in, the latest where several were."""
        past = self._before.get(process, [])
        mappings = past[program] if program < len(past) else self._mappings.get(process, [])
        for mapping in reversed(mappings):
            if mapping.start <= address < mapping.end:
                return mapping
        return None


def resolved(records: Records) -> tuple[list[Function], npt.NDArray[np.int64]]:
    """The functions there are, and the position in that list of each sample's.

    Libraries are read where they lie now: profiles are read on the machine they were taken on.
    """
    found: dict[Function, int] = {}
    spaces, samples = Spaces(records.changes), records.samples
    unique, first, inverse = np.unique(samples[["process", "ip", "kernel"]], return_index=True, return_inverse=True)
    positions = np.empty(len(unique), np.int64)
    for at, (key, when) in enumerate(zip(unique.tolist(), samples["time"][first].tolist(), strict=True)):
        process, address, kernel = key
        positions[at] = found.setdefault(_function(spaces, process, address, kernel, when), len(found))
    return demangled(found), positions[inverse] if len(unique) else np.empty(0, np.int64)


def _function(spaces: Spaces, process: int, address: int, kernel: bool, time: int) -> Function:
    if kernel:
        return Function(_kernel_function(address), "[kernel]", KERNEL)
    mapping = spaces.find(process, spaces.program(process, time), address)
    if mapping is None:
        return Function("?", "?", UNKNOWN)
    name = Path(mapping.file).name
    if not mapping.file.startswith("/") or mapping.file.startswith("//"):  # [vdso], anonymous memory
        return Function("?", name, UNKNOWN if name != "[vdso]" else NATIVE)
    library = opened(mapping.file)
    offset = address - mapping.start + mapping.offset
    function = library.function(offset) if library else f"{offset:#x}"
    return Function(function, name, part(mapping.file))


def part(path: str) -> str:
    """The kind of a library: the interpreter's, or somebody's native code."""
    return PYTHON if _INTERPRETER.match(Path(path).name) else NATIVE


@cache
def _kernel_table() -> tuple[npt.NDArray[np.uint64], list[str]]:
    """Addresses and names of the kernel's functions; none where they are hidden."""
    try:
        lines = _KALLSYMS.read_text().splitlines()
    except OSError:
        lines = []
    code = [fields for fields in (line.split(None, 2) for line in lines) if fields[1] in "tTwW"]
    known = sorted((int(fields[0], 16), fields[2].partition("\t")[0]) for fields in code)
    known = [(address, name) for address, name in known if address]
    return np.array([address for address, _ in known], np.uint64), [name for _, name in known]


def _kernel_function(address: int) -> str:
    addresses, names = _kernel_table()
    at = int(np.searchsorted(addresses, address, side="right")) - 1
    return names[at] if at >= 0 else "kernel code"


def demangled(functions: Iterable[Function]) -> list[Function]:
    """The functions with C++ names readable, where ``c++filt`` is installed."""
    functions = list(functions)
    program = shutil.which("c++filt") or shutil.which("llvm-cxxfilt")
    mangled = [function.name for function in functions if function.name.startswith("_Z")]
    if program is None or not mangled:
        return functions
    answer = subprocess.run(  # noqa: S603  (the program was looked up, the names go to its input)
        [program], input="\n".join(mangled) + "\n", capture_output=True, text=True, check=False
    )
    readable = dict(zip(mangled, answer.stdout.splitlines(), strict=False))
    return [function._replace(name=readable.get(function.name, function.name)) for function in functions]
