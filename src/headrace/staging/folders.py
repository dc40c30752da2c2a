"""Torchvision's folders of pictures in stages: what opens a file, what is kept of its picture, what follows."""

import os
import sys
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from headrace.cache.fingerprints.fingerprint import fingerprint
from headrace.staging.composition import in_bulk
from headrace.staging.opening import picture
from headrace.staging.prefix import PipelineParts, apply, cut


def is_folder(dataset: Any) -> bool:
    """True if the dataset is one of torchvision's folders of pictures, and makes samples as they do."""
    if not is_like_a_folder(dataset) or in_bulk(dataset) is not None:
        return False
    getter = type(dataset).__getitem__
    return getter is _folder_class().__getitem__ and getter.__module__ == _MODULE


def is_like_a_folder(dataset: Any) -> bool:
    """True if the dataset's class is one of torchvision's folders of pictures, or derived from one."""
    kind = _folder_class()
    return kind is not None and isinstance(dataset, kind)


_MODULE = "torchvision.datasets.folder"


def _folder_class() -> Any:
    """The class of torchvision's folders, if this process has it: without, there is no object of it."""
    return getattr(sys.modules.get(_MODULE), "DatasetFolder", None)


def opens(folder: Any) -> bool:
    """True if a folder's files are opened by torchvision's own loader, so that they may be read by others."""
    loader = folder.loader
    ours = getattr(loader, "__module__", "") == "torchvision.datasets.folder"
    return ours and loader.__name__ in {"default_loader", "pil_loader"}


def _content(path: str) -> bytes:
    """The content of a file, read at half the cost of going by way of a ``Path`` and a buffer."""
    with FileIO(path) as file:
        return file.readall()


class Folder:
    """An image folder's own ``__getitem__``, in steps. Targets are looked up, not kept."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.opens = opens(dataset)

    @property
    def parts(self) -> PipelineParts:
        """The parts of the transform as it is now."""
        return cut(self.dataset.transform)

    def fetch(self, index: int) -> Any:
        path, target = self.dataset.samples[index]
        return (_content(path) if self.opens else path), target

    def decode(self, encoded: Any) -> Any:
        content, target = encoded
        found = picture(content) if self.opens else self.dataset.loader(content)
        return apply(self.parts.kept, found, self.dataset.transform), target

    def augment(self, decoded: Any) -> Any:
        sample, target = decoded
        parts, change = self.parts, self.dataset.target_transform
        sample = apply(parts.rest, sample, self.dataset.transform, len(parts.kept))
        return sample, target if change is None else apply((change,), target, change)

    def stamp(self, index: int) -> tuple[int, ...]:
        found = Path(self.dataset.samples[index][0]).stat()
        return found.st_size, found.st_mtime_ns


def folder_scopes(dataset: Any, folder: Folder) -> tuple[str, str, str]:
    """Fingerprints of what makes each form: files by name and target, since reading them all would take too long."""
    root = os.fspath(getattr(dataset, "root", ""))
    within = os.path.join(root, "")  # noqa: PTH118  (paths are texts here, and a million of them)
    names = [path.removeprefix(within) for path, _ in dataset.samples]
    targets = np.array([target for _, target in dataset.samples])
    data = fingerprint("folder", os.path.realpath(root), names, targets)
    loader, kept, rest, change = folder_parts(dataset, folder)
    decoded = fingerprint(data, loader, kept)
    return data, decoded, fingerprint(decoded, rest, change)


def folder_parts(dataset: Any, folder: Folder) -> tuple[Any, ...]:
    """The function that opens a file, the transforms whose result is kept, the later ones, and the target's."""
    loader = (picture, "as torchvision opens it") if folder.opens else dataset.loader
    return loader, folder.parts.kept, folder.parts.rest, dataset.target_transform
