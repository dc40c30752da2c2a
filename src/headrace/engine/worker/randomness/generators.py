"""The global random generators of a process: torch's, Python's and numpy's."""

import base64
import random
import struct
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

_WORDS = 625
_PYTHON = struct.Struct("<?d")  # behind its words
_NUMPY = struct.Struct("<IId")  # behind its words
_TORCH = len(torch.default_generator.get_state())
_AT_NUMPY = _TORCH + 4 * _WORDS + _PYTHON.size
SIZE = _AT_NUMPY + 4 * (_WORDS - 1) + _NUMPY.size
"""Bytes of ``captured``."""

_OURS = torch.initial_seed()
_CHOSEN = 1 << 40
"""Seeds that people choose are below it (numpy's must be below 2**32), or negative: torch counts those from the other
end. A process that nobody seeds has 64 bits of the system's entropy: one in eight million is mistaken for a choice."""


def are_seeded() -> bool:
    """True if the user seeded torch's generator: to a number that one would choose, or since this was imported.

    A state that was restored counts, and so does ``torch.seed()``, which cannot be told from a large number.
    """
    seed = torch.initial_seed()
    return seed != _OURS or seed < _CHOSEN or seed > (1 << 64) - _CHOSEN


def captured() -> bytes:
    """The state of all three."""
    _, words, gauss = random.getstate()
    legacy: Any = np.random.get_state()
    _, key, position, has_gauss, cached = legacy
    return b"".join(
        (
            torch.default_generator.get_state().numpy().tobytes(),
            array("I", words).tobytes(),
            _PYTHON.pack(gauss is not None, gauss or 0.0),
            key.tobytes(),
            _NUMPY.pack(position, has_gauss, cached),
        )
    )


def restore(state: bytes) -> None:
    """Set all three to what ``captured`` returned."""
    _set(state, torch.default_generator, random, np.random)


def _set(state: bytes, torchs: torch.Generator, pythons: Any, numpys: Any) -> None:
    """``ValueError`` or ``RuntimeError`` for what is none of their states."""
    words = array("I", state[_TORCH : _TORCH + 4 * _WORDS])
    drawn, gauss = _PYTHON.unpack_from(state, _TORCH + 4 * _WORDS)
    key = np.frombuffer(state, dtype=np.uint32, count=_WORDS - 1, offset=_AT_NUMPY)
    position, has_gauss, cached = _NUMPY.unpack_from(state, _AT_NUMPY + key.nbytes)
    # numpy believes what it is given, and would draw from beyond its words.
    if position >= _WORDS or has_gauss not in {0, 1}:
        raise ValueError(position)
    torchs.set_state(torch.frombuffer(bytearray(state[:_TORCH]), dtype=torch.uint8))
    pythons.setstate((3, tuple(words), gauss if drawn else None))
    numpys.set_state(("MT19937", key, position, has_gauss, cached))


def packed(state: bytes) -> str:
    """Bytes as text."""
    return base64.b64encode(state).decode("ascii")


def unpacked(text: str) -> bytes:
    """The bytes from their text; none when it is not such a text."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""


def is_valid(state: bytes) -> bool:
    """True if ``restore`` would take the state, found out without touching the generators."""
    if len(state) != SIZE:
        return False
    try:
        _set(state, torch.Generator(), random.Random(), np.random.RandomState())
    except (RuntimeError, ValueError):
        return False
    return True


_TWISTS = 64
"""How often a Mersenne twister is turned over to see whether it was only drawn from: some 40,000 numbers."""


class SeedWatch:
    """Tells whether the generators were seeded since it was made, as opposed to drawn from."""

    def __init__(self) -> None:
        self._torch = torch.initial_seed()
        self._python, self._numpy = random.getstate(), np.random.get_state()

    def seeded(self) -> bool:
        """True if any of them was set to numbers that drawing would not have led to."""
        if torch.initial_seed() != self._torch:
            return True
        python, numpy = random.Random(), np.random.RandomState()
        python.setstate(self._python)
        numpy.set_state(self._numpy)
        return not (
            _reached(_python_words(random), lambda: _python_words(python), lambda: python.getrandbits(32 * 624))
            and _reached(_numpy_words(np.random), lambda: _numpy_words(numpy), lambda: numpy.bytes(4 * 624))
        )


def _python_words(generator: Any) -> Any:
    return generator.getstate()[1][:-1]  # the last one says how many of them were drawn


def _numpy_words(generator: Any) -> Any:
    return generator.get_state()[1].tolist()


def _reached(now: Any, words: Callable[[], Any], turn: Callable[[], Any]) -> bool:
    """True if a twister with these ``words`` comes to ``now`` by turning."""
    for _ in range(_TWISTS):
        if words() == now:
            return True
        turn()  # draws as many numbers as it has words, after which they are all new
    return False
