"""Sources of an ingest: a list of items, cheap to make and to send, and their contents on demand."""

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

from headrace.core.errors import IngestError
from headrace.store.base import Kind, LabelKind, Scalar
from headrace.store.files import is_there
from headrace.store.ingest.source_options import ReadOptions
from headrace.store.ingest.sources import shard_folders

Content = Any
"""Encoded bytes, a picture of Pillow's, or a numpy array."""


class Item(NamedTuple):
    """A sample of a source, before it is read."""

    ident: str
    """Names it within its source, whenever and wherever that is read."""
    place: Any
    """Where the source finds it; can be pickled."""
    label: int | str | None = None
    """A text is the name of a class. A blob comes with the content."""
    metadata: Mapping[str, Scalar] = {}
    key: str | None = None
    problem: str | None = None
    """Why it cannot be ingested, where that is known already."""


class Loaded(NamedTuple):
    """An item's content, and its label where that lies in the source too."""

    content: Content
    label: Content = None
    name: str = ""
    """What the content's file is called, which says what it has to be; nothing where it is no file."""
    label_name: str = ""


class Where(NamedTuple):
    """The identity of a source, whatever it is called by today."""

    name: str
    """Absolute; no credentials."""
    root: str | None = None
    """The folder in which an item's ``ident``, up to a NUL, is the path of its file; None where it is no file."""
    threads: bool = False
    """Whether threads may load items together; nobody else's code runs then, which might take its process down."""


@dataclass(frozen=True)
class SourceShape:
    """The shape of a source's data, known without reading contents."""

    labels: LabelKind
    columns: Mapping[str, Kind] = field(default_factory=dict)
    classes: tuple[str, ...] | None = None
    """Names, where labels are given by name."""
    count: int | None = None
    numbers: Mapping[str, int] = field(default_factory=dict)
    """What the source itself numbers classes with, where it does."""
    distinct: bool = False
    """Whether all its keys are known to be different."""


class IngestSource(Protocol):
    """A source, made cheaply in every process that reads items; ``shape`` and ``items`` are asked for in one of
    them.
    """

    name: str
    """For people; no credentials."""
    where: Where

    def shape(self) -> SourceShape: ...

    def items(self) -> Iterator[Item]:
        """Every item once, in the same order each time."""
        ...

    def load(self, item: Item) -> Loaded:
        """The content of an item. Whatever is raised is this item's fault alone."""
        ...

    def left_out(self) -> list[str]:
        """Files that might have been taken for samples, and are none; known once all items were listed."""
        return []

    def close(self) -> None:
        """Lets go of what is held open."""


def open_source(text: str, reading: ReadOptions) -> IngestSource:
    """The source a text names. Raises ``IngestError`` where it names none."""
    module, name = _kind(text)
    if reading.allow_outside and module != "manifest":
        raise IngestError(f"allow-outside is about the paths in a manifest, and {name} is none")
    kind = getattr(importlib.import_module(f"headrace.store.ingest.sources.{module}"), _CLASSES[module])
    made: IngestSource = kind(name, reading)
    return made


_CLASSES = {
    "stored": "StoredSource",
    "manifest": "Manifest",
    "tars": "Tars",
    "huggingface": "Saved",
    "map_dataset": "MapDataset",
}
"""By module, which is imported when it is needed."""


def _kind(text: str) -> tuple[str, str]:
    """The module that reads it, and what that is told."""
    scheme, colon, rest = text.partition(":")
    path = Path(text)
    if "://" in text:
        return "stored", text
    if colon and scheme == "hf":
        return "huggingface", rest
    if path.is_dir():
        return _of_folder(path, text)
    if path.is_file() or (path.suffix == ".tar" and not {"{", "*"}.isdisjoint(text)):
        return _of_file(path, text)
    if rest and scheme.replace(".", "_").isidentifier():
        return "map_dataset", text
    is_there(path)  # where that cannot be seen, its error says why
    raise IngestError(
        f"{text}: there is no such folder or file; a source is a folder, a CSV or Parquet manifest, WebDataset tars, "
        "torchvision:NAME?root=..., module:factory, hf:FOLDER or the URL of a store"
    )


def _of_folder(path: Path, text: str) -> tuple[str, str]:
    if (path / "dataset_info.json").exists() or (path / "dataset_dict.json").exists():
        return "huggingface", text
    try:
        entries = list(path.iterdir())
    except OSError as error:
        raise IngestError(f"{text}: cannot be listed: {error.strerror}") from error
    if any(entry.suffix == ".tar" for entry in entries):
        folders = [entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
        if folders:
            raise IngestError(
                f"{text}: there are tars in it, and folders ({min(folders)}): write '{text}/*.tar' for the tars, "
                f"or file://{quote(str(path.resolve()))} for the files in the folders"
            )
        return "tars", text
    if kind := shard_folders.kind_of(path):
        raise IngestError(kind.told(text))
    return "stored", f"file://{quote(str(path.resolve()))}"


def _of_file(path: Path, text: str) -> tuple[str, str]:
    suffix = path.suffix.lower()
    if suffix in {".csv", ".tsv", ".parquet"}:
        return "manifest", text
    if suffix == ".tar":
        return "tars", text
    if suffix == ".arrow":
        return "huggingface", text
    raise IngestError(f"{text}: a file to ingest from is a .csv, .tsv, .parquet, .tar or .arrow file")
