"""The messages between a lane on another host and the fetcher over their stream.

The fetcher shows a token first. After that both sides send messages: a head of fixed size, then so many bytes. The body
of an answer is a table with the kind and size of each sample's entry, and then the entries (see ``entries``). Requests
are JSON. Nothing is a pickle, but a sample that no entry can hold, and only where the user allows that.
"""

import enum
import hmac
import json
import secrets
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

TOKEN = 32
"""Bytes that are shown first."""
HEAD = struct.Struct("<B3xIQQQ")
_SIZE = struct.Struct("<Q")
_KIND_BITS = 56
LARGEST = 1 << 40
"""Bytes of one answer: more is no message."""
BEAT_SECONDS = 0.25
"""Between two signs of life of a lane that is busy."""


class Subject(enum.IntEnum):
    """The subject of a message."""

    HELLO = 1  # from the lane: it is ready
    BEAT = 2  # from the lane: it lives
    ANSWER = 3  # from the lane: samples
    REFUSAL = 4  # from the lane: why it makes none, in words
    REQUEST = 5  # to the lane: what to make


_KINDS = frozenset(Subject)


class EntryKind(enum.IntEnum):
    """The outcome of a sample."""

    VALUE = 0
    FAILED = 1
    """The dataset raised: words."""
    UNFIT = 2
    """Not of types that can be carried: words."""
    STAGE = 3
    """An earlier form of the sample, which a cache is to keep: the state of its file, and the value."""
    PICKLED = 4
    """A pickle of what no entry can hold, where the user allows that."""


class Head(NamedTuple):
    """The beginning of every message."""

    kind: int
    samples: int = 0
    """So many are in an answer."""
    number: int = 0
    """Of the group."""
    took: int = 0
    """Nanoseconds in which it was made."""
    size: int = 0
    """Bytes that follow."""

    def packed(self) -> bytes:
        """The bytes of the head, as it is sent."""
        return HEAD.pack(*self)

    @classmethod
    def read(cls, data: bytes | bytearray | memoryview) -> "Head":
        """The head of which these are the ``packed`` bytes. Raises ``ValueError`` for what is none."""
        head = cls(*HEAD.unpack(data))
        table = table_size(head.samples) if head.kind == Subject.ANSWER else 0
        if head.kind not in _KINDS or head.size > LARGEST or table > head.size:
            raise ValueError("what came over the stream is no message")
        return head


class Request(NamedTuple):
    """Samples to make: their indices, and what seeds their random numbers."""

    seed: int
    epoch: int
    indices: list[Any]
    forms: list[int] = []  # noqa: RUF012  (never changed)
    """The form in which each is wanted, as a cache calls it, 0 for the sample itself; empty: all are."""

    @classmethod
    def of(cls, keys: "Sequence[GroupKey]") -> "Request":
        """The request for samples of one seed and epoch."""
        forms = [key.form for key in keys]
        return cls(keys[0].seed, keys[0].epoch, [key.sample for key in keys], forms if any(forms) else [])


def new_token() -> bytes:
    """A secret that only whoever got it through Ray can show."""
    return secrets.token_bytes(TOKEN)


def same_token(one: bytes, other: bytes) -> bool:
    """Compared in a time that tells nothing."""
    return hmac.compare_digest(one, other)


def request(number: int, wanted: Request) -> bytes:
    """A whole message."""
    body = json.dumps(wanted, separators=(",", ":")).encode()
    return Head(Subject.REQUEST, len(wanted.indices), number, 0, len(body)).packed() + body


def read_request(body: bytes | bytearray) -> Request:
    """The body of one."""
    seed, epoch, indices, forms = json.loads(body)
    return Request(int(seed), int(epoch), list(indices), list(forms))


def words(kind: Subject, text: str) -> bytes:
    """A whole message of nothing but words."""
    body = text.encode("utf-8", "replace")
    return Head(kind, size=len(body)).packed() + body


def answer(number: int, took: int, entries: Sequence[tuple[EntryKind, bytes | bytearray]]) -> list[bytes | bytearray]:
    """A whole message, in pieces."""
    table = b"".join(_SIZE.pack(kind << _KIND_BITS | len(entry)) for kind, entry in entries)
    size = len(table) + sum(len(entry) for _, entry in entries)
    head = Head(Subject.ANSWER, len(entries), number, took, size)
    return [head.packed() + table, *(entry for _, entry in entries)]


def table_size(count: int) -> int:
    """Bytes of the table of an answer with so many samples."""
    return count * _SIZE.size


def read_table(table: bytes | bytearray, head: Head) -> list[tuple[EntryKind, int]]:
    """Kind and size of each entry. Raises ``ValueError`` where they are not those of the message."""
    mask = (1 << _KIND_BITS) - 1
    found = [(EntryKind(word >> _KIND_BITS), word & mask) for (word,) in _SIZE.iter_unpack(table)]
    if len(table) + sum(size for _, size in found) != head.size:
        raise ValueError("what came over the stream is no answer")
    return found


class GroupKey(NamedTuple):
    """A sample as the fetcher is asked for it."""

    seed: int
    epoch: int
    sample: Any
    """Its index."""
    form: int = 0
    """The form it is wanted in, see ``Request``."""

    def text(self) -> str:
        """A line of text that identifies the key, equal for equal keys."""
        if type(self.sample) is int:  # nearly always, and ten times as fast
            return f"[{self.seed},{self.epoch},{self.sample},{self.form}]"
        return json.dumps(self, separators=(",", ":"))

    @classmethod
    def of(cls, text: str) -> "GroupKey":
        """The key of which this is the ``text``."""
        seed, epoch, index, form = json.loads(text)
        return cls(int(seed), int(epoch), index, int(form))
