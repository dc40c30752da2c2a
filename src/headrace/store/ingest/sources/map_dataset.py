"""Samples of a map-style dataset: torchvision's by name, or whatever a function of the user's returns."""

import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from headrace.core.errors import IngestError
from headrace.store.base import Kind, LabelKind, Scalar
from headrace.store.catalogues.columns import CLASS
from headrace.store.ingest.source_options import ReadOptions
from headrace.store.ingest.sources.item_source import IngestSource, Item, Loaded, SourceShape, Where

INDEX = "index"
LOOKED_AT = 100
"""Samples that may be bad before the dataset is called so."""
_WORDS: Mapping[str, Any] = {"true": True, "false": False, "none": None}
_ELSEWHERE = ("root", "download")
"""Arguments that say where the data lie, not what they are."""


class MapDataset(IngestSource):
    """``torchvision:CIFAR10?root=data&train=true`` or ``module:factory?argument=value``.

    Samples are pictures of Pillow's, arrays, tensors or bytes, or pairs of these and a label: an integer, or an array
    or picture. They are read as the dataset gives them, transforms included.
    """

    def __init__(self, text: str, reading: ReadOptions) -> None:
        other = ("label", "label_files", "key", "root", "types", "extensions", "payload", "path_column")
        reading.refuse(other, "datasets, which say themselves what a sample is")
        target, _, query = text.partition("?")
        self.name = target
        self._module, _, self._attribute = target.partition(":")
        self._arguments = {name: _argument(value) for name, value in parse_qsl(query, keep_blank_values=True)}
        identifying = [f"{name}={value}" for name, value in self._arguments.items() if name not in _ELSEWHERE]
        self._ident = ":".join([target, *identifying])
        self.where = Where(self._ident)
        self._reading = reading
        self._made: Any = None

    def shape(self) -> SourceShape:
        dataset = self._dataset()
        number = len(dataset)
        if not number:
            raise IngestError(f"{self.name}: the dataset is empty")
        label = self._first_label(dataset, number)
        kinds = {INDEX: Kind.INTEGER}
        classes = self._names() if _integer(label) is not None else None
        if classes is not None:
            kinds[CLASS] = Kind.TEXT
        labels = LabelKind.NONE if label is None else LabelKind.BLOB if _integer(label) is None else LabelKind.INTEGER
        numbers = {name: place for place, name in enumerate(classes or ())}
        return SourceShape(labels, kinds, classes, number, numbers)

    def _first_label(self, dataset: Any, number: int) -> Any:
        """The label of the first sample that can be read: it stands for all."""
        failed: Exception | None = None
        for index in range(min(number, LOOKED_AT)):
            try:
                return _pair(dataset[index])[1]
            except Exception as error:  # noqa: BLE001  (the user's code; one bad sample is no bad dataset)
                failed = failed or error
        raise IngestError(f"{self.name}: none of its first samples can be read: {type(failed).__name__}: {failed}")

    def items(self) -> Iterator[Item]:
        for index in range(len(self._dataset())):
            metadata: dict[str, Scalar] = {INDEX: index}
            yield Item(f"{self._ident}:{index}", index, None, metadata)

    def load(self, item: Item) -> Loaded:
        content, label = _pair(self._dataset()[item.place])
        number = _integer(label)
        names = self._names()
        if number is None:
            return Loaded(_content(content), None if label is None else _content(label))
        named = names is not None and 0 <= number < len(names)  # -1 says that there is no label, and is no last class
        return Loaded(_content(content), names[number] if names is not None and named else number)

    def close(self) -> None:
        """The dataset goes with its source."""
        self._made = None

    def _names(self) -> tuple[str, ...] | None:
        names = getattr(self._dataset(), "classes", None)
        return tuple(map(str, names)) if names is not None and not callable(names) else None

    def _dataset(self) -> Any:
        if self._made is None:
            self._made = self._make()
        return self._made

    def _make(self) -> Any:
        module = "torchvision.datasets" if self._module == "torchvision" else self._module
        if self._module != "torchvision" and str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))  # as `python -m` does: the user's module lies beside them
        try:
            factory = getattr(importlib.import_module(module), self._attribute)
        except ModuleNotFoundError as error:
            hint = "; pip install 'headrace[vision]'" if self._module == "torchvision" else ""
            raise IngestError(f"{self.name}: there is no module {error.name!r}{hint}") from error
        except AttributeError as error:
            raise IngestError(f"{self.name}: there is no {self._attribute!r} in {module}") from error
        try:
            dataset = factory(**self._arguments)
            len(dataset)
        except Exception as error:
            raise IngestError(f"{self.name}: {type(error).__name__}: {error}") from error
        return dataset


def _argument(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _pair(sample: Any) -> tuple[Any, Any]:
    if isinstance(sample, (tuple, list)):
        if len(sample) == 2:
            return sample[0], sample[1]
        raise IngestError(f"a sample is a pair of content and label, or a content; this one has {len(sample)} parts")
    return sample, None


def _integer(label: Any) -> int | None:
    """The number a label is; None for one that is more than a number."""
    if isinstance(label, (int, np.integer)) and not isinstance(label, bool):
        return int(label)
    shape, dtype = getattr(label, "shape", None), str(getattr(label, "dtype", ""))
    return int(label) if shape is not None and len(shape) == 0 and "int" in dtype else None


def _content(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)) or (hasattr(value, "mode") and hasattr(value, "tobytes")):
        return value
    if hasattr(value, "detach"):  # a tensor
        value = value.detach().cpu().numpy()
    if isinstance(value, (np.ndarray, np.generic, list, tuple, int, float)):
        array = np.asarray(value)
        if array.dtype != object:
            return array
    raise TypeError(f"a {type(value).__name__} is neither bytes, a picture nor an array")
