"""A loader's state as it goes out and comes back, and whether it may be believed."""

import base64
import binascii
import copy
import hashlib
import re
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.engine.ordering import indices
from headrace.engine.ordering.random_sources import unpack_random
from headrace.engine.ordering.state_signature import KINDS, length, mismatch
from headrace.engine.worker.randomness import generators

VERSION = 2
_SEEDS = 1 << 63
_COUNTS = 1 << 40
LARGE = 1 << 18
"""Bytes of a set of samples that take too long to compress."""


def plain(progress: dict[str, Any]) -> dict[str, Any]:
    """The progress that a run reports, as JSON can hold it."""
    if "pending" in progress:
        progress["pending"] = [[indices.plain(index) for index in group] for group in progress["pending"]]
    for stream in progress.get("streams", ()):
        for name in ("began", "random"):
            stream[name] = None if stream[name] is None else generators.packed(stream[name])
    return progress


def pending(state: Mapping[str, Any], *, drawn: bool = False) -> list[list[Any]]:
    """The indices to be delivered, by group; ``drawn``: of those, what the order itself gave, and no cache in
    exchange.
    """
    if drawn and "exchanged" in state:
        return []
    return [[indices.rebuilt(index) for index in group] for group in state["pending"]]


def is_over(state: Mapping[str, Any], index_sampler: Any) -> bool:
    """True if all batches of a map-style epoch were delivered, as far as the sampler's length tells."""
    if any(pending(state, drawn=True)):
        return False
    known = length(index_sampler)
    return known is not None and int(state["yielded"]) >= known


def bitmap(bits: NDArray[np.uint8]) -> str:
    """A set of indices, as ``np.packbits`` has it, as text: compressed."""
    packed = zlib.compress(bits, 1 if len(bits) < LARGE else 0)  # type: ignore[arg-type]  # an array is a buffer
    return str(binascii.b2a_base64(packed, newline=False), "ascii")  # by half of what ``base64`` takes


def members_of(text: str, length: int) -> NDArray[np.int64]:
    """The set that ``bitmap`` made a text of; ``StateMismatch`` if it has others than those below ``length``."""
    try:
        unpacking = zlib.decompressobj()
        # No further than a set of this dataset may reach: a short text can be one of gigabytes.
        packed = unpacking.decompress(base64.b64decode(text, validate=True), length // 8 + 2)
    except (binascii.Error, ValueError, zlib.error):
        raise mismatch("exchanged is not a set of samples") from None
    found: NDArray[np.int64] = np.flatnonzero(np.unpackbits(np.frombuffer(packed, np.uint8)))
    if not unpacking.eof or (len(found) and found[-1] >= length):
        raise mismatch("exchanged has samples that the dataset has not")
    return found


def sealed(state: dict[str, Any]) -> dict[str, Any]:
    """The state with a checksum, so that one that was damaged or edited is noticed."""
    return {**state, "checksum": _checksum(state)}


def _own(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state without what a wrapper put beside it, under names with an underscore: Accelerate adds
    ``_iterator_finished``.
    """
    return {name: value for name, value in state.items() if not str(name).startswith("_")}


def _checksum(state: Mapping[str, Any]) -> str:
    digest = hashlib.blake2b(digest_size=12)
    _feed(digest, {name: value for name, value in state.items() if name != "checksum"})
    return digest.hexdigest()


def _feed(digest: Any, value: Any) -> None:
    """Feed a value to a digest. What JSON makes alike counts as alike: tuples and lists, keys and their text."""
    if isinstance(value, Mapping):
        digest.update(b"{%d" % len(value))
        for key in sorted(value, key=str):
            digest.update(str(key).encode("utf-8", "surrogatepass") + b":")
            _feed(digest, value[key])
    elif isinstance(value, (list, tuple)):
        digest.update(b"[%d" % len(value))
        for item in value:
            _feed(digest, item)
    elif isinstance(value, (bytes, bytearray)):
        digest.update(b"b" + bytes(value))
    elif isinstance(value, np.ndarray):
        digest.update(b"n" + np.ascontiguousarray(value).tobytes() if value.dtype != object else b"n")
    elif isinstance(value, torch.Tensor):
        _feed(digest, value.detach().cpu().flatten().view(torch.uint8).numpy() if value.numel() else None)
    elif value is None:
        digest.update(b"None,")
    elif isinstance(value, str):
        digest.update(b"s" + str(value).encode("utf-8", "surrogatepass"))
    elif isinstance(value, (bool, int, float)):
        kind: type = bool if isinstance(value, bool) else int if isinstance(value, int) else float
        digest.update(f"{kind.__name__}{kind(value)!r},".encode())  # a subclass, of numpy say, counts as its base
    else:
        digest.update(type(value).__qualname__.encode())


def checked(state: Any) -> dict[str, Any]:
    """A copy of the state, if it is a whole one of this release; otherwise ``StateMismatch``.

    Looks at nothing but the state, so not at what only a dataset's length bounds: see ``check_exchanged``.
    """
    try:
        return copy.deepcopy(_checked(state))
    except RecursionError:
        raise mismatch("it is nested too deeply") from None


def _checked(state: Any) -> dict[str, Any]:
    if not isinstance(state, Mapping):
        raise mismatch(f"takes what state_dict() returned, not {type(state).__name__}")
    if state.get("version") != VERSION or isinstance(state["version"], bool):
        raise mismatch(f"version {state.get('version')!r:.80} is not one this release can read")
    whole = _own(state)
    if whole.get("checksum") != _checksum(whole):
        raise mismatch("it is not as state_dict() returned it: damaged, or edited")
    about = _field(whole, "loader", Mapping)
    if _field(about, "kind", str) not in KINDS.values():
        raise mismatch(f"loader.kind is {about['kind']!r:.80}")
    _number(whole, "epoch", _COUNTS)
    _number(whole, "base_seed", _SEEDS)
    _number(whole, "yielded", _COUNTS)
    if "generator" in whole and not _is_torch_state(_field(whole, "generator", str)):
        raise mismatch("generator is not the state of a torch.Generator")
    if "job" in whole and not re.fullmatch("[0-9a-f]{16}", _field(whole, "job", str)):
        raise mismatch("job is not the name of one")
    if not _field(whole, "finished", bool):
        _check_streams(whole) if about["kind"] == KINDS[True] else _check_order(whole)
    return whole


def check_exchanged(state: Mapping[str, Any]) -> None:
    """Check the exchanged samples of a state that was compared with its loader: they are unpacked into as much as
    the loader's dataset has samples.
    """
    if not state["finished"] and state["loader"]["kind"] == KINDS[False] and "exchanged" in state:
        members_of(state["exchanged"], state["loader"]["length"])


def _check_order(state: Mapping[str, Any]) -> None:
    order = _field(state, "order", Mapping)
    _number(order, "drawn", _COUNTS)
    _number(order, "digest", 1 << 32)
    if any(order.get(name) is not None and not _is_random(order[name]) for name in ("random", "began")):
        raise mismatch("order.random is not the state of random generators")
    if order.get("epoch") is not None:
        _number(order, "epoch", _COUNTS)
    if "again" in order:
        _number(order, "again", _COUNTS)
    if "exchanged" in state:
        _number(state["loader"], "length", _COUNTS)
        _field(state, "exchanged", str)
    for group in _field(state, "pending", list):
        if not isinstance(group, list):
            raise mismatch("pending is not a list of batches of indices")
        for index in group:
            indices.rebuilt(index)


def _check_streams(state: Mapping[str, Any]) -> None:
    streams = _field(state, "streams", list)
    if not streams or len(streams) != state["loader"].get("streams"):
        raise mismatch("streams does not hold one entry per worker")
    _number(state, "turn", len(streams))
    for stream in streams:
        if not isinstance(stream, Mapping):
            raise mismatch("streams holds something else than streams")
        _number(stream, "batches", _COUNTS)
        _field(stream, "ended", bool)
        if stream.get("state") is not None:
            _field(stream, "state", Mapping)
        for name in ("began", "random"):
            if stream.get(name) is not None and not generators.is_valid(generators.unpacked(_field(stream, name, str))):
                raise mismatch(f"streams.{name} is not the state of a worker's random generators")


def _field(state: Mapping[str, Any], name: str, kind: type) -> Any:
    value = state.get(name)
    if not isinstance(value, kind):
        raise mismatch(f"{name} is {value!r:.80}")
    return value


def _number(state: Mapping[str, Any], name: str, limit: int) -> None:
    value = state.get(name)
    if type(value) is not int or not 0 <= value < limit:
        raise mismatch(f"{name} is {value!r:.80}")


def _is_torch_state(text: str) -> bool:
    """True if it is the text of a torch generator's state."""
    try:
        torch.Generator().set_state(unpack_random(text))
    except (RuntimeError, ValueError):
        return False
    return True


def _is_random(text: Any) -> bool:
    """True if it is the text of a sampler's source of random numbers, of either kind."""
    return isinstance(text, str) and (_is_torch_state(text) or generators.is_valid(generators.unpacked(text)))
