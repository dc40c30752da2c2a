"""The samples of an epoch that are still to be delivered, in few bytes however many they are."""

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.blocks.block_plan import BlockPlan, runs
from headrace.blocks.permutation import Array
from headrace.core.errors import StateMismatch

_WIDTHS = ("<u1", "<u2", "<u4", "<i8")


def nothing() -> Array:
    """An array of no numbers."""
    return np.zeros(0, np.int64)


class Progression(NamedTuple):
    """The reads ``begin``, ``begin + step``, … below ``end``."""

    begin: int
    step: int
    end: int

    @property
    def size(self) -> int:
        """The number of reads."""
        return max(0, -(-(self.end - self.begin) // self.step))

    def first(self, count: int) -> Array:
        """The first reads, ``count`` at most."""
        return self.begin + self.step * np.arange(min(count, self.size), dtype=np.int64)

    def after(self, count: int) -> "Progression":
        """The rest behind so many."""
        return self._replace(begin=self.begin + self.step * min(count, self.size))


@dataclass(frozen=True)
class Remainder:
    """Samples that one rank has still to deliver: some of reads that were begun, and whole reads.

    ``loose``: samples, of reads that were begun or cut. ``reads``: whole ones, in the order in which they are made,
    before those of ``tail``. ``again``: samples that others deliver, too, because ranks shall have the same number.
    ``spare``: samples that nobody delivers, for the same reason.
    """

    tail: Progression
    loose: Array = field(default_factory=nothing)
    reads: Array = field(default_factory=nothing)
    again: Array = field(default_factory=nothing)
    spare: Array = field(default_factory=nothing)

    @classmethod
    def everything(cls, plan: BlockPlan) -> "Remainder":
        """A whole epoch, for one rank."""
        return cls(Progression(0, 1, plan.count))

    def count(self, plan: BlockPlan) -> int:
        """The number of samples to be delivered, repeated ones included."""
        tail = self.tail
        inside = tail.begin + tail.step * tail.size
        whole = 0
        if tail.size:
            whole = int(plan.counted(tail.begin, tail.step)[0])
            whole -= int(plan.counted(inside, tail.step)[0]) if inside < plan.count else 0
        return whole + int(plan.sizes(self.reads).sum()) + len(self.loose) + len(self.again)

    def has(self, plan: BlockPlan, samples: Array) -> npt.NDArray[np.bool_]:
        """A mask of these samples: True for each that is still to be delivered."""
        reads, tail = plan.reads(samples), self.tail
        in_tail = (reads >= tail.begin) & (reads < tail.end) & ((reads - tail.begin) % tail.step == 0)
        return np.asarray(np.isin(samples, self.loose) | np.isin(reads, self.reads) | in_tail)

    def with_samples(self, samples: Array) -> "Remainder":
        """The same, and these, which were taken from it and not delivered."""
        return replace(self, loose=np.concatenate([self.loose, samples]))

    def encoded(self, plan: BlockPlan) -> dict[str, Any]:
        """Plain data, as JSON can hold them."""
        numbers, counts, bits = _bitmap(plan, self.loose)
        return {
            "tail": list(self.tail),
            "reads": _packed(np.diff(self.reads, prepend=0)),
            "begun": _packed(np.diff(numbers, prepend=0)),
            "left": _text(np.packbits(bits).tobytes()) if len(counts) else "",
            "again": self.again.tolist(),
            "spare": self.spare.tolist(),
        }

    @classmethod
    def decoded(cls, plan: BlockPlan, saved: Mapping[str, Any]) -> "Remainder":
        """The remainder from what ``encoded`` made of it. Raises ``StateMismatch``."""
        try:
            begin, step, end = (int(value) for value in saved["tail"])
            reads = np.cumsum(_unpacked(saved["reads"], plan.count))
            numbers = np.cumsum(_unpacked(saved["begun"], plan.count))
            if step < 1 or begin < 0 or end > plan.count or _outside(reads, plan.count, numbers):
                raise ValueError("a read that the epoch has not")
            loose = _samples(plan, numbers, saved["left"])
            again, spare = (np.array(saved[name], np.int64).reshape(-1) for name in ("again", "spare"))
            if _outside(again, plan.total, spare):
                raise ValueError("a sample that the epoch has not")
        except (LookupError, TypeError, ValueError, OverflowError, zlib.error) as error:
            raise StateMismatch(
                f"load_state_dict(state): its list of undelivered samples is damaged: {error}"
            ) from None
        return cls(Progression(begin, step, end), loose, reads, again, spare)


def grouped(plan: BlockPlan, samples: Array) -> tuple[Array, Array, Array]:
    """(reads, how many of the samples each has, the samples read by read), all in ascending order."""
    reads = plan.reads(samples)
    order = np.lexsort((samples, reads))
    numbers, counts = np.unique(reads, return_counts=True)
    return numbers, counts.astype(np.int64), samples[order]


def _bitmap(plan: BlockPlan, loose: Array) -> tuple[Array, Array, npt.NDArray[np.bool_]]:
    """(reads, their numbers of samples, for each of all their samples whether it is among these)."""
    numbers, counts, ordered = grouped(plan, loose)
    begin, end = plan.bounds(numbers)
    sizes = end - begin
    places = ordered + np.repeat(np.cumsum(sizes) - sizes - begin, counts)
    bits = np.zeros(int(sizes.sum()), np.bool_)
    bits[places] = True
    return numbers, sizes, bits


def _samples(plan: BlockPlan, numbers: Array, left: str) -> Array:
    """The samples that a bitmap over these reads says are left."""
    if not len(numbers):
        return nothing()
    begin, end = plan.bounds(numbers)
    total = int((end - begin).sum())
    packed = np.frombuffer(_bytes(left, -(-total // 8)), np.uint8)
    if len(packed) != -(-total // 8):
        raise ValueError("a bitmap of another length")
    return np.asarray(runs(begin, end - begin)[np.unpackbits(packed, count=total).astype(bool)])


def _outside(first: Array, end: int, second: Array) -> bool:
    return any(len(values) and (values.min() < 0 or values.max() >= end) for values in (first, second))


def _packed(values: Array) -> str:
    """Numbers as text: in as few bytes as the largest needs, compressed."""
    largest = int(values.max(initial=0))
    negative = bool((values < 0).any())
    width = 3 if negative else next(i for i, name in enumerate(_WIDTHS) if largest <= np.iinfo(name).max)
    return f"{width}{_text(values.astype(_WIDTHS[width]).tobytes())}" if len(values) else ""


def _unpacked(text: str, most: int) -> Array:
    if not text:
        return nothing()
    kind = np.dtype(_WIDTHS[int(text[0])])
    return np.frombuffer(_bytes(text[1:], most * kind.itemsize), kind).astype(np.int64)


def _text(data: bytes) -> str:
    return base64.b85encode(zlib.compress(data, 6)).decode()


def _bytes(text: str, most: int) -> bytes:
    """The bytes that were packed as ``text``; more than ``most`` of them are refused before they take memory."""
    opened = zlib.decompressobj()
    found = opened.decompress(base64.b85decode(text), most + 1)
    if not opened.eof or len(found) > most:
        raise ValueError("less than was saved, or more than the epoch has")
    return found
