"""Where every fact of a shared cache's ledger stands in a sequence of 64-bit words shared by all jobs."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.int64]


class Words(Protocol):
    """What is stored through: an array of 64-bit integers, or something that behaves as one under assignment."""

    def __setitem__(self, key: Any, value: Any) -> None: ...


# Header
MAGIC, VERSION, SIZE = 0, 1, 2  # as a memory file has them; bytes in all
DIRTY = 3  # 1: somebody is, or died, inside a method; derived facts must be computed again
COUNT = 4  # entries in the dense list (derived)
LOGGED = 5  # entries ever added to it; the newest stand in the log (a jump by more than LOG: look at all of them)
BYTES = 6  # three words: bytes held in each form, those on their way included (derived)
BUDGET = 9  # three words: bytes each form may hold
HITS = 12  # three words: samples served from each form
MISSES, EXCHANGED, ADMITTED, EVICTED, REFUSED, LOST = 15, 16, 17, 18, 19, 20
REFILLED = 21  # samples to be read for nobody in particular
SAMPLES = 23  # 0: the ledger is yet to be laid out
REBUILT = 22  # times the derived facts were computed again
SCOPES = 24  # six words: the fingerprints of encoded, decoded and augmented entries
MEASURED = 32  # 22 words: what workers measured, summed up (``division.Sums``)
DIVISION = 54  # eight words: how the room is divided, and why (``division.Division``); the first one changes it
ROOM = 62  # bytes for entries of all forms
HEADER = 64

# Seat (one per rank of a job)
J_NAME, J_GROUP = 0, 1  # who sits there, 0: nobody; the job it is a rank of
J_STATE, J_EPOCH = 2, 3  # EMPTY, TURNING or READY; the epoch its seen bits are about
J_BEAT = 4  # when it was last heard of
J_SERVED = 5  # samples served in this epoch (a hint)
J_RANK, J_FACTS = 6, 6  # what it says of itself, so many words (``division.Rank``)
SEAT = 12
SEATS = 62  # one bit each in a word that stays positive
EMPTY, TURNING, READY = 0, 1, 2

# Place of a sample, one word: form | ARRIVING | seat << 8 | bytes << 16; in place of the seat, once it is settled, how
# often it was served
NOWHERE, ENCODED, DECODED, AUGMENTED = 0, 1, 2, 3
FORMS = (ENCODED, DECODED, AUGMENTED)
FORM = 7
ARRIVING = 8  # being written by the seat that is named; nobody is served it
SEAT_SHIFT, SEAT_MASK, BYTES_SHIFT = 8, 0xFF, 16
WRITER = ARRIVING | SEAT_MASK << SEAT_SHIFT  # who writes it, if anybody does
MOST_BYTES = (1 << 46) - 1

LOG = 4096


class Dims:
    """Where each array begins, for a dataset of ``samples``."""

    def __init__(self, samples: int) -> None:
        """Computed once."""
        self.samples = samples
        self.seats = HEADER
        self.log = self.seats + SEATS * SEAT
        self.seen = self.log + LOG  # per sample: a bit for each seat that has seen it, or will not, in its epoch
        self.place = self.seen + samples
        self.used = self.place + samples  # per sample: a bit for each seat that was served this very entry; while it is
        # ARRIVING, the process that writes it
        self.dense = self.place + 2 * samples  # the cached samples, in no order (derived)
        self.where = self.place + 3 * samples  # per cached sample: its position there (derived)
        self.words = self.place + 4 * samples

    def seat(self, seat: int) -> int:
        """First word of a seat."""
        return self.seats + seat * SEAT


_count = getattr(np, "bitwise_count", None)  # since numpy 2.0


def ones(words: Array) -> Array:
    """How many bits of each word are set."""
    if _count is not None:
        counted: Array = _count(words).astype(np.int64)
        return counted
    x = words.astype(np.uint64)
    x -= (x >> np.uint64(1)) & np.uint64(0x5555555555555555)
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return ((x * np.uint64(0x0101010101010101)) >> np.uint64(56)).astype(np.int64)
