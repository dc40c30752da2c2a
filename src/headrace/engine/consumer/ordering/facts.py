"""What a state says of the loader it was taken from, and whether another loader may go on from there."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from headrace.core.errors import StateMismatch

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
        return {
            "kind": KINDS[self.iterable],
            "length": self.length,
            "batch_size": self.batch_size,
            "streams": self.streams,
            "sampler": self.sampler,
        }

    def compare(self, state: Mapping[str, Any]) -> None:
        """Raise ``StateMismatch`` unless a checked state can be gone on from in the loader whose facts these are."""
        there: Mapping[str, Any] = state["loader"]
        here = self.plain()
        if there["kind"] != here["kind"]:
            raise mismatch(
                f"it was taken from a loader over a dataset of the {there['kind']} kind; this one is {here['kind']}"
            )
        if state["finished"]:
            return
        for name, why in _REASONS.items():
            if there.get(name) != here[name]:
                raise mismatch(
                    f"it was taken with {name}={there.get(name)!r:.200}, this loader has {here[name]!r:.200}: {why}"
                )


KINDS = {True: "iterable", False: "map-style"}


def of_loader(dataset: Any, index_sampler: Any, batch_size: int | None, *, iterable: bool, workers: int) -> Facts:
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


_REASONS = {
    "batch_size": "batches are counted, so an epoch can only be resumed with the same size",
    "length": "the epoch's order is one of the dataset as it was",
    "streams": "an iterable dataset is sharded by its workers, so it can only be resumed with the same num_workers",
    "sampler": "another sampler draws another order",
}


def mismatch(why: str) -> StateMismatch:
    """What ``load_state_dict`` raises."""
    return StateMismatch(f"load_state_dict(state): {why}")
