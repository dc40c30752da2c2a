"""Folders that hold shards of other libraries: their files are not samples."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

LARGEST = 1 << 26
"""Bytes of an index that is looked into."""


@dataclass(frozen=True)
class ShardFolder:
    """A folder of shards: where it is, what made it, and how its store is called."""

    place: Path
    library: str
    scheme: str

    def told(self, text: str) -> str:
        """The URLs that a user who named the folder ``text`` may have meant, as an error says it."""
        where = quote(str(self.place.resolve()))
        inside = "" if self.place.resolve() == Path(text).resolve() else f" ({self.place.name})"
        files = f"file://{quote(str(Path(text).resolve()))}?labels=none for the files themselves as samples"
        samples = f"write {self.scheme}://{where} for the samples in them, or {files}"
        return f"{text}: there are shards of {self.library} in it{inside}: {samples}"


def kind_of(folder: Path) -> ShardFolder | None:
    """The shards that lie in a folder, or in one of its folders; None for samples in files of their own."""
    for each in _places(folder):
        index = each / "index.json"
        entries = _entries(index)
        if "shards" in entries or next(each.glob("*.mds"), None) is not None:
            return ShardFolder(each, "MosaicML Streaming", "mds")
        if "chunks" in entries:
            return ShardFolder(each, "LitData", "litdata")
        if next(each.glob("*.tar"), None) is not None:
            return ShardFolder(each, "WebDataset", "wds")
        if next(each.glob("*.parquet"), None) is not None:
            return ShardFolder(each, "Parquet", "parquet")
    return None


def _places(folder: Path) -> Iterator[Path]:
    yield folder
    yield from sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))


def _entries(index: Path) -> frozenset[str]:
    """The names in an index; none where there is no such file, or another thing is called so."""
    try:
        if not index.is_file() or index.stat().st_size > LARGEST:
            return frozenset()
        found = json.loads(index.read_bytes())
    except (OSError, ValueError, RecursionError):
        return frozenset()
    return frozenset(found) if isinstance(found, dict) else frozenset()
