"""Thrift's compact protocol, as Parquet's footers and page headers are written in it: to plain values and back.

A struct is a dict of its fields by number, each a pair of type and value; a list is a pair of the elements' type and
them. What a text says about sizes is believed only as far as there are bytes.
"""

from typing import Any, TypeAlias

from headrace.store.shards.shard import DamagedShard

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
DEEPEST = 32

Fields: TypeAlias = dict[int, tuple[int, Any]]


class ThriftReader:
    """Reads values one after the other. Raises ``DamagedShard``."""

    def __init__(self, raw: bytes | memoryview, at: int = 0) -> None:
        self._raw, self.at = raw, at

    def struct(self, depth: int = 0) -> Fields:
        """The fields of a struct that begins here."""
        fields: Fields = {}
        number = 0
        while head := self._byte():
            kind, step = head & 15, head >> 4
            number = number + step if step else _signed(self._varint())
            fields[number] = kind, self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if depth > DEEPEST:
            raise DamagedShard("metadata nested too deeply")
        if kind in (TRUE, FALSE):
            return kind == TRUE
        if kind in (I16, I32, I64):
            return _signed(self._varint())
        if kind in (LIST, SET):
            return self._list(depth)
        if kind == STRUCT:
            return self.struct(depth + 1)
        if kind not in (BYTE, DOUBLE, BINARY):
            raise DamagedShard(f"a value of the unknown type {kind} in the metadata")
        return self._bytes({BYTE: 1, DOUBLE: 8}.get(kind) or self._varint())

    def _list(self, depth: int) -> tuple[int, list[Any]]:
        head = self._byte()
        size, kind = head >> 4, head & 15
        if size == 15:
            size = self._varint()
        if size > len(self._raw) - self.at:  # each takes a byte at least
            raise DamagedShard("a list in the metadata is longer than they are")
        if kind in (TRUE, FALSE):
            return kind, [self._byte() for _ in range(size)]
        return kind, [self._value(kind, depth + 1) for _ in range(size)]

    def _byte(self) -> int:
        if self.at >= len(self._raw):
            raise DamagedShard("the metadata end too early")
        self.at += 1
        return self._raw[self.at - 1]

    def _bytes(self, size: int) -> bytes:
        if size > len(self._raw) - self.at:
            raise DamagedShard("the metadata end too early")
        self.at += size
        return bytes(self._raw[self.at - size : self.at])

    def _varint(self) -> int:
        found = shift = 0
        while True:
            byte = self._byte()
            found |= (byte & 127) << shift
            if byte < 128:
                return found
            shift += 7
            if shift > 63:
                raise DamagedShard("a number in the metadata is too long")


def written(fields: Fields) -> bytes:
    """A struct."""
    made, before = bytearray(), 0
    for number, (kind, value) in sorted(fields.items()):
        told = (TRUE if value else FALSE) if kind in (TRUE, FALSE) else kind
        if 0 < number - before < 16:
            made.append((number - before) << 4 | told)
        else:
            made.append(told)
            made += _varint(_zigzag(number))
        before = number
        if kind not in (TRUE, FALSE):
            made += _written(kind, value)
    made.append(0)
    return bytes(made)


def _written(kind: int, value: Any) -> bytes:
    if kind in (I16, I32, I64):
        return _varint(_zigzag(value))
    if kind == BINARY:
        return _varint(len(value)) + bytes(value)
    if kind == STRUCT:
        return written(value)
    if kind not in (LIST, SET):
        return bytes(value)
    inner, values = value
    head = bytes([len(values) << 4 | inner]) if len(values) < 15 else bytes([240 | inner]) + _varint(len(values))
    return head + (bytes(values) if inner in (TRUE, FALSE) else b"".join(_written(inner, each) for each in values))


def _signed(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


def _zigzag(number: int) -> int:
    return number << 1 ^ number >> 63


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    return bytes(made)
