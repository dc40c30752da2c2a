"""Facts that a state holds of the loader it was taken from, and whether another loader may go on from there."""

from collections.abc import Mapping
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
from headrace.engine.worker.stateful import shuffles

_TRAITS: dict[type, tuple[str, ...]] = {
    SequentialSampler: (),
    RandomSampler: ("replacement", "num_samples"),
    SubsetRandomSampler: (),
    WeightedRandomSampler: ("replacement", "num_samples"),
    DistributedSampler: ("num_replicas", "rank", "shuffle", "seed", "drop_last"),
    BatchSampler: ("batch_size",),
}
"""Traits that decide about the order that torch's samplers draw, beside their length."""


KINDS = {True: "iterable", False: "map-style"}


def of_loader(
    dataset: Any, index_sampler: Any, batch_size: int | None, *, iterable: bool, workers: int
) -> dict[str, Any]:
    """The facts that must be the same where a state is taken and where it is loaded, for an epoch to go on."""
    return {
        "kind": KINDS[iterable],
        "length": None if iterable else length(dataset),
        "batch_size": batch_size,
        "streams": max(1, workers) if iterable else 0,  # which shard the dataset
        "sampler": shuffles(dataset) if iterable else _described(index_sampler),
    }


def compare(here: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Raise ``StateMismatch`` unless a checked state can be gone on from in the loader of which this is known."""
    there: Mapping[str, Any] = state["loader"]
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


def length(thing: Any) -> int | None:
    """The length of a thing; None where it does not say; samplers written for older releases of torch say so by
    ``NotImplementedError``.
    """
    try:
        return len(thing)
    except (TypeError, NotImplementedError):
        return None


def _described(sampler: Any) -> list[Any]:
    """The samplers described, from the outermost to the one that draws."""
    described: list[Any] = []
    while sampler is not None and len(described) < 16:
        traits: dict[str, Any] = {"type": type(sampler).__qualname__}
        if type(sampler) in _TRAITS:
            traits |= {name: getattr(sampler, name) for name in _TRAITS[type(sampler)]}
            if not isinstance(sampler, BatchSampler):
                traits["length"] = length(sampler)
        described.append(traits)
        inner = getattr(sampler, "batch_sampler", None)
        sampler = getattr(sampler, "sampler", None) if inner is None else inner
    return described


_REASONS = {
    "batch_size": "batches are counted, so an epoch can only be resumed with the same size",
    "length": "the epoch's order is one of the dataset as it was",
    "streams": "an iterable dataset is sharded by its workers, so it can only be resumed with the same num_workers",
    "sampler": "another sampler, or shuffle buffer, draws another order",
}


def mismatch(why: str) -> StateMismatch:
    """The error that ``load_state_dict`` raises."""
    return StateMismatch(f"load_state_dict(state): {why}")
