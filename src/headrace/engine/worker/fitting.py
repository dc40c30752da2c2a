"""Collation that names the sample which does not fit its batch, and leaves it out where failures are skipped."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from headrace.engine.staging.members import key_of, member


class LeftOut(NamedTuple):
    """A batch without the samples that did not fit."""

    batch: Any
    samples: int
    """Samples in it."""
    unfit: list[tuple[Any, Exception]]
    """The index of each of the others, and why."""


def fitted(
    collate_fn: Callable[[Any], Any], samples: Any, indices: Callable[[], Sequence[Any]], dataset: Any, *, skips: bool
) -> Any:
    """``collate_fn(samples)``. Where that fails because of a few samples that are of another kind than most, the error
    names them; with ``skips`` they are left out instead, and what is returned is a ``LeftOut``.

    ``indices`` is asked only then.
    """
    try:
        return collate_fn(samples)
    except Exception as error:
        odd = unfit(samples)
        if not odd:
            raise
        found = {
            place: (index, _said(dataset, index, odd[place])) for place, index in enumerate(indices()) if place in odd
        }
        if skips:
            rest = [sample for place, sample in enumerate(samples) if place not in found]
            try:
                return LeftOut(collate_fn(rest), len(rest), [(index, TypeError(why)) for index, why in found.values()])
            except Exception:  # noqa: BLE001, S110  (so they were not all that is wrong: the first error says more)
                pass
        for _, why in found.values():
            error.add_note(f"headrace: {why}")
        raise


def unfit(samples: Any) -> dict[int, str]:
    """Places of samples that are not of the commonest kind, and how they differ; {} where nobody can tell."""
    if not isinstance(samples, Sequence):
        return {}
    kinds = [described(sample) for sample in samples]
    (common, many), *others = Counter(kinds).most_common(2) or [("", 0)]
    if not others or others[0][1] == many:
        return {}
    return {
        place: f"is {kind}, and most of its batch are {common}" for place, kind in enumerate(kinds) if kind != common
    }


def described(sample: Any) -> str:
    """What matters to collation: types, element types, shapes."""
    if isinstance(sample, torch.Tensor) and sample.layout is torch.strided and not sample.is_nested:
        return f"{type(sample).__name__} of {str(sample.dtype).removeprefix('torch.')} {tuple(sample.shape)}"
    if isinstance(sample, np.ndarray):
        return f"array of {sample.dtype} {sample.shape}"
    if isinstance(sample, Mapping):
        return "{" + ", ".join(f"{key}: {described(value)}" for key, value in sample.items()) + "}"
    if isinstance(sample, (tuple, list)):
        return "(" + ", ".join(map(described, sample)) + ")"
    return type(sample).__name__


def _said(dataset: Any, index: Any, how: str) -> str:
    dataset, index = member(dataset, index)
    key = key_of(dataset, index)
    named = "" if key is None else f" with the key {key!r}"
    return f"sample {index!r}{named} does not fit its batch: it {how}"
