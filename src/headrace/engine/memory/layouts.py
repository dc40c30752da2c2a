"""Layouts of the rows in slots, each described by the slot itself.

Whoever writes the first rows of a slot leaves the pickled shape of their samples in the slot's record; who reads the
slot builds the layout from there. A process remembers the last few: a run may meet any number of shapes, and neither
its memory nor the start of its next workers grows with them.
"""

import hashlib
import io
import pickle
from typing import Any, TypeVar

from headrace.engine.memory.layout import Layout, Leaf, Node, Unstackable, describe
from headrace.engine.memory.reservation import RECORD, Reservation

REMEMBERED = 256

K = TypeVar("K")
V = TypeVar("V")


class Layouts:
    """The layouts one process knows, by number: 62 bits of the description, the same in every process."""

    def __init__(self, memory: Reservation) -> None:
        self._memory = memory
        self._known: dict[int, Layout] = {}
        self._described: dict[Leaf | Node, tuple[int, bytes]] = {}

    def of(self, sample: Any) -> tuple[int, Layout] | None:
        """A sample's layout and its number; None when it has none, or one that other processes cannot be told of."""
        try:
            shape = describe(sample)
            found = self._described.get(shape)
        except (Unstackable, TypeError, RecursionError):  # a dict key without a hash, a list that contains itself
            return None
        if found is None:
            described = _description(shape)
            if described is None or len(described) > RECORD - 16:
                return None
            found = remember(self._described, shape, (_number(described), described))
        number = found[0]
        known = self._known.get(number)
        if known is None:
            known = remember(self._known, number, Layout(shape))
        return (number, known) if known.leaves else None

    def at(self, slot: int, number: int) -> Layout:
        """The layout of a slot that holds rows, by its number."""
        known = self._known.get(number)
        if known is None:
            described = self._memory.read_sized(self._memory.record(slot) + 8)
            shape = pickle.loads(described)  # noqa: S301  (of this run's processes)
            known = remember(self._known, number, Layout(shape))
        return known

    def is_told(self, slot: int, number: int) -> bool:
        """True if the slot's record is of this layout; it stays so while the slot has the layout."""
        at = self._memory.record(slot)
        return int.from_bytes(self._memory.bytes[at : at + 8], "little") == number + 1

    def description(self, layout: Layout) -> bytes:
        """The bytes that ``tell`` writes for a layout that ``of`` gave out. Call it without the lock: it may
        pickle.
        """
        described = self._described.get(layout.shape, (0, b""))[1] or _description(layout.shape)
        assert described is not None
        return described

    def tell(self, slot: int, number: int, described: bytes) -> None:
        """Write the slot's record. The caller holds the lock, and dies at any moment: what is half written is of none.

        ``described``: the layout's ``description``.
        """
        at, view = self._memory.record(slot), self._memory.bytes
        view[at : at + 8] = bytes(8)
        self._memory.write_sized(at + 8, described)
        view[at : at + 8] = (number + 1).to_bytes(8, "little")


def _description(shape: Leaf | Node) -> bytes | None:
    """A shape as bytes, equal for equal shapes whichever of their parts are the same objects."""
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, protocol=5)
    pickler.fast = True  # no memo: parts that are equal and parts that are the same object are written alike
    try:
        pickler.dump(shape)
    except Exception:  # noqa: BLE001  (a local named tuple, say: such samples travel as objects, or fail there)
        return None
    return stream.getvalue()


def _number(described: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(described, digest_size=8).digest(), "little") >> 2


def remember(known: dict[K, V], key: K, value: V) -> V:
    """Add it, and forget what came first where there are too many."""
    if len(known) >= REMEMBERED:
        del known[next(iter(known))]
    known[key] = value
    return value
