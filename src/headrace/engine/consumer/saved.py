"""A loader's state as it goes out and comes back: what it says of its loader, and whether it may be believed."""

import base64
import binascii
import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from headrace.core.errors import StateMismatch
from headrace.engine.consumer import indices
from headrace.engine.consumer.sources import unpack_random
from headrace.engine.worker import generators

VERSION = 2
_SEEDS = 1 << 63
_COUNTS = 1 << 40
_TRAITS: dict[type, tuple[str, ...]] = {
    SequentialSampler: (),
    RandomSampler: ("replacement", "num_samples"),
    SubsetRandomSampler: (),
    WeightedRandomSampler: ("replacement", "num_samples"),
    DistributedSampler: ("num_replicas", "rank", "shuffle", "seed", "drop_last"),
    BatchSampler: ("batch_size",),
}
"""What decides about the order that torch's samplers draw, beside their length."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What must be the same where a state is taken and where it is loaded, for an epoch to go on."""

    iterable: bool
    length: int | None
    """Of a map-style dataset, if it has one."""
    batch_size: int | None
    streams: int
    """Workers of an iterable dataset, which shard it; 0 for a map-style one."""
    sampler: list[Any]
    """Its class, those it wraps, and torch's own with their settings."""

    def plain(self) -> dict[str, Any]:
        """As it stands in a state."""
        return {
            "kind": _KINDS[self.iterable],
            "length": self.length,
            "batch_size": self.batch_size,
            "streams": self.streams,
            "sampler": self.sampler,
        }


_KINDS = {True: "iterable", False: "map-style"}


def facts(dataset: Any, index_sampler: Any, batch_size: int | None, *, iterable: bool, workers: int) -> Facts:
    """Of a loader as it is now."""
    return Facts(
        iterable,
        None if iterable else _length(dataset),
        batch_size,
        max(1, workers) if iterable else 0,
        [] if iterable else _described(index_sampler),
    )


def _length(thing: Any) -> int | None:
    try:
        return len(thing)
    except (TypeError, NotImplementedError):
        return None


def _described(sampler: Any) -> list[Any]:
    """From the outermost to the one that draws."""
    described: list[Any] = []
    while sampler is not None and len(described) < 16:
        traits: dict[str, Any] = {"type": type(sampler).__qualname__}
        if type(sampler) in _TRAITS:
            traits |= {name: getattr(sampler, name) for name in _TRAITS[type(sampler)]}
            if not isinstance(sampler, BatchSampler):
                traits["length"] = _length(sampler)
        described.append(traits)
        inner = getattr(sampler, "batch_sampler", None)
        sampler = getattr(sampler, "sampler", None) if inner is None else inner
    return described


def plain(progress: dict[str, Any]) -> dict[str, Any]:
    """What a run says of itself, as JSON can hold it."""
    if "pending" in progress:
        progress["pending"] = [[indices.plain(index) for index in group] for group in progress["pending"]]
    for stream in progress.get("streams", ()):
        for name in ("began", "random"):
            stream[name] = None if stream[name] is None else generators.packed(stream[name])
    return progress


def pending(state: Mapping[str, Any], *, drawn: bool = False) -> list[list[Any]]:
    """What is to be delivered; ``drawn``: of that, what the order itself gave, and no cache in exchange."""
    if drawn and "exchanged" in state:
        return []
    return [[indices.rebuilt(index) for index in group] for group in state["pending"]]


def bitmap(members: np.ndarray[Any, np.dtype[np.int64]]) -> str:
    """A set of indices as text: a bit for each, compressed."""
    bits = np.zeros(int(members.max()) + 1 if len(members) else 0, bool)
    bits[members] = True
    return base64.b64encode(zlib.compress(np.packbits(bits).tobytes(), 1)).decode()


def members_of(text: str, length: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The set that ``bitmap`` made a text of; ``StateMismatch`` if it has others than those below ``length``."""
    try:
        unpacking = zlib.decompressobj()
        packed = unpacking.decompress(base64.b64decode(text, validate=True), length // 8 + 2)
    except (binascii.Error, ValueError, zlib.error):
        raise _mismatch("exchanged is not a set of samples") from None
    found = np.flatnonzero(np.unpackbits(np.frombuffer(packed, np.uint8)))
    if not unpacking.eof or (len(found) and found[-1] >= length):
        raise _mismatch("exchanged has samples that the dataset has not")
    return found


def sealed(state: dict[str, Any]) -> dict[str, Any]:
    """The state with a checksum, so that one that was damaged or edited is noticed."""
    return {**state, "checksum": _checksum(state)}


def _own(state: Mapping[str, Any]) -> dict[str, Any]:
    """Without what a wrapper put beside it, under names with an underscore: Accelerate adds ``_iterator_finished``."""
    return {name: value for name, value in state.items() if not str(name).startswith("_")}


def _checksum(state: Mapping[str, Any]) -> str:
    digest = hashlib.blake2b(digest_size=12)
    _feed(digest, {name: value for name, value in state.items() if name != "checksum"})
    return digest.hexdigest()


def _feed(digest: Any, value: Any) -> None:
    """What JSON makes alike counts as alike: tuples and lists, keys and their text."""
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
    """The state, if it is a whole one of this release; otherwise ``StateMismatch``. Looks at nothing but the state."""
    if not isinstance(state, Mapping):
        raise _mismatch(f"takes what state_dict() returned, not {type(state).__name__}")
    if state.get("version") != VERSION or isinstance(state["version"], bool):
        raise _mismatch(f"version {state.get('version')!r} is not one this release can read")
    whole = _own(state)
    if whole.get("checksum") != _checksum(whole):
        raise _mismatch("it is not as state_dict() returned it: damaged, or edited")
    about = _field(whole, "loader", Mapping)
    if _field(about, "kind", str) not in _KINDS.values():
        raise _mismatch(f"loader.kind is {about['kind']!r}")
    _number(whole, "epoch", _COUNTS)
    _number(whole, "base_seed", _SEEDS)
    _number(whole, "yielded", _COUNTS)
    if "generator" in whole and not _is_torch_state(_field(whole, "generator", str)):
        raise _mismatch("generator is not the state of a torch.Generator")
    if not _field(whole, "finished", bool):
        _check_streams(whole) if about["kind"] == _KINDS[True] else _check_order(whole)
    return whole


def compare(state: Mapping[str, Any], here: Facts) -> None:
    """Raise ``StateMismatch`` unless a checked state can be gone on from in the loader whose facts these are."""
    there: Mapping[str, Any] = state["loader"]
    own = here.plain()
    if there["kind"] != own["kind"]:
        raise _mismatch(
            f"it was taken from a loader over a dataset of the {there['kind']} kind; this one is {own['kind']}"
        )
    if state["finished"]:
        return
    for name, why in _REASONS.items():
        if there.get(name) != own[name]:
            raise _mismatch(f"it was taken with {name}={there.get(name)!r}, this loader has {own[name]!r}: {why}")


_REASONS = {
    "batch_size": "batches are counted, so an epoch can only be resumed with the same size",
    "length": "the epoch's order is one of the dataset as it was",
    "streams": "an iterable dataset is sharded by its workers, so it can only be resumed with the same num_workers",
    "sampler": "another sampler draws another order",
}


def _check_order(state: Mapping[str, Any]) -> None:
    order = _field(state, "order", Mapping)
    _number(order, "drawn", _COUNTS)
    _number(order, "digest", 1 << 32)
    if any(order.get(name) is not None and not _is_random(order[name]) for name in ("random", "began")):
        raise _mismatch("order.random is not the state of random generators")
    if "exchanged" in state:
        _number(state["loader"], "length", _COUNTS)
        members_of(_field(state, "exchanged", str), state["loader"]["length"])
    for group in _field(state, "pending", list):
        if not isinstance(group, list):
            raise _mismatch("pending is not a list of batches of indices")
        for index in group:
            indices.rebuilt(index)


def _check_streams(state: Mapping[str, Any]) -> None:
    streams = _field(state, "streams", list)
    if not streams or len(streams) != state["loader"].get("streams"):
        raise _mismatch("streams does not hold one entry per worker")
    _number(state, "turn", len(streams))
    for stream in streams:
        if not isinstance(stream, Mapping):
            raise _mismatch("streams holds something else than streams")
        _number(stream, "batches", _COUNTS)
        _field(stream, "ended", bool)
        if stream.get("state") is not None:
            _field(stream, "state", Mapping)
        for name in ("began", "random"):
            if stream.get(name) is not None and not generators.is_valid(generators.unpacked(_field(stream, name, str))):
                raise _mismatch(f"streams.{name} is not the state of a worker's random generators")


def _field(state: Mapping[str, Any], name: str, kind: type) -> Any:
    value = state.get(name)
    if not isinstance(value, kind):
        raise _mismatch(f"{name} is {value!r:.80}")
    return value


def _number(state: Mapping[str, Any], name: str, limit: int) -> None:
    value = state.get(name)
    if type(value) is not int or not 0 <= value < limit:
        raise _mismatch(f"{name} is {value!r:.80}")


def _is_torch_state(text: str) -> bool:
    """Whether it is the text of a torch generator's state."""
    try:
        torch.Generator().set_state(unpack_random(text))
    except (RuntimeError, ValueError):
        return False
    return True


def _is_random(text: Any) -> bool:
    """Whether it is the text of a sampler's source of random numbers, of either kind."""
    return isinstance(text, str) and (_is_torch_state(text) or generators.is_valid(generators.unpacked(text)))


def _mismatch(why: str) -> StateMismatch:
    return StateMismatch(f"load_state_dict(state): {why}")
