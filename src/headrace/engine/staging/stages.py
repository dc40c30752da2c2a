"""A dataset's samples in three steps, with what a cache must know of each: how, how often alike, and of what file."""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from headrace.cache import words as W
from headrace.cache.code import title
from headrace.cache.fingerprint import Held, Method, fingerprint
from headrace.cache.state import held
from headrace.core.errors import CacheError
from headrace.engine.staging.images import picture
from headrace.engine.staging.lists import HOLDERS
from headrace.engine.staging.prefix import apply, cut

STAGES = ("fetch", "decode", "augment")
HOW = (
    "give it three methods: `fetch(index)`, which returns what is stored (bytes, say), `decode(encoded)`, which always "
    "returns the same for the same, and `augment(decoded)`, which returns the sample; and let `__getitem__(index)` "
    "return `self.augment(self.decode(self.fetch(index)))`, so that it works without a cache too"
)


Scopes = tuple[str, str, str]
"""Fingerprints of what makes encoded, decoded and augmented samples."""


class Stage(NamedTuple):
    """One step of making a sample."""

    name: str
    form: int
    """What a cache calls what it makes."""
    run: Callable[[Any], Any]
    """Makes it of what the stage before made; the first one is given the index."""
    keeps: bool = True
    """Whether what it makes is worth keeping."""


class Stages(NamedTuple):
    """What a worker does for ``dataset[index]``, from the beginning or from any form that it is given."""

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

    def after(self, form: int) -> tuple[Stage, ...]:
        """What is left to be done with a sample that is there in this form; all of it for ``NOWHERE``."""
        return self.steps[form:]


def _steps(source: Any, *, encodes: bool = True) -> tuple[Stage, ...]:
    """Those of whatever has the three methods. ``encodes``: whether what it fetches is worth keeping."""
    return (
        Stage("fetch", W.ENCODED, source.fetch, encodes),
        Stage("decode", W.DECODED, source.decode),
        Stage("augment", W.AUGMENTED, source.augment),
    )


def staged(dataset: Any, scopes: Scopes | None = None) -> Stages:
    """The stages of a dataset that has them, of torchvision's folders, and of subsets of either.

    ``scopes``: what they are, where that is known already: telling costs a look at all of a dataset. ``CacheError`` for
    other datasets, which says what to do. To be asked before the dataset's operations are noted for a trace, which
    changes the methods that are looked at.
    """
    if (
        isinstance(dataset, torch.utils.data.Subset)
        and type(dataset).__getitem__ is torch.utils.data.Subset.__getitem__
    ):
        return _subset(staged(dataset.dataset, scopes), dataset.indices)
    if callable(getattr(type(dataset), "stages", None)):  # one that stands for another
        within: Stages = dataset.stages(scopes)
        return within
    if all(callable(getattr(type(dataset), name, None)) for name in STAGES):
        return _own(dataset, scopes or _own_scopes(dataset))
    if is_folder(dataset):
        return _folder(dataset, scopes)
    if isinstance(dataset, torch.utils.data.IterableDataset):
        msg = f"a cache needs a dataset with indices, and {type(dataset).__name__} is iterable only"
        raise CacheError(msg)
    msg = f"{type(dataset).__name__} cannot be cached, for it does not say which of its steps are alike: {HOW}"
    raise CacheError(msg)


def is_folder(dataset: Any) -> bool:
    """Whether it is one of torchvision's folders of pictures, and makes samples as they do."""
    getter = getattr(type(dataset), "__getitem__", None)
    return getattr(getter, "__module__", "") == "torchvision.datasets.folder" and hasattr(dataset, "samples")


def opens(folder: Any) -> bool:
    """Whether a folder's files are opened by torchvision's own loader, so that they may be read by others."""
    loader = folder.loader
    ours = getattr(loader, "__module__", "") == "torchvision.datasets.folder"
    return ours and loader.__name__ in {"default_loader", "pil_loader"}


def unasked(dataset: Any) -> str:
    """A fingerprint of a dataset, in which objects that say themselves what they are, as stores do, are not asked."""
    return fingerprint(*_parts(dataset), asks=False)


def revision(dataset: Any) -> Any:
    """What a dataset says of the state of its data, which others may change between epochs; None: nothing."""
    told = getattr(_whole(dataset), "revision", None)
    return told() if callable(told) else None


def _whole(dataset: Any) -> Any:
    """That of which a dataset is a part, or for which it stands."""
    while isinstance(dataset, torch.utils.data.Subset) or callable(getattr(type(dataset), "stages", None)):
        dataset = dataset.dataset
    return dataset


def _parts(dataset: Any) -> tuple[Any, ...]:
    dataset = _whole(dataset)
    if all(callable(getattr(type(dataset), name, None)) for name in STAGES):
        return tuple(part for parts in _own_parts(dataset) for part in parts)
    return _folder_parts(dataset, _Folder(dataset))


def check_staged(dataset: Any) -> None:
    """Raises ``CacheError`` for a dataset that has no stages, or of which something cannot be told.

    The fingerprint itself is left for later: stores are not asked yet.
    """
    staged(dataset, ("", "", ""))
    unasked(dataset)


def _subset(whole: Stages, indices: Any) -> Stages:
    def origin(index: int) -> int:
        return whole.origin(indices[index])

    def stamp(index: int) -> tuple[int, ...] | None:
        return whole.stamp(indices[index])

    def naming(index: int) -> AbstractContextManager[None]:
        return whole.naming(indices[index])

    fetch, *others = whole.steps
    inner = fetch._replace(run=lambda index: fetch.run(indices[index]))
    return whole._replace(steps=(inner, *others), origin=origin, stamp=stamp, naming=naming)


def _own_scopes(dataset: Any) -> Scopes:
    scopes = [fingerprint(title(type(dataset)))]
    for parts in _own_parts(dataset):
        scopes.append(fingerprint(scopes[-1], *parts))
    return scopes[1], scopes[2], scopes[3]


def _own_parts(dataset: Any) -> list[tuple[Any, ...]]:
    """For each stage: the method, with all that it reaches, and what of the dataset it depends on."""
    known = _known(dataset)
    return [(Method(type(dataset), name), known.get(name)) for name in STAGES]


def _own(dataset: Any, scopes: Scopes) -> Stages:
    stamp = getattr(dataset, "stamp", _no_stamp)
    found = Stages(_steps(dataset), scopes, int, len(dataset), stamp)
    return found._replace(naming=dataset.naming) if hasattr(dataset, "naming") else found


def _known(dataset: Any) -> Mapping[str, Any]:
    """What each stage depends on beside its code: what the dataset says, or else all that it holds.

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


class _Folder:
    """An image folder's own ``__getitem__``, in steps. Targets are looked up, not kept."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.kept, self.rest, _ = cut(dataset.transform)
        self.opens = opens(dataset)

    def fetch(self, index: int) -> Any:
        path, target = self.dataset.samples[index]
        return (Path(path).read_bytes() if self.opens else path), target

    def decode(self, encoded: Any) -> Any:
        content, target = encoded
        found = picture(content) if self.opens else self.dataset.loader(content)
        return apply(self.kept, found), target

    def augment(self, decoded: Any) -> Any:
        sample, target = decoded
        change = self.dataset.target_transform
        return apply(self.rest, sample), target if change is None else change(target)

    def stamp(self, index: int) -> tuple[int, ...]:
        found = Path(self.dataset.samples[index][0]).stat()
        return found.st_size, found.st_mtime_ns


def _folder_scopes(dataset: Any, folder: _Folder) -> Scopes:
    root = os.fspath(getattr(dataset, "root", ""))
    within = os.path.join(root, "")  # noqa: PTH118  (paths are texts here, and a million of them)
    names = [path.removeprefix(within) for path, _ in dataset.samples]
    targets = np.array([target for _, target in dataset.samples])
    data = fingerprint("folder", os.path.realpath(root), names, targets)
    loader, kept, rest, change = _folder_parts(dataset, folder)
    decoded = fingerprint(data, loader, kept)
    return data, decoded, fingerprint(decoded, rest, change)


def _folder_parts(dataset: Any, folder: _Folder) -> tuple[Any, ...]:
    """What opens a file, what is kept of its picture, what is made of that, and of the target."""
    loader = (picture, "as torchvision opens it") if folder.opens else dataset.loader
    return loader, folder.kept, folder.rest, dataset.target_transform


def _folder(dataset: Any, scopes: Scopes | None) -> Stages:
    folder = _Folder(dataset)
    scopes = scopes or _folder_scopes(dataset, folder)
    return Stages(_steps(folder, encodes=folder.opens), scopes, int, len(dataset.samples), folder.stamp)
