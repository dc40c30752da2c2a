"""Whether a sample of the processor ends up in the operation that it belongs to, and what sampling costs.

Processes run operations one after another, each with C functions that no other operation calls: zlib's, OpenSSL's,
libbz2's, numpy's sort and square root, Pillow's resampling, the interpreter's ``bytes.translate``. `headrace trace hw`
samples them and joins samples and spans by time. "Right" is the share of the samples in such a function that were
attributed to its operation; a sample of it in any other operation, or in none, counts as wrong. Short operations take
tens of microseconds, so that a clock that is off, or a late timestamp, would show.

"CPU" is user and system time of the whole program for the same work, against the same program unsampled.
"""

from __future__ import annotations

import bz2
import hashlib
import os
import re
import resource
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchmarks.clock import check_time
from benchmarks.report import Check, Report, Table
from benchmarks.scope import LeftOut, Scope
from headrace.core.errors import TraceError
from headrace.core.options import TRACE_VARIABLE
from headrace.trace import format as F
from headrace.trace.hardware import profile, records, runner
from headrace.trace.hardware.names import bare
from headrace.trace.reader import read
from headrace.trace.trace_file import Recording, record

ROOT = Path(__file__).parent.parent
PROCESSES = 3
FREQUENCIES = (997, 4999)
SIGNATURES = {
    "compress": (r"^libz\b|^zlib\.", r""),
    "digest": (r"^libcrypto", r""),
    "bunzip": (r"^libbz2", r""),
    "sort": (r"_multiarray_umath", r"sort|partition|pivot|bitonic"),
    "root": (r"_multiarray_umath", r"_sqrt"),
    "resize": (r"^_imaging\.", r"Resample"),
    "translate": (r"", r"bytes_translate|^stringlib_translate"),
}
"""Operation: library and function of what only it calls."""


def operations(scale: int) -> dict[str, Callable[[], object]]:
    """The operations, on more data the larger `scale` is."""
    text = bytes(range(256)) * (4 * scale)
    packed = bz2.compress(np.random.default_rng(0).integers(0, 8, 512 * scale, dtype=np.uint8).tobytes())
    numbers = np.random.default_rng(0).random(1024 * scale)
    table = bytes(reversed(range(256)))
    found: dict[str, Callable[[], object]] = {
        "compress": lambda: zlib.compress(text, 1),
        "digest": lambda: hashlib.sha256(text).digest(),
        "bunzip": lambda: bz2.decompress(packed),
        "sort": lambda: np.sort(numbers),
        "root": lambda: np.sqrt(numbers),
        "translate": lambda: text.translate(table),
    }
    try:
        from PIL import Image
    except ImportError:
        return found
    side = int((1024 * scale) ** 0.5)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (side, side, 3), dtype=np.uint8))
    image.load()
    return {**found, "resize": lambda: image.resize((side // 2, side // 2), Image.Resampling.BILINEAR)}


def run(report: Report, scope: Scope) -> None:
    """Long and short operations; then the cost."""
    seconds = 4.0 if scope.quick else 20.0
    columns = ["operation", "calls", "µs / call", "samples of its own", "right %", "largest function", "its share %"]
    for name, scale in (("short", 2), ("long", 200)):
        scope.say(f"{name} operations")
        with tempfile.TemporaryDirectory(prefix="headrace-attribution-") as folder:
            path = Path(folder) / "a.trace"
            check_time()
            try:
                runner.sampled(_command(scale, seconds), path, None, 1999)
            except TraceError as error:
                raise LeftOut(str(error)) from None
            found = profile.profile(read(path), records.read(profile.beside(path)))
        table, share, count = _judged(found, Table(f"{name} operations, {PROCESSES} processes", columns))
        report.tables.append(table)
        report.checks.append(Check(f"{name} operations, samples in the right one", 100 * share, 99.0, False, "%"))
        report.notes.append(f"{name}: {count} samples of known functions of {found.samples}, {found.lost} lost")
        report.raw[name] = profile.data(found)["operations"]
        for operation in report.raw[name]:
            operation["functions"] = operation["functions"][:10]
    report.tables.append(_cost(5 if scope.quick else 9, scope.say))


def _judged(found: profile.Profile, table: Table) -> tuple[Table, float, int]:
    """The table, the share that is right over all operations, and of how many samples."""
    right: dict[str, int] = dict.fromkeys(SIGNATURES, 0)
    total: dict[str, int] = dict.fromkeys(SIGNATURES, 0)
    for operation in found.operations:
        for entry in operation.entries:
            if operation.name in {"(before the trace)", "(other threads)"}:
                continue  # the program itself, which makes the data, and threads that libraries start
            home = _home(entry.function.library, entry.function.name)
            if home:
                total[home] += entry.samples
                right[home] += entry.samples * (operation.name == home)
    for operation in found.operations:
        if operation.name in SIGNATURES:
            name, top = operation.name, operation.entries[0]
            share = 100 * right[name] / total[name] if total[name] else float("nan")
            microseconds = operation.elapsed / operation.calls * 1e6
            function = f"{bare(top.function.name).partition('<')[0]} ({top.function.library.partition('.')[0]})"
            table.add(name, operation.calls, microseconds, total[name], share, function, 100 * top.share.value)
    whole = sum(total.values())
    return table, sum(right.values()) / max(whole, 1), whole


def _home(library: str, function: str) -> str | None:
    for name, (where, what) in SIGNATURES.items():
        if re.search(where, library) and re.search(what, function):
            return name
    return None


def _cost(repeats: int, say: Callable[[str], None]) -> Table:
    """The same work unsampled and sampled, alternating."""
    used: dict[int, list[float]] = {0: [], **{frequency: [] for frequency in FREQUENCIES}}
    with tempfile.TemporaryDirectory(prefix="headrace-attribution-") as folder:
        path = Path(folder) / "a.trace"
        for repeat in range(repeats):
            say(f"cost {repeat + 1}/{repeats}")
            for frequency in used if repeat % 2 == 0 else reversed(used):
                check_time()
                before = _children()
                command = _command(50, -100)
                if frequency:
                    runner.sampled(command, path, None, frequency)
                else:
                    runner.plain(command, path)
                used[frequency].append(_children() - before)
    table = Table(
        "CPU seconds for the same work", ["samples per second and core", "CPU s, median", "smallest", "more %"]
    )
    base = statistics.median(used[0])
    for frequency, values in used.items():
        middle = statistics.median(values)
        table.add(frequency or "none", middle, min(values), 100 * (middle / base - 1))
    return table


def _children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _command(scale: int, amount: float) -> list[str]:
    """Run this file for `amount` seconds in each process, or for so many rounds if it is negative."""
    code = "import sys; from benchmarks.attribution import main; main(int(sys.argv[1]), float(sys.argv[2]))"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return [sys.executable, "-c", code, str(scale), str(amount)]


def main(scale: int, amount: float) -> None:
    """The program that is sampled."""
    recording = record(os.environ[TRACE_VARIABLE])
    chosen = operations(scale)  # made here: making the data calls some of the same functions
    context = get_context("fork")
    processes = [context.Process(target=_work, args=(recording, chosen, amount)) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def _work(recording: Recording, chosen: dict[str, Callable[[], object]], amount: float) -> None:
    stream = recording.stream()
    heads = stream.operations(list(chosen))
    began, rounds = time.monotonic(), 0
    while rounds < -amount if amount < 0 else time.monotonic() - began < amount:
        start = before = time.monotonic_ns()
        marks = []
        for head, operation in zip(heads, chosen.values(), strict=True):
            operation()
            now = time.monotonic_ns()
            marks += [F.span(now - before), head + before]
            before = now
        stream.sample(rounds, start, before - start, -1, 0, 0, marks)
        rounds += 1
