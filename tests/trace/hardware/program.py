"""A program to be sampled: processes that record operations whose C functions are known.

python program.py PROCESSES SAMPLES
"""

import hashlib
import os
import resource
import sys
import time
import zlib
from multiprocessing import get_context

import numpy as np

from headrace.trace import format as F
from headrace.trace.hardware.callgrind import measuring
from headrace.trace.session import COUNTED
from headrace.trace.trace_file import Recording, record

TEXT = bytes(range(256)) * 512
NUMBERS = np.random.default_rng(0).random(60_000)
OPERATIONS = {
    "compress": lambda: zlib.compress(TEXT),
    "digest": lambda: hashlib.sha256(TEXT).digest(),
    "sort": lambda: np.sort(NUMBERS),
}


def work(recording: Recording | None, samples: int) -> None:
    stream = recording.stream() if recording else None
    heads = stream.operations(list(OPERATIONS)) if stream else [0] * len(OPERATIONS)
    measured = measuring(os.environ.get(COUNTED, ""))
    for index in range(samples):
        start = before = time.monotonic_ns()
        marks = []
        for head, (name, operation) in zip(heads, OPERATIONS.items(), strict=True):
            if measured:
                measured.enter(name)
            operation()
            if measured:
                measured.leave(name)
            now = time.monotonic_ns()
            marks += [F.span(now - before), head + before]
            before = now
        if stream:
            stream.sample(index, start, before - start, -1, 0, 0, marks)


if __name__ == "__main__":
    path = os.environ.get("HEADRACE_TRACE")
    shared = record(path) if path else None
    sys.stdout.write(f"descriptors: {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}\n")
    context = get_context("fork")
    count, total = int(sys.argv[1]), int(sys.argv[2])
    processes = [context.Process(target=work, args=(shared, total // count)) for _ in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(int(sys.argv[3]) if len(sys.argv) > 3 else 0)
