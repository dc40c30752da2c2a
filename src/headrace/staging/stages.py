"""A dataset's samples in three steps, with what a cache must know of each: how, how often alike, and of what file."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import ConcatDataset, IterableDataset, StackDataset, Subset

from headrace.cache.backends import entry_word as W
from headrace.cache.fingerprints.code import title
from headrace.cache.fingerprints.fingerprint import Held, Method, Reader, Remembered, fingerprint
from headrace.cache.fingerprints.object_state import held
from headrace.core.errors import CacheError
from headrace.engine.members import part_of
from headrace.staging.composition import STAGES, bypassed, has_stages, is_ours, refusal
from headrace.staging.folders import Folder, folder_parts, folder_scopes, is_folder, is_like_a_folder
from headrace.staging.lists import HOLDERS

HOW = (
    "give it three methods: `fetch(index)`, which returns what is stored (bytes, say), `decode(encoded)`, which always "
    "returns the same for the same, and `augment(decoded)`, which returns the sample; and let `__getitem__(index)` "
    "return `self.augment(self.decode(self.fetch(index)))`, so that it works without a cache too"
)


Run = Callable[[Any], Any]
Noted = Callable[[Any, str, Run], Run]
"""Makes of a dataset's stage, by name, one that does the same and is looked at."""
Scopes = tuple[str, str, str]
"""Fingerprints of what makes encoded, decoded and augmented samples."""


class Stage(NamedTuple):
    """A single step of making a sample."""

    name: str
    form: int
    """What a cache calls what it makes."""
    run: Run
    """Makes it of what the stage before made; the first one is given the index."""
    keeps: bool = True
    """Whether what it makes is worth keeping."""
    to_keep: Callable[[Any], Any] | None = None
    """Makes what a cache is to keep, where ``run`` leaves that to a device."""


@dataclass(frozen=True)
class OwnNumber:
    """The number of a sample of a dataset that is no part of another: its index, from the front."""

    samples: int

    def __call__(self, index: int) -> int:
        """``IndexError`` where there is none: another's entry would be taken for it."""
        number = int(index)
        number += self.samples if number < 0 else 0
        if not 0 <= number < self.samples:
            msg = f"there is no sample {int(index)}: the dataset has {self.samples}"
            raise IndexError(msg)
        return number


class Stages(NamedTuple):
    """The steps that a worker takes for ``dataset[index]``, from the beginning or from any form that it is given."""

    steps: tuple[Stage, ...]
    """One for each form, in the order of the forms."""
    scopes: Scopes
    origin: Callable[[int], int]
    """The number under which a sample is kept: datasets that are parts of one share what is kept of it."""
    samples: int
    """Numbers that ``origin`` may give."""
    stamp: Callable[[int], tuple[int, ...] | None]
    """What tells one state of the sample's file from another; None where a sample has no file of its own."""
    naming: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext()
    """What the dataset adds to errors of a sample, as its own ``__getitem__`` does."""

    def run(self, index: int, value: Any, form: int = W.NOWHERE) -> Any:
        """A sample, of what there is of it in this form; errors say which it is, as the dataset's own do."""
        try:
            for stage in self.after(form):
                value = stage.run(value)
        except Exception:
            with self.naming(index):
                raise
        return value

    def upto(self, index: int, form: int) -> Any:
        """The form of a sample that a cache would keep, made from the beginning."""
        value: Any = index
        for stage in self.steps[:form]:
            value = (stage.to_keep if stage.to_keep is not None and stage.form == form else stage.run)(value)
        return value

    def after(self, form: int) -> tuple[Stage, ...]:
        """The steps left for a sample that is there in this form; all of them for ``NOWHERE``."""
        return self.steps[form:]


def _steps(source: Any, noted: Noted | None, *, encodes: bool = True) -> tuple[Stage, ...]:
    """The steps of an object that has the three methods, as it has them when they are called.

    ``encodes``: whether what it fetches is worth keeping.
    """

    def late(name: str) -> Run:
        def run(given: Any) -> Any:
            stage = getattr(source, name)
            return stage(given)

        return run if noted is None else noted(source, name, run)

    return (
        Stage("fetch", W.ENCODED, late("fetch"), encodes),
        Stage("decode", W.DECODED, late("decode")),
        Stage("augment", W.AUGMENTED, late("augment")),
    )


class StandingDataset(ABC):
    """A dataset that stands for another."""

    dataset: Any

    @abstractmethod
    def stages(self, scopes: Scopes | None, noted: Noted | None) -> Stages:
        """See ``staged``."""


def staged(dataset: Any, scopes: Scopes | None = None, noted: Noted | None = None) -> Stages:
    """The stages of a dataset that has them, of torchvision's folders, and of what torch makes of several of these.

    ``scopes``: what they are, where that is known already: telling costs a look at all of a dataset. ``CacheError`` for
    other datasets, and for those with a ``__getitem__`` that is more than their stages; it says what to do.
    ``noted``: who looks at the stages of every dataset.
    """
    if is_own(dataset, Subset):
        return _subset(staged(dataset.dataset, scopes, noted), dataset)
    if is_own(dataset, ConcatDataset):
        return _concatenated(dataset, [staged(each, scopes, noted) for each in dataset.datasets], scopes)
    if is_own(dataset, StackDataset):
        return _stacked(dataset, [staged(each, scopes, noted) for each in _several(dataset)], scopes)
    if isinstance(dataset, StandingDataset):
        return dataset.stages(scopes, noted)
    if has_stages(dataset):
        if (method := bypassed(dataset)) is not None:
            raise CacheError(f"cache=: {refusal(dataset, method, 'a cache')}")
        return _own(dataset, scopes or _own_scopes(dataset), noted)
    if is_folder(dataset):
        return _folder(dataset, scopes, noted)
    if isinstance(dataset, IterableDataset):
        msg = f"a cache needs a dataset with indices, and {type(dataset).__name__} is iterable only"
        raise CacheError(msg)
    name, why = type(dataset).__name__, "it does not say which of its steps are alike"
    if isinstance(dataset, (Subset, ConcatDataset, StackDataset)) or is_like_a_folder(dataset):
        why = "it has a `__getitem__` or `__getitems__` of its own, which a cache would not call"
    msg = f"{name} cannot be cached, for {why}: {HOW}"
    raise CacheError(msg)


def is_own(dataset: Any, kind: Any) -> bool:
    """True if the dataset is one of that class of torch's, and gives samples as they do, one by one or in bulk."""
    alike = (
        getattr(type(dataset), name, None) is getattr(kind, name, None) for name in ("__getitem__", "__getitems__")
    )
    return isinstance(dataset, kind) and all(alike) and "__getitems__" not in vars(dataset)


def unasked(dataset: Any) -> str:
    """A fingerprint of a dataset, in which objects that say themselves what they are, as stores do, are not asked."""
    return fingerprint(*_parts(dataset), asks=False)


def quick(dataset: Any, remembered: Remembered) -> str:
    """The same, of a dataset that was looked at before: nothing large is looked into, and no store is asked."""
    return Reader(asks=False, remembered=remembered).whole(_parts(dataset))


def standing(dataset: Any, *, afresh: bool = False) -> tuple[Any, ...]:
    """The state of the data of each dataset that is read, at this moment, where finding that out takes next to
    nothing.

    ``afresh``: the dataset looks again, whatever it has looked at before.
    """
    told = (getattr(each, "store_standing", None) for each in _leaves(dataset))
    return tuple(each(afresh=afresh) if callable(each) else None for each in told)


def revision(dataset: Any) -> tuple[Any, ...]:
    """The revision of the data of each dataset that is read; others may change the data between epochs."""
    told = (getattr(each, "revision", None) for each in _leaves(dataset))
    return tuple(each() if callable(each) else None for each in told)


def told_revisions(dataset: Any) -> tuple[str | None, ...]:
    """The revision by which each dataset that is read over a network was told apart last; None for the others."""
    told = (getattr(each, "told_revision", None) for each in _leaves(dataset))
    return tuple(each() if callable(each) else None for each in told)


def are_told(dataset: Any, revisions: tuple[str | None, ...]) -> bool:
    """True if each dataset that is read over a network is of its revision still, as far as it can say. Takes a round
    trip for each.
    """
    pairs = zip(_leaves(dataset), revisions, strict=True)
    return all(revision is None or each.is_told(revision) for each, revision in pairs)


def _leaves(dataset: Any) -> Iterator[Any]:
    """The datasets that are read: that of which a dataset is a part, those of which it consists, or for which it
    stands.
    """
    if isinstance(dataset, (Subset, StandingDataset)):
        yield from _leaves(dataset.dataset)
    elif isinstance(dataset, (ConcatDataset, StackDataset)):
        for each in _several(dataset):
            yield from _leaves(each)
    else:
        yield dataset


def _several(dataset: Any) -> list[Any]:
    """The datasets of which it consists."""
    found = dataset.datasets
    return list(found.values() if isinstance(found, dict) else found)


def _parts(dataset: Any) -> tuple[Any, ...]:
    return tuple(part for each in _leaves(dataset) for part in _leaf_parts(each))


def _leaf_parts(dataset: Any) -> tuple[Any, ...]:
    if has_stages(dataset):
        return tuple(part for parts in _own_parts(dataset) for part in parts)
    return folder_parts(dataset, Folder(dataset))


def check_staged(dataset: Any) -> None:
    """Raises ``CacheError`` for a dataset that has no stages, or of which something cannot be told.

    The fingerprint itself is left for later: stores are not asked yet.
    """
    staged(dataset, ("", "", ""))
    unasked(dataset)


def _subset(whole: Stages, part: Any) -> Stages:
    def within(asked: Callable[[int], Any]) -> Callable[[int], Any]:
        return lambda index: asked(part.indices[index])

    fetch, *others = whole.steps
    steps = (fetch._replace(run=within(fetch.run)), *others)
    return whole._replace(
        steps=steps, origin=within(whole.origin), stamp=within(whole.stamp), naming=within(whole.naming)
    )


def _concatenated(dataset: Any, parts: list[Stages], scopes: Scopes | None) -> Stages:
    """The stages of datasets one after the other. What is kept of a sample says of which of them it is."""
    before = [0, *accumulate(part.samples for part in parts)]

    def origin(index: int) -> int:
        part, within = part_of(dataset, index)
        return before[part] + parts[part].origin(within)

    def asked(each: list[Callable[[int], Any]]) -> Callable[[int], Any]:
        def ask(index: int) -> Any:
            part, within = part_of(dataset, index)
            return each[part](within)

        return ask

    stamp, naming = asked([part.stamp for part in parts]), asked([part.naming for part in parts])

    def of_part(number: int) -> Callable[[Any], Any]:
        def run(given: Any) -> Any:
            part, value = part_of(dataset, given) if number == 0 else given
            made = parts[part].steps[number].run(value)
            return made if number == len(STAGES) - 1 else (part, made)

        return run

    together = scopes or _together(parts, before)
    return Stages(_several_steps(parts, of_part), together, origin, before[-1], stamp, naming)


def _stacked(dataset: Any, parts: list[Stages], scopes: Scopes | None) -> Stages:
    """Side by side: a sample is one of each. Which ones belong together is part of what they are told by."""
    several = dataset.datasets

    def stamp(index: int) -> tuple[int, ...] | None:
        found = [part.stamp(index) for part in parts]
        known = [number for each in found for number in (-1 if each is None else len(each), *(each or ()))]
        return None if all(each is None for each in found) else tuple(known)

    def of_all(number: int) -> Callable[[Any], Any]:
        def run(given: Any) -> Any:
            values = [given] * len(parts) if number == 0 else given
            made = tuple(part.steps[number].run(value) for part, value in zip(parts, values, strict=True))
            is_dict = number == len(STAGES) - 1 and isinstance(several, dict)
            return dict(zip(several, made, strict=True)) if is_dict else made

        return run

    count = len(dataset)
    pairs = [np.fromiter(map(part.origin, range(count)), np.int64, count) for part in parts] if not scopes else []
    names = list(several) if isinstance(several, dict) else None
    together = scopes or _together(parts, (names, pairs))
    return Stages(_several_steps(parts, of_all), together, OwnNumber(count), count, stamp)


def _together(parts: list[Stages], how: Any) -> Scopes:
    """The fingerprints of several datasets together, form by form."""
    by_form = zip(*(part.scopes for part in parts), strict=True)
    encoded, decoded, augmented = (fingerprint(how, *scopes) for scopes in by_form)
    return encoded, decoded, augmented


def _several_steps(parts: list[Stages], run: Callable[[int], Callable[[Any], Any]]) -> tuple[Stage, ...]:
    """``run``: what does the step of that number. What one of them does not keep, is not kept."""
    every = zip(*(part.steps for part in parts), strict=True)
    return tuple(
        Stage(same[0].name, same[0].form, run(number), all(each.keeps for each in same))
        for number, same in enumerate(every)
    )


def _own_scopes(dataset: Any) -> Scopes:
    scopes = [fingerprint(title(type(dataset)))]
    for parts in _own_parts(dataset):
        scopes.append(fingerprint(scopes[-1], *parts))
    return scopes[1], scopes[2], scopes[3]


def _own_parts(dataset: Any) -> list[tuple[Any, ...]]:
    """The parts of each stage: the method, with all that it reaches, and what of the dataset it depends on."""
    known, own = _known(dataset), getattr(dataset, "__dict__", {})
    return [(Method(type(dataset), name), known.get(name), own.get(name)) for name in STAGES]


def _own(dataset: Any, scopes: Scopes, noted: Noted | None) -> Stages:
    stamp, count = getattr(dataset, "stamp", _no_stamp), len(dataset)
    found = Stages(_steps(dataset, noted), scopes, OwnNumber(count), count, stamp)
    return found._replace(naming=dataset.naming) if is_ours(dataset) else found


def _known(dataset: Any) -> Mapping[str, Any]:
    """The values that each stage depends on beside its code: what the dataset says, or else all that it holds.

    ``cache_fingerprint()`` returns a mapping with an item for each stage, or one value for all of them.
    """
    told = getattr(dataset, "cache_fingerprint", None)
    if not callable(told):
        kind, attributes = type(dataset), held(dataset)
        return {
            "fetch": Held(kind, {name: value for name, value in attributes.items() if name not in HOLDERS}),
            "decode": Held(kind, {name: value for name, value in attributes.items() if name in HOLDERS}),
        }
    found = told()
    return found if isinstance(found, Mapping) and set(found) == set(STAGES) else {"fetch": found}


def _no_stamp(index: int) -> None:
    """A sample without a file of its own."""


def _folder(dataset: Any, scopes: Scopes | None, noted: Noted | None) -> Stages:
    folder = Folder(dataset)
    scopes, count = scopes or folder_scopes(dataset, folder), len(dataset.samples)
    return Stages(_steps(folder, noted, encodes=folder.opens), scopes, OwnNumber(count), count, folder.stamp)
