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
    """Whether the user seeded torch's generator: to a number that one would choose, or since this was imported.

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
    torch.default_generator.set_state(torch.frombuffer(bytearray(state[:_TORCH]), dtype=torch.uint8))
    words, drawn, gauss = _python(state)
    random.setstate((3, tuple(words), gauss if drawn else None))
    key, position, has_gauss, cached = _numpy(state)
    np.random.set_state(("MT19937", key, position, has_gauss, cached))


def packed(state: bytes) -> str:
    """Bytes as text."""
    return base64.b64encode(state).decode("ascii")


def unpacked(text: str) -> bytes:
    """The bytes from their text; none when it is not such a text."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""


def _python(state: bytes) -> tuple[list[int], bool, float]:
    words = array("I", state[_TORCH : _TORCH + 4 * _WORDS])
    drawn, gauss = _PYTHON.unpack_from(state, _TORCH + 4 * _WORDS)
    return words.tolist(), drawn, gauss


def _numpy(state: bytes) -> tuple[Any, int, int, float]:
    key = np.frombuffer(state, dtype=np.uint32, count=_WORDS - 1, offset=_AT_NUMPY)
    position, has_gauss, cached = _NUMPY.unpack_from(state, _AT_NUMPY + key.nbytes)
    return key, position, has_gauss, cached


def is_valid(state: bytes) -> bool:
    """Whether ``restore`` would take it, found out without touching the generators."""
    if len(state) != SIZE:
        return False
    try:
        torch.Generator().set_state(torch.frombuffer(bytearray(state[:_TORCH]), dtype=torch.uint8))
    except RuntimeError:
        return False
    return _python(state)[0][-1] < _WORDS and _numpy(state)[1] < _WORDS and _numpy(state)[2] in {0, 1}


_TWISTS = 64
"""How often a Mersenne twister is turned over to see whether it was only drawn from: some 40,000 numbers."""


class SeedWatch:
    """Tells whether the generators were seeded since it was made, as opposed to drawn from."""

    def __init__(self) -> None:
        self._torch = torch.initial_seed()
        self._python, self._numpy = random.getstate(), np.random.get_state()

    def seeded(self) -> bool:
        """Whether any of them was set to numbers that drawing would not have led to."""
        if torch.initial_seed() != self._torch:
            return True
        python = random.Random()
        python.setstate(self._python)
        numpy = np.random.RandomState()
        numpy.set_state(self._numpy)

        def python_key() -> Any:
            return python.getstate()[1][:-1]

        def numpy_key() -> Any:
            return _key(numpy.get_state())

        return not (
            _reached(random.getstate()[1][:-1], python_key, lambda: python.getrandbits(32 * 624))
            and _reached(_key(np.random.get_state()), numpy_key, lambda: numpy.bytes(4 * 624))
        )


def _key(state: Any) -> list[int]:
    words: list[int] = state[1].tolist()
    return words


def _reached(now: Any, key: Callable[[], Any], turn: Callable[[], Any]) -> bool:
    """Whether a twister whose words are ``key()`` comes to ``now`` by turning."""
    for _ in range(_TWISTS):
        if key() == now:
            return True
        turn()
    return False
