"""Random numbers that are a function of their place, and a random order that needs no memory."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]

ROUNDS = 6
_STEP, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)


def mixed(words: Words) -> Words:
    """Numbers of 64 bits in which each bit of ``words`` has changed about half: splitmix64's last step."""
    words = (words ^ (words >> _30)) * _FIRST
    words = (words ^ (words >> _27)) * _SECOND
    return words ^ (words >> _31)


def key(*parts: int) -> int:
    """The 64-bit number that identifies a stream of random numbers, made from several numbers of any size."""
    state = np.zeros(1, np.uint64)
    for part in parts:
        sign, rest = int(part < 0), abs(part)
        digits = [sign]
        while rest:
            rest, digit = divmod(rest, 1 << 64)
            digits.append(digit)
        for digit in (len(digits), *digits):
            state = mixed(state * _FIRST + np.uint64(digit) + _STEP)
    return int(state[0])


def randoms(stream: int, begin: int, count: int) -> Words:
    """The numbers of a stream from the one at ``begin`` on; the same on every machine and with every numpy."""
    places = np.arange(begin, begin + count, dtype=np.uint64)
    return mixed(np.uint64(stream) + (places + np.uint64(1)) * _STEP)


class Permutation:
    """A random order of ``range(size)``, computed where it is asked for: a Feistel network that walks its cycles."""

    def __init__(self, size: int, stream: int) -> None:
        if not 0 <= size < 1 << 48:
            raise ValueError(f"a permutation of {size} numbers cannot be computed")
        self.size = size
        bits = max(2, (max(size, 1) - 1).bit_length())
        self._low, self._high = bits // 2, bits - bits // 2
        self._keys = [np.uint64(word) for word in randoms(stream, 0, ROUNDS).tolist()]

    def __call__(self, places: Array) -> Array:
        """The numbers at these places of the order."""
        return self._walked(places, self._forth)

    def places(self, numbers: Array) -> Array:
        """The places at which these numbers stand."""
        return self._walked(numbers, self._back)

    def _walked(self, values: Array, step: Callable[[Words], Words]) -> Array:
        found = step(values.astype(np.uint64))
        size = np.uint64(self.size)
        outside = np.flatnonzero(found >= size)
        while len(outside):
            found[outside] = step(found[outside])
            outside = outside[found[outside] >= size]
        return np.asarray(found.astype(np.int64))

    def _forth(self, words: Words) -> Words:
        high, low = words >> np.uint64(self._low), words & self._mask(self._low)
        for number, each in enumerate(self._keys):
            if number % 2:
                high = high ^ (mixed(low + each) & self._mask(self._high))
            else:
                low = low ^ (mixed(high + each) & self._mask(self._low))
        return (high << np.uint64(self._low)) | low

    def _back(self, words: Words) -> Words:
        high, low = words >> np.uint64(self._low), words & self._mask(self._low)
        for number, each in reversed(list(enumerate(self._keys))):
            if number % 2:
                high = high ^ (mixed(low + each) & self._mask(self._high))
            else:
                low = low ^ (mixed(high + each) & self._mask(self._low))
        return (high << np.uint64(self._low)) | low

    @staticmethod
    def _mask(bits: int) -> np.uint64:
        return np.uint64((1 << bits) - 1)


class Unchanged:
    """The order of numbers as they are."""

    def __call__(self, places: Array) -> Array:
        return places

    def places(self, numbers: Array) -> Array:
        return numbers
