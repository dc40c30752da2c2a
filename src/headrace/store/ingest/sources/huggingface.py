"""Datasets of Hugging Face that lie on disk: the only module that knows their library."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.core.errors import IngestError, MissingDriver
from headrace.store.base import Kind, LabelKind, Scalar
from headrace.store.catalogues.columns import CLASS
from headrace.store.files import read_file
from headrace.store.ingest.source_options import ReadOptions
from headrace.store.ingest.sources.item_source import IngestSource, Item, Loaded, SourceShape, Where

SPLIT = "split"
BATCH = 1000
_KINDS = {"int": Kind.INTEGER, "uint": Kind.INTEGER, "float": Kind.NUMBER, "bool": Kind.TRUTH, "string": Kind.TEXT}


class Saved(IngestSource):
    """A folder that ``save_to_disk`` made, an Arrow or a Parquet file. Pictures are stored as they lie there.

    The sample is the column ``payload``, or the first that holds pictures, sound or bytes; the label is the first that
    holds classes, or ``label``; other plain columns are metadata. Of several splits all are taken, and named.
    """

    def __init__(self, path: str, reading: ReadOptions) -> None:
        reading.refuse(("root", "types", "extensions", "path_column"), "datasets of Hugging Face")
        self.name = path
        self.where = Where(str(Path(path).absolute()))
        self._reading = reading
        self._splits: dict[str, Any] | None = None
        self._payload = ""
        self._label: str | None = None
        self._copy: tempfile.TemporaryDirectory[str] | None = None

    def shape(self) -> SourceShape:
        first = next(iter(self._opened().values()))
        features = first.features
        label = None if self._label is None else features[self._label]
        names = getattr(label, "names", None)
        kinds = dict(self._metadata(features))
        if len(self._opened()) > 1:
            kinds[SPLIT] = Kind.TEXT
        if names is not None or (label is not None and getattr(label, "dtype", "") == "string"):
            kinds[CLASS] = Kind.TEXT
        if self._reading.label_files is not None:
            labels = LabelKind.BLOB
        else:
            labels = LabelKind.NONE if label is None else LabelKind.INTEGER
        count = sum(len(each) for each in self._opened().values())
        numbers = {name: place for place, name in enumerate(names or ())}
        return SourceShape(labels, kinds, self._classes(label), count, numbers)

    def items(self) -> Iterator[Item]:
        several = len(self._opened()) > 1
        for split, dataset in self._opened().items():
            features = dataset.features
            wanted = dict(self._metadata(features))
            key = self._reading.key
            plain = dataset.select_columns([*dict.fromkeys([*wanted, *filter(None, [self._label, key])])])
            names = None if self._label is None else getattr(features[self._label], "names", None)
            for index, row in enumerate(_rows(plain, len(dataset))):
                metadata: dict[str, Scalar] = {name: row[name] for name in wanted}
                if several:
                    metadata[SPLIT] = split
                label = row.get(self._label) if self._label is not None else None
                problem = "it has no label" if self._label is not None and (label is None or label == -1) else None
                if names is not None and problem is None and label is not None:
                    if not 0 <= label < len(names):
                        problem = f"its label is {label}, and there are {len(names)} classes"
                    else:
                        label = names[label]
                own = None if key is None or row[key] is None else str(row[key])
                if key is not None and not own:
                    problem = f"it has no {key}"
                yield Item(f"{split}:{index}", (split, index), label, metadata, own, problem)

    def load(self, item: Item) -> Loaded:
        split, index = item.place
        [row] = self._opened()[split][index].to_pylist()
        files = self._reading.label_files
        return Loaded(_content(row[self._payload]), None if files is None else _content(row[files]))

    def close(self) -> None:
        """Let go of the splits and of the copy: its files are mapped, and go with it."""
        self._splits = None
        if self._copy is not None:
            self._copy.cleanup()
            self._copy = None

    def _classes(self, label: Any) -> tuple[str, ...] | None:
        if label is None:
            return None
        if getattr(label, "names", None) is not None:
            return tuple(label.names)
        if getattr(label, "dtype", "") == "string":
            every = {name for each in self._opened().values() for name in each.unique(self._label) if name is not None}
            return tuple(sorted(every))
        return None

    def _metadata(self, features: Any) -> Iterator[tuple[str, Kind]]:
        apart = {self._payload, self._label, self._reading.label_files}
        for name, feature in features.items():
            dtype = str(getattr(feature, "dtype", ""))
            kind = _KINDS.get(dtype.rstrip("0123456789").removeprefix("large_"))
            chosen = self._reading.columns is None or name in self._reading.columns
            if name not in apart and chosen and kind is not None and type(feature).__name__ == "Value":
                yield name, kind

    def _opened(self) -> dict[str, Any]:
        if self._splits is None:
            found = self._found()
            self._choose(next(iter(found.values())).features)
            # Pictures and sound as the bytes they lie there as: tables of what is stored, nothing decoded.
            self._splits = {name: dataset.with_format("arrow") for name, dataset in found.items()}
        return self._splits

    def _found(self) -> dict[str, Any]:
        library = _datasets()
        path = Path(self.name)
        try:
            if path.is_dir():
                found = library.load_from_disk(str(path))
            elif path.suffix == ".parquet":
                # The library copies a Parquet file into a cache of its own; this one is gone with the source.
                self._copy = tempfile.TemporaryDirectory(prefix="headrace-ingest-")
                found = library.Dataset.from_parquet(str(path), cache_dir=self._copy.name, keep_in_memory=True)
            else:
                found = library.Dataset.from_file(str(path))
        except (OSError, ValueError, RuntimeError) as error:
            raise IngestError(f"{self.name}: this is no dataset of Hugging Face ({error})") from error
        return dict(found) if isinstance(found, dict) else {"": found}

    def _choose(self, features: Any) -> None:
        wanted = [self._reading.payload, self._reading.label, self._reading.label_files, self._reading.key]
        for name in [*filter(None, wanted), *(self._reading.columns or ())]:
            if name not in features:
                raise IngestError(f"{self.name} has no column {name!r}; it has {', '.join(features)}")
        kinds = {name: type(feature).__name__ for name, feature in features.items()}
        binary = [name for name, feature in features.items() if "binary" in str(getattr(feature, "dtype", ""))]
        media = [name for name, kind in kinds.items() if kind in {"Image", "Audio"}]
        payload = self._reading.payload or next(iter([*media, *binary]), None)
        if payload is None:
            raise IngestError(f"{self.name}: which column is the sample? there are {', '.join(features)}")
        self._payload = payload
        if self._reading.label_files is None:
            classes = [name for name, kind in kinds.items() if kind == "ClassLabel"]
            self._label = self._reading.label or next(
                iter([*classes, *(["label"] if "label" in features else [])]), None
            )


def _rows(plain: Any, number: int) -> Iterator[dict[str, Any]]:
    if not plain.column_names:
        yield from ({} for _ in range(number))
        return
    for table in plain.iter(BATCH):
        yield from table.to_pylist()


def _content(value: Any) -> bytes:
    if isinstance(value, dict) and ("bytes" in value or "path" in value):
        if value.get("bytes") is not None:
            return bytes(value["bytes"])
        return read_file(value["path"])
    if isinstance(value, bytes):
        return value
    raise TypeError(f"a {type(value).__name__} is neither bytes, a picture nor sound")


def _datasets() -> Any:
    try:
        import datasets  # noqa: PLC0415  (an extra)
    except ImportError:
        raise MissingDriver("datasets of Hugging Face need their library: pip install 'headrace[datasets]'") from None
    datasets.disable_progress_bars()
    return datasets
