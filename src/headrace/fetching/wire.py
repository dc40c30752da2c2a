"""The messages between the trainer and its fetcher over a socket: frames of plain records.

A frame is its length, its kind and a body. Rows and numbers are fixed-size records; errors and facts are JSON. Only the
first frame, by which the training process says what to read, is a pickle, and it never goes the other way.
"""

import enum
import json
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

_HEAD = struct.Struct("<IB")
_ASK = struct.Struct("<QI")
_NUMBER = struct.Struct("<Q")
_ROW = struct.Struct("<QBBqqqqqqB")


class MessageKind(enum.IntEnum):
    """The kinds of frames."""

    OPEN = 1  # to the fetcher: what to read, ``packed``
    ASK = 2  # to the fetcher: numbers and keys
    FREE = 3  # to the fetcher: offsets of payloads that nobody needs any more
    TAKEN = 4  # to the fetcher: offsets of payloads that somebody works on now
    DROP = 5  # to the fetcher: numbers that nobody waits for any more
    ROWS = 6  # from the fetcher: what arrived, and where it lies
    FACTS = 7  # from the fetcher: counts so far
    FATAL = 8  # from the fetcher: why it cannot go on
    WAITS = 9  # to the fetcher: there is nothing to work on
    REST = 10  # to the fetcher: nobody needs what was brought and not asked for
    WATCH = 11  # to the fetcher: the revision that rows are to be of; nothing where that does not matter


class Arrived(NamedTuple):
    """The place of one payload in the arena, or of the reason why there is none, which then lies there instead."""

    number: int
    failed: bool
    label_kind: int
    """0: none, 1: ``label`` is it, 2: it lies behind the payload and has ``label`` bytes."""
    offset: int
    size: int
    label: int
    began: int
    """When it was asked for, on the monotonic clock in nanoseconds."""
    took: int
    retries: int
    is_told: bool = True
    """Whether it is of the revision that the fetcher was told to watch for. Always so where it was told none, or the
    store cannot say in a round trip.
    """


NO_LABEL, NUMBER_LABEL, BLOB_LABEL = 0, 1, 2
NOWHERE = Arrived(0, failed=False, label_kind=NO_LABEL, offset=-1, size=0, label=0, began=0, took=0, retries=0)
_NONE = _ROW.pack(*NOWHERE)


def frame(kind: MessageKind, body: bytes) -> bytes:
    """A frame, ready to be sent."""
    return _HEAD.pack(len(body), kind) + body


def asks(wanted: Iterable[tuple[int, str]], group: int) -> bytes:
    """Numbers and the keys they are for. ``group``: so many of them are needed at once."""
    parts = [_NUMBER.pack(group)]
    for number, key in wanted:
        text = key.encode()
        parts += [_ASK.pack(number, len(text)), text]
    return frame(MessageKind.ASK, b"".join(parts))


def read_asks(body: bytes) -> tuple[list[tuple[int, str]], int]:
    """The asks in a body that ``asks`` wrote."""
    (group,), at = _NUMBER.unpack_from(body), _NUMBER.size
    found = []
    while at < len(body):
        number, size = _ASK.unpack_from(body, at)
        at += _ASK.size + size
        found.append((number, body[at - size : at].decode()))
    return found, group


def numbers(kind: MessageKind, values: Iterable[int]) -> bytes:
    """Offsets or numbers."""
    return frame(kind, b"".join(map(_NUMBER.pack, values)))


def read_numbers(body: bytes) -> list[int]:
    """The numbers in a body that ``numbers`` wrote."""
    return [value for (value,) in _NUMBER.iter_unpack(body)]


def rows(arrived: Iterable[Arrived]) -> bytes:
    """The frame of the rows that arrived."""
    return frame(MessageKind.ROWS, b"".join(_ROW.pack(*row) for row in arrived))


def read_rows(body: bytes) -> list[Arrived]:
    """The rows in a body that ``rows`` wrote."""
    return [_arrived(values) for values in _ROW.iter_unpack(body)]


def _arrived(values: tuple[int, ...]) -> Arrived:
    return Arrived._make((values[0], bool(values[1]), *values[2:-1], bool(values[-1])))


def places(found: Iterable[Arrived | None]) -> bytes:
    """The places of a group's rows, for a worker; None is a row that lies nowhere."""
    return b"".join([_NONE if place is None else _ROW.pack(*place) for place in found])


def read_places(body: memoryview, count: int) -> list[Arrived | None]:
    """The places of ``count`` rows in a body that ``places`` wrote."""
    found = (_arrived(values) for values in _ROW.iter_unpack(body[: count * _ROW.size]))
    return [None if place.offset < 0 else place for place in found]


def facts(kind: MessageKind, values: dict[str, Any]) -> bytes:
    """Counts, or an error as ``described``."""
    return frame(kind, json.dumps(values).encode())


class Frames:
    """Bytes in, whole frames out."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[tuple[MessageKind, bytes]]:
        """The frames that ``data`` completes. Raises ValueError for what is no frame."""
        self._held += data
        found, at = [], 0
        while len(self._held) - at >= _HEAD.size:
            size, kind = _HEAD.unpack_from(self._held, at)
            if len(self._held) - at - _HEAD.size < size:
                break
            at += _HEAD.size + size
            found.append((MessageKind(kind), bytes(self._held[at - size : at])))
        del self._held[:at]
        return found
