"""Words of a shared cache's table, one for each sample: form, level, size and generation.

A word is also the name of the entry it speaks of: an entry that is made anew has another generation, so whoever holds
an older word finds nothing, and never something else.
"""

import secrets

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.int64]
Words = NDArray[np.uint64]
"""One for each of some samples; 0: nothing is held."""

NOWHERE, ENCODED, DECODED, AUGMENTED = 0, 1, 2, 3
FORMS = (ENCODED, DECODED, AUGMENTED)
NAMES = ("encoded", "decoded", "augmented")
LOOK = (1 << 64) - 1
"""Stands for a word: look for the sample in the cache, which may or may not have it."""
UNIT = 512
"""Sizes are counted in these."""
MOST = ((1 << 24) - 1) * UNIT
"""Bytes of the largest entry that a word can speak of."""
_DISK, _SIZE, _GENERATION = 2, 3, 27


def word(form: int, size: int, *, disk: bool = False) -> int:
    """The word of a new entry that takes ``size`` bytes of room: its generation is drawn at random, and is nobody
    else's.
    """
    units = -(-size // UNIT)
    return form | int(disk) << _DISK | units << _SIZE | secrets.randbits(64 - _GENERATION) << _GENERATION


def form_of(word: int) -> int:
    """The form of an entry; ``NOWHERE`` for 0."""
    return word & 3


def on_disk(word: int) -> bool:
    """True if the entry lies on the level below memory."""
    return bool(word >> _DISK & 1)


def size_of(word: int) -> int:
    """Bytes of room that the entry takes."""
    return (word >> _SIZE & 0xFFFFFF) * UNIT


def forms(words: Words) -> Array:
    """The form of each of many words."""
    return (words & np.uint64(3)).astype(np.int64)


def kinds(words: Words) -> Array:
    """The form of each, 4 of those on disk."""
    return np.where((words >> np.uint64(_DISK)) & np.uint64(1), 4, words & np.uint64(3)).astype(np.int64)


def sums(words: Words) -> tuple[int, int, int, int]:
    """Bytes that entries take: in memory by form, and on disk."""
    sizes = ((words >> np.uint64(_SIZE)) & np.uint64(0xFFFFFF)).astype(np.int64) * UNIT
    held = np.bincount(kinds(words), sizes, 5).astype(np.int64)
    return int(held[1]), int(held[2]), int(held[3]), int(held[4])
