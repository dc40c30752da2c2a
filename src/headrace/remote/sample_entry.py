"""A sample on its way between hosts: the layout and the body of a typed value, in one piece, as a cache would keep it."""

import struct
from pickle import PickleBuffer
from types import EllipsisType
from typing import Any

from headrace.cache.entries.codec import ALIGN, Codec
from headrace.cache.entries.parts import Body, Builder, Describer, Parts, Reading
from headrace.caching.images import ImageKind
from headrace.caching.tensors import TensorKind
from headrace.ondevice.pixels.bundle import HOLE, Picture

_LAYOUT = struct.Struct("<I")


def codec() -> Codec:
    """The codec for all that a worker may make, pictures for a device among it; one of a process's own."""
    return Codec([TensorKind(), ImageKind(), PictureKind()])


def packed(codec: Codec, value: Any) -> bytearray:
    """The entry of a value. Raises ``NotKept`` for what has none."""
    described = codec.describe(value)
    begin = _begin(described.layout)
    entry = bytearray(begin + described.size)
    _LAYOUT.pack_into(entry, 0, len(described.layout))
    entry[_LAYOUT.size : _LAYOUT.size + len(described.layout)] = described.layout
    described.write(memoryview(entry)[begin:], but_last=False)
    return entry


def rebuilt(codec: Codec, entry: bytearray) -> Any:
    """The value of an entry, which is its own from now on. Raises ``Corrupt`` or ``ValueError`` for what is none."""
    return codec.rebuild(*split(memoryview(entry)))


def split(entry: memoryview) -> tuple[bytes, memoryview]:
    """Layout and body. Raises ``ValueError`` for what is no entry."""
    if len(entry) < _LAYOUT.size:
        raise ValueError("an entry is too short")
    (size,) = _LAYOUT.unpack_from(entry)
    layout = bytes(entry[_LAYOUT.size : _LAYOUT.size + size])
    if len(layout) != size or _begin(layout) > len(entry):
        raise ValueError("an entry is too short")
    return layout, entry[_begin(layout) :]


def _begin(layout: bytes) -> int:
    """The place of the body, behind a layout."""
    return -(-(_LAYOUT.size + len(layout)) // ALIGN) * ALIGN


class PictureKind:
    """Pictures as workers bring them to a device, and the hole that stands in such a sample where its pixels will."""

    letters = "#."

    def describer(self, kind: type) -> Describer | None:
        """See ``CodableKind``."""
        return {Picture: _picture, EllipsisType: _hole}.get(kind)

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
