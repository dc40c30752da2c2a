"""Python's own values, taken apart and built again: each comes back with its type."""

import array
import json
from collections import OrderedDict
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import numpy as np

from headrace.cache.entries.parts import Body, Builder, Describer, NotKept, Parts, Reading

RUN = 16
"""Numbers of one type in a list or tuple, from which on they are one piece."""
_INTS = range(-(1 << 63), 1 << 63)


def _none(_: None, parts: Parts) -> None:
    parts.tokens.append(b"N")


def _number(token: bytes, value: float, parts: Parts) -> None:
    parts.tokens.append(token)
    parts.numbers.append(value)


def _int(value: int, parts: Parts) -> None:
    if value in _INTS:
        _number(b"i", value, parts)
    else:
        content = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        _bytes_of(b"I", content, parts)


def _complex(value: complex, parts: Parts) -> None:
    parts.tokens.append(b"c")
    parts.numbers += (value.real, value.imag)


def _str(value: str, parts: Parts) -> None:
    _bytes_of(b"u", value.encode("utf-8", "surrogatepass"), parts)


def _bytearray(value: bytearray, parts: Parts) -> None:
    if not parts.again(value):
        _bytes_of(b"A", memoryview(value), parts)


def _bytes_of(token: bytes, content: bytes | memoryview, parts: Parts) -> None:
    parts.tokens.append(token)
    parts.numbers.append(len(content))
    parts.pieces.append((1, content))


def _changeable(letter: bytes, values: list[Any] | set[Any], parts: Parts) -> None:
    if not parts.again(values):
        _members(letter, values, parts)


def _members(letter: bytes, values: Collection[Any], parts: Parts) -> None:
    if len(values) >= RUN and isinstance(values, (tuple, list)) and _run(letter, values, parts):
        return
    parts.tokens.append(b"%b%d" % (letter, len(values)))
    at = 0
    try:
        for at, value in enumerate(values):  # noqa: B007  (where it ended)
            parts.add(value)
    except NotKept as error:
        raise error.within(f"[{at}]") from None


def _run(letter: bytes, values: list[Any] | tuple[Any, ...], parts: Parts) -> bool:
    """Many ints, or many floats, at once."""
    kinds = set(map(type, values))
    if kinds not in ({int}, {float}):
        return False
    kind = b"q" if kinds == {int} else b"d"
    try:
        content = memoryview(array.array(kind.decode(), values)).cast("B")
    except OverflowError:
        return False
    parts.tokens.append(b"x" + letter + kind)
    parts.numbers.append(len(values))
    parts.pieces.append((8, content))
    return True


def _dict(value: dict[Any, Any], parts: Parts) -> None:
    if not parts.again(value):
        _items(b"m", b"M", value, parts)


def _ordered(value: "OrderedDict[Any, Any]", parts: Parts) -> None:
    if vars(value):
        raise NotKept(f"is a collections.OrderedDict with attributes: {', '.join(vars(value))}")
    if not parts.again(value):
        _items(b"o", b"O", value, parts)


def _items(texts: bytes, others: bytes, value: dict[Any, Any], parts: Parts) -> None:
    plain = all(type(key) is str for key in value)
    parts.tokens.append(texts + json.dumps(list(value)).encode() if plain else others + str(len(value)).encode())
    for key, each in value.items():
        if not plain:
            parts.add(key, f" key {key!r}")
        parts.add(each, f"[{key!r}]")


_DESCRIBERS: dict[type, Describer] = {
    type(None): _none,
    bool: partial(_number, b"b"),
    int: _int,
    float: partial(_number, b"f"),
    complex: _complex,
    str: _str,
    bytes: partial(_bytes_of, b"B"),
    bytearray: _bytearray,
    tuple: partial(_members, b"t"),
    list: partial(_changeable, b"l"),
    set: partial(_changeable, b"S"),
    frozenset: partial(_members, b"F"),
    dict: _dict,
    OrderedDict: _ordered,
}
_PIECES: dict[str, Callable[[memoryview], Any]] = {
    "I": lambda piece: int.from_bytes(piece, "little", signed=True),
    "u": lambda piece: str(piece, "utf-8", "surrogatepass"),
    "B": bytes,
}


def _made_bytearray(body: Body) -> bytearray:
    found = bytearray(body.piece(body.take()))
    body.made.append(found)
    return found


def _made_changeable(
    kind: Callable[[], Any], fill: Callable[[Any, list[Any]], None], members: list[Builder]
) -> Builder:
    def build(body: Body) -> Any:
        found = kind()
        body.made.append(found)  # before its members, which may hold it
        fill(found, [member(body) for member in members])
        return found

    return build


def _made_run(token: str) -> Builder:
    dtype, listed = {"q": np.int64, "d": np.float64}[token[2]], {"l": True, "t": False}[token[1]]

    def build(body: Body) -> Any:
        values = np.frombuffer(body.piece(8 * body.take(), 8), dtype).tolist()
        if not listed:
            return tuple(values)
        body.made.append(values)
        return values

    return build


def _made_dict(kind: Callable[[], dict[Any, Any]], keys: list[Builder | str], members: list[Builder]) -> Builder:
    def build(body: Body) -> dict[Any, Any]:
        found = kind()
        body.made.append(found)
        for key, member in zip(keys, members, strict=True):
            known = key if type(key) is str else key(body)  # type: ignore[operator]
            found[known] = member(body)
        return found

    return build


class PlainKind:
    """The kind of None, numbers, texts, bytes, and of tuples, lists, sets and dicts of anything that is known."""

    letters = "NbifcIuBAtlSFxmMoOr"

    def describer(self, kind: type) -> Describer | None:
        """See ``CodableKind``."""
        return _DESCRIBERS.get(kind)

    def builder(self, token: str, reading: Reading) -> Builder:  # noqa: C901, PLR0911, PLR0912  (one per type)
        """See ``CodableKind``."""
        letter = token[0]
        if letter == "N":
            return lambda _: None
        if letter == "b":
            reading.expect("?")
            return lambda body: body.take()
        if letter in "if":
            reading.expect("q" if letter == "i" else "d")
            return lambda body: body.take()
        if letter == "c":
            reading.expect("dd")
            return lambda body: complex(body.take(), body.take())
        if letter == "r":
            reading.expect("q")
            return lambda body: body.made[body.take()]
        if letter in "IuBAx":
            reading.expect("q")
            if letter == "A":
                return _made_bytearray
            if letter == "x":
                return _made_run(token)
            make = _PIECES[letter]
            return lambda body: make(body.piece(body.take()))
        if letter in "mo":
            texts = json.loads(token[1:])
            if type(texts) is not list or any(type(key) is not str for key in texts):
                raise ValueError(token)
            return _made_dict(dict if letter == "m" else OrderedDict, texts, [reading.following() for _ in texts])
        count = int(token[1:])
        if letter in "MO":
            both = [(reading.following(), reading.following()) for _ in range(count)]
            kind = dict if letter == "M" else OrderedDict
            return _made_dict(kind, [key for key, _ in both], [member for _, member in both])
        members = [reading.following() for _ in range(count)]
        if letter == "l":
            return _made_changeable(list, list.extend, members)
        if letter == "S":
            return _made_changeable(set, set.update, members)
        whole = tuple if letter == "t" else frozenset
        return lambda body: whole([member(body) for member in members])
