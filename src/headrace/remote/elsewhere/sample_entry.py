"""A sample on its way between hosts: layout and body of a typed value in one piece, and the node it was made on."""

import struct
from pickle import PickleBuffer
from types import EllipsisType
from typing import Any, NamedTuple

from headrace.cache.entries.codec import ALIGN, Codec
from headrace.cache.entries.parts import Body, Builder, Describer, Parts, Reading
from headrace.caching.images import ImageKind
from headrace.caching.tensors import TensorKind
from headrace.ondevice.pixels.bundle import HOLE, Picture

_HEAD = struct.Struct("<IH")  # bytes of the layout, and of the node's name, which follow


def codec() -> Codec:
    """The codec for all that a worker may make, pictures for a device among it; one of a process's own."""
    return Codec([TensorKind(), ImageKind(), PictureKind()])


class Sent(NamedTuple):
    """An entry, taken apart."""

    layout: bytes
    node: bytes
    body: memoryview


def packed(codec: Codec, value: Any, node: bytes = b"") -> bytearray:
    """The entry of a value made on ``node``. Raises ``NotKept`` for what has none."""
    described = codec.describe(value)
    names = described.layout + node
    begin = _begin(len(names))
    entry = bytearray(begin + described.size)
    _HEAD.pack_into(entry, 0, len(described.layout), len(node))
    entry[_HEAD.size : _HEAD.size + len(names)] = names
    described.write(memoryview(entry)[begin:], but_last=False)
    return entry


def split(entry: bytearray) -> Sent:
    """The parts of an entry. Raises ``ValueError`` for what is none."""
    if len(entry) < _HEAD.size:
        raise ValueError("an entry is too short")
    layout, node = _HEAD.unpack_from(entry)
    middle, end, begin = _HEAD.size + layout, _HEAD.size + layout + node, _begin(layout + node)
    if begin > len(entry):
        raise ValueError("an entry is too short")
    return Sent(bytes(entry[_HEAD.size : middle]), bytes(entry[middle:end]), memoryview(entry)[begin:])


def _begin(names: int) -> int:
    """The place of the body, behind layout and node of so many bytes."""
    return -(-(_HEAD.size + names) // ALIGN) * ALIGN


class PictureKind:
    """Pictures as workers bring them to a device, and the hole that stands in such a sample where its pixels will."""

    letters = "#."

    def describer(self, kind: type) -> Describer | None:
        """See ``CodableKind``."""
        if kind is Picture:
            return _picture
        return _hole if kind is EllipsisType else None

    def builder(self, token: str, reading: Reading) -> Builder:
        """See ``CodableKind``."""
        if token[0] == ".":
            return lambda _: HOLE
        reading.expect("q")
        members = [reading.following() for _ in range(6)]

        def build(body: Body) -> Picture:
            data = PickleBuffer(body.piece(body.take(), ALIGN))
            index, storing, numbers, mask, boxes, rest = [member(body) for member in members]
            return Picture(index, data, storing, numbers, mask, boxes, rest)

        return build


def _picture(value: Picture, parts: Parts) -> None:
    content = PickleBuffer(value.data).raw()
    parts.tokens.append(b"#")
    parts.numbers.append(len(content))
    parts.pieces.append((ALIGN, content))
    parts.add(value.index)
    for name in ("storing", "numbers", "mask", "boxes", "rest"):
        parts.add(getattr(value, name), f".{name}")


def _hole(_: EllipsisType, parts: Parts) -> None:
    parts.tokens.append(b".")
