"""Collation that names the samples which cannot be collated, and leaves them out where failures are skipped."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import default_collate

from headrace.engine.members import key_of, member
from headrace.engine.worker import failure


class LeftOut(NamedTuple):
    """A batch without the samples that could not be collated."""

    batch: Any
    samples: int
    """Samples in it."""
    unfit: list[tuple[Any, BaseException]]
    """The index of each of the others, and why."""


def fitted(
    collate_fn: Callable[[Any], Any],
    samples: Any,
    indices: Callable[[], Sequence[Any]],
    dataset: Any,
    *,
    batched: bool,
    skips: bool,
) -> Any:
    """``collate_fn(samples)``, not ``batched`` of the only one. Where that fails because of some samples, the error
    names them; with ``skips`` they are left out instead, and what is returned is a ``LeftOut``.

    ``collate_fn`` is then called again, with samples one by one and two by two. ``indices`` is asked only then.
    """
    if not batched:
        whole, collate_fn = collate_fn, lambda samples: whole(samples[0])
    kept = samples if collate_fn is default_collate else _spared(samples)
    try:
        return collate_fn(samples)
    except Exception as error:
        if collate_fn is default_collate and (forward := _forward(samples)) is not samples:
            return fitted(collate_fn, forward, indices, dataset, batched=True, skips=skips)
        bad = _refused(collate_fn, kept, error) if isinstance(kept, Sequence) else {}
        among = enumerate(indices()) if bad else ()
        found = {place: (index, _said(dataset, index, bad[place])) for place, index in among if place in bad}
        if not found:
            raise
        rest = [sample for place, sample in enumerate(kept) if place not in found]
        if skips:
            left = [(index, _raised(error, why)) for index, why in found.values()]
            if not rest:
                return LeftOut(None, 0, left)
            try:
                return LeftOut(collate_fn(rest), len(rest), left)
            except Exception:  # noqa: BLE001, S110  (so they were not all that is wrong: the first error says more)
                pass
        for _, why in found.values():
            error.add_note(f"headrace: {why}")
        raise


def _forward(value: Any) -> Any:
    """Samples whose arrays torch can take, which it cannot where an array goes backwards; the same where none does.

    Workers write such arrays into a batch without asking torch.
    """
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value) if min(value.strides, default=0) < 0 else value
    parts = list(value.values()) if type(value) is dict else list(value) if isinstance(value, (tuple, list)) else []
    made = [_forward(part) for part in parts]
    if all(new is part for new, part in zip(made, parts, strict=True)):
        return value
    if type(value) is dict:
        return dict(zip(value, made, strict=True))
    kind: Any = type(value)
    return kind(*made) if hasattr(value, "_fields") else kind(made)


def _refused(collate_fn: Callable[[Any], Any], samples: Sequence[Any], error: Exception) -> dict[int, str]:
    """Places of the samples that ``error`` is owed to, and how it is; {} where nobody can tell."""
    if len(samples) == 1:
        return {0: _cannot(error)}
    alone = {place: why for place, sample in enumerate(samples) if (why := _failing(collate_fn, [sample])) is not None}
    if alone:
        # One that refuses every sample by itself wants several, or is itself at fault.
        return alone if len(alone) < len(samples) else {}
    odd = unfit(samples)
    usual = next((place for place in range(len(samples)) if place not in odd), 0)
    # Many a function takes samples that differ, as in length: those are no reason.
    return {
        place: why
        for place, why in odd.items()
        if _failing(collate_fn, [*_spared([samples[usual]]), samples[place]]) is not None
    }


def _failing(collate_fn: Callable[[Any], Any], samples: list[Any]) -> str | None:
    """The reason why these samples cannot be collated, in words: the error itself would keep the memory they lie
    in.
    """
    try:
        collate_fn(_spared(samples))
    except Exception as error:  # noqa: BLE001  (the user's function)
        return _cannot(error)
    return None


def _spared(samples: Any) -> Any:
    """Samples that a function may take apart while others stay whole: their own lists and dictionaries are copied."""
    return [_copied(sample) for sample in samples] if type(samples) is list else samples


def _copied(sample: Any) -> Any:
    if type(sample) is tuple:
        return tuple([_copied(part) for part in sample])
    return sample.copy() if type(sample) in {dict, list} else sample


def _cannot(error: Exception) -> str:
    return f"cannot be collated: {failure.shortened(f'{type(error).__name__}: {error}', failure.LEAST)}"


def _raised(error: Exception, why: str) -> BaseException:
    """The error for a sample that was left out. It is of the error's type where that can be had in any process."""
    return failure.rebuilt(type(error) if type(error).__module__ == "builtins" else RuntimeError, why)


def unfit(samples: Any) -> dict[int, str]:
    """Places of samples that are not of the commonest kind, and how they differ; {} where nobody can tell."""
    if not isinstance(samples, Sequence):
        return {}
    kinds = [described(sample) for sample in samples]
    (common, many), *others = Counter(kinds).most_common(2) or [("", 0)]
    if not others or others[0][1] == many:
        return {}
    return {
        place: f"does not fit its batch: it is {kind}, and most of its batch are {common}"
        for place, kind in enumerate(kinds)
        if kind != common
    }


def described(sample: Any) -> str:
    """The properties of a sample that matter to collation: types, element types, shapes."""
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
    return f"sample {index!r}{named} {how}"
