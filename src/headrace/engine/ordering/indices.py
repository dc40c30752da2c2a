"""Indices of samples: as plain data in a state, and as a number to compare orders by."""

import operator
import zlib
from array import array
from typing import Any

import numpy as np
import torch

from headrace.core.errors import StateMismatch


def plain(index: Any) -> Any:
    """The index as JSON can hold it, with its type. One of a kind that is not known here stays as it is."""
    made = index
    if isinstance(index, np.generic):
        made = {"numpy": [index.dtype.str, index.item()]}
    elif isinstance(index, torch.Tensor) and index.ndim == 0:
        made = {"tensor": [str(index.dtype).removeprefix("torch."), index.item()]}
    elif isinstance(index, bytes):
        made = {"bytes": index.hex()}
    elif type(index) is tuple:
        made = {"tuple": [plain(item) for item in index]}
    elif type(index) is list:
        made = [plain(item) for item in index]
    elif type(index) is dict:
        made = {"dict": [[plain(key), plain(value)] for key, value in index.items()]}
    return made


def name(index: Any) -> int | str | None:
    """The name by which an index is known among others, also when it was rebuilt; None for kinds that are not known
    here.
    """
    if isinstance(index, (int, str)):
        return index
    known = (float, bytes, tuple, list, dict, np.generic, torch.Tensor, type(None))
    return f"{type(index).__name__} {index!r}" if isinstance(index, known) else None


def rebuilt(value: Any) -> Any:
    """The index from what ``plain`` made of it. Raises ``StateMismatch``."""
    if type(value) is list:
        return [rebuilt(item) for item in value]
    if type(value) is not dict:
        return value
    try:
        ((kind, content),) = value.items()
        return _KINDS[kind](content)
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
        raise StateMismatch(f"load_state_dict(state): {value!r:.80} is not an index of a sample") from error


def _numpy(name: str, value: Any) -> Any:
    dtype = np.dtype(name)
    if dtype.kind not in "biufcU":  # of others, a number may be a size, and an object anything
        raise TypeError(name)
    return dtype.type(_scalar(value))


def _scalar(value: Any) -> Any:
    if not isinstance(value, (bool, int, float, str)):
        raise TypeError(value)
    return value


_KINDS: dict[str, Any] = {
    "numpy": lambda content: _numpy(*content),
    "tensor": lambda content: torch.tensor(_scalar(content[1]), dtype=getattr(torch, content[0])),
    "bytes": bytes.fromhex,
    "tuple": lambda content: tuple(rebuilt(item) for item in content),
    "dict": lambda content: {rebuilt(key): rebuilt(item) for key, item in content},
}


def digest(item: Any, before: int) -> int:
    """A checksum of everything up to ``item``, an index or a batch of them, from that of what was before.

    Indices that are no numbers, text or tuples of those are counted and not looked at.
    """
    if type(item) is list and set(map(type, item)) == {int}:
        try:
            return zlib.crc32(array("q", item), before)
        except OverflowError:
            pass
    if isinstance(item, (list, tuple)):
        before = zlib.crc32(b"%d" % len(item), before)
        for one in item:
            before = digest(one, before)
        return before
    if isinstance(item, (str, bytes)):
        return zlib.crc32(item.encode("utf-8", "surrogatepass") if isinstance(item, str) else item, before)
    try:
        return zlib.crc32(b"%d" % operator.index(item), before)
    except (TypeError, ValueError, RuntimeError):
        return zlib.crc32(b"?", before)
