"""The trace file, version 1: what stands where.

A file begins with a header of one extent (``HEADER``), followed by extents of ``EXTENT`` bytes. An extent belongs to
one stream, that is to one thread of one process, and begins with ``EXTENT_HEAD``; a stream's extents are numbered. What
follows are units of two little-endian 64-bit words: first the *value*, then the *head*, whose upper 12 bits are the
tag. The head is written last, so a unit with tag 0 is where a stream ends, at any moment, whoever was killed.

Times are nanoseconds of CLOCK_MONOTONIC since the header's base, in the lower 52 bits of a head (52 days). A *span* has
its start in the head and in the value its length (lower 40 bits) and the share of it that the thread's CPU clock
advanced (upper 24 bits, of ``CPU_FULL``; ``CPU_UNKNOWN`` where it was not read).

tags 1 to 0xDFF      an operation of the sample before it: a span. The tag is the operation's number in its stream
SAMPLE, SAMPLE_ID    a span; then units that follow (8 bits), flags (12), index (32) | bytes in (32), bytes out (32)
WIDE                 follows a SAMPLE_ID with the flag WIDE_INDEX: index | 0; with KEY: number of the key's text | 0;
                     then the index is NO_INDEX where the key is all there is
ROWS, ROWS_ID        a span; then batch | first row (32 bits), count: where the stream's last samples were written
COLLATE, COLLATE_ID  a span; then batch | samples
BATCH, BATCH_ID      a span: the trainer asked and got; then batch | samples (32 bits), ready (16), outstanding (16)
COPY, COPY_ID        a span: the batch on its way to the device; then batch | bytes
SPAN, SPAN_ID        a span of the user's own; then number of its name | 0
COUNTER, EVENT       time | number of its name (upper 16 bits), value (lower 48)
RUN                  time | run: what follows in this stream is of this run (one epoch of one loader)
DEFINE               number (28 bits), length in bytes (24 bits) | kind; TEXT units of 14 bytes each follow
"""

import mmap
import struct

VERSION = 1
MAGIC = b"headrace trace\r\n"
IN_THE_WAY = "there is a file that is not a trace; it is left alone, choose another name"
EXTENT = max(16384, mmap.ALLOCATIONGRANULARITY)  # of files written here; a file's header says what it is in it
HEADER = struct.Struct("<16sIIQQ16sI64s")  # magic, version, extent, monotonic base, wall-clock base, id, state, host
STATE_OFFSET = struct.calcsize("<16sIIQQ16s")
EXTENT_MAGIC = 0x58455248
EXTENT_HEAD = struct.Struct("<IIIIQQ")  # magic, number in its stream, process, thread, stream, reserved
UNITS_OFFSET = 64
UNIT = 16

RECORDING, DISK_FULL = 0, 1  # the header's state

TAG_SHIFT = 52
PAYLOAD = (1 << TAG_SHIFT) - 1
LENGTH = (1 << 40) - 1
CPU_SHIFT = 40
CPU_FULL = (1 << 24) - 2
CPU_UNKNOWN = ((1 << 24) - 1) << CPU_SHIFT
MASK32, MASK48 = (1 << 32) - 1, (1 << 48) - 1

LAST_OPERATION = 0xDFF
SAMPLE, SAMPLE_ID, WIDE = 0xE00, 0xE01, 0xE02
ROWS, ROWS_ID = 0xE03, 0xE04
COLLATE, COLLATE_ID = 0xE05, 0xE06
BATCH, BATCH_ID = 0xE07, 0xE08
COPY, COPY_ID = 0xE09, 0xE0A
SPAN, SPAN_ID = 0xE0B, 0xE0C
COUNTER, EVENT, RUN = 0xE0D, 0xE0E, 0xE0F
DEFINE, TEXT = 0xE10, 0xE11

SLOW, FAILED, REPEATED, WIDE_INDEX, KEY = 1, 2, 4, 8, 16
NO_INDEX = MASK32
TIER_SHIFT = 5  # two bits: the form a cache had, 0 none, else its place in FORMS from 1 on
FORMS = ("encoded", "decoded", "augmented")
DIVIDED = "cache "  # how the name of an event begins that says how a cache is divided, and why
FAR = 4
"""A sample that took this many times the median is slow, whatever the loader's threshold was."""
NETWORK = "network"
"""The span from asking a store for a row to having it."""
ELSEWHERE = "made on "
"""Begins the name of the span from asking another host for a sample to having it: the address of its node follows. The
sample whose record comes next in the stream is that one.
"""
QUEUED = "without a core"
"""The counter of nanoseconds for which a worker's thread could have run so far, and had no core."""
RETRIES_SHIFT = 7  # five bits: how often fetching was tried again

OPERATION, NAME, RUN_TEXT, STREAM_TEXT, KEY_TEXT = 1, 2, 3, 4, 5  # kinds of DEFINE
TEXT_BYTES = 14


def head(tag: int, payload: int) -> int:
    """The word that ends a unit."""
    return tag << TAG_SHIFT | payload


def span(elapsed: int, cpu: int = -1) -> int:
    """The value of a span."""
    if elapsed > LENGTH:  # noqa: PLR1730  (a call of min() would cost a tenth of a record)
        elapsed = LENGTH
    if cpu < 0:
        return elapsed | CPU_UNKNOWN
    if cpu >= elapsed:
        return elapsed | CPU_FULL << CPU_SHIFT
    return elapsed | int(cpu / elapsed * CPU_FULL) << CPU_SHIFT
