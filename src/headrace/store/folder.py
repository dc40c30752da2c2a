"""A folder of files as a store: keys are paths below it, the first folder of each is the class."""

import heapq
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import count

import numpy as np

from headrace.core.errors import BadRow, BadStoreUrl, MissingKey, StoreRefused, StoreUnavailable
from headrace.store.base import Beginning, Columns, Info, Kind, LabelKind, LocalStore, PartialCatalogue, Row
from headrace.store.catalogues.columns import CLASS, chosen, column, describe
from headrace.store.catalogues.provenance import Provenance, digest_of
from headrace.store.files import NoFile, read_file
from headrace.store.shards import recognised
from headrace.store.url import StoreUrl, UrlNamed

NO_SAMPLES = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini"})
"""What systems put into folders of pictures; in small letters."""
DOTTED = frozenset({".DS_Store"})
"""Of the names with a dot in front, none of which is a sample, those that are told."""

_NO_PART = frozenset({"", ".", ".."})
"""Names that no file below the folder has: a key that has one would lead out of it, or be a second key of a sample."""


class FolderStore(UrlNamed, LocalStore, PartialCatalogue):
    """``file:///folder``: every file below it whose name does not begin with a dot, and that no system put there.

    Where the folder has folders in it, these are the classes: sorted by name, their numbers are the labels, and files
    beside them are no samples. ``?labels=none`` takes every file at any depth, without labels.
    ``?extensions=jpg,png`` takes only such files.
    """

    def __init__(self, url: StoreUrl) -> None:
        url.only(["labels", "extensions"])
        if url.hosts or url.user or not url.path:
            raise BadStoreUrl(f"{url.redacted}: write file:///absolute/folder")
        if url.options.get("labels", "none") != "none":
            raise BadStoreUrl(f"{url.redacted}: labels= takes only 'none'")
        self._url = url
        self._root = os.path.join(url.path, "")  # noqa: PTH118  (texts: a path would be made for each sample)
        self._flat = "labels" in url.options
        listed = url.options.get("extensions", "").split(",")
        self._extensions = tuple(f".{one.strip().removeprefix('.').lower()}" for one in listed if one.strip())
        self._classes: dict[str, int] | None = None
        self._left_out: list[str] = []

    def classes(self) -> dict[str, int]:
        """The label of each class; empty where there are none."""
        if self._classes is None:
            names = [] if self._flat else sorted(entry.name for entry in self._entries(self._root) if entry.is_dir())
            self._classes = {name: label for label, name in enumerate(names)}
        return self._classes

    def get(self, key: str) -> Row:
        parts = key.split("/")
        try:
            if not self._is_within(parts):
                raise FileNotFoundError
            payload = read_file(self._root + key)
        except NoFile as error:
            raise BadRow.at(self.name, f"{key!r} {error}", key=key) from None
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError, ValueError):
            raise MissingKey(f"{self.name} has no file {key!r}", server=self.name, key=key) from None
        except PermissionError as error:
            raise StoreRefused.at(self.name, f"{key!r} may not be read: {error}", key=key) from None
        except OSError as error:
            raise StoreUnavailable.at(self.name, f"{key!r} cannot be read: {error}", key=key) from error
        return Row(key, payload, self.classes().get(parts[0]))

    def _is_within(self, parts: Sequence[str]) -> bool:
        """True if such a file would lie in a class folder, or in the folder where there are none."""
        classes = self.classes()
        return _NO_PART.isdisjoint(parts) and (not classes or (parts[0] in classes and len(parts) > 1))

    def _has(self, key: str) -> bool:
        """True if the key would be listed."""
        parts = key.split("/")
        if not self._is_within(parts) or any(part.startswith(".") for part in parts):
            return False
        return self._takes(parts[-1]) and os.path.isfile(self._root + key)  # noqa: PTH113

    def _takes(self, name: str) -> bool:
        return name.lower() not in NO_SAMPLES and (not self._extensions or name.lower().endswith(self._extensions))

    def keys(self) -> list[str]:
        found = sorted(self._listed())
        self._refuse_shards(found)
        return found

    def _listed(self) -> Iterator[str]:
        """The keys as the folders have them."""
        classes = self.classes()
        self._left_out = []
        for top in [self._root + name for name in classes] if classes else [self._root]:
            for path in self._files(top, set()):
                yield path[len(self._root) :]

    def _refuse_shards(self, found: Sequence[str]) -> None:
        if not self._flat and recognised.format_of(found[: recognised.ENOUGH]) and recognised.format_of(found):
            hint = recognised.told(found, self._index(), self.name)
            files = "?labels=none takes the files themselves"
            raise StoreRefused.at(self.name, f"its files are no samples: {hint}; {files}")

    def left_out(self) -> list[str]:
        """Paths that the latest listing met and did not take: what systems put there, and what is no file."""
        return sorted(os.path.relpath(path, self._root) for path in self._left_out)

    def columns(self, names: Sequence[str] | None = None) -> Columns:
        return self._columns(names, self.keys)

    def facts(self, keys: Sequence[str]) -> Columns:
        return self._columns(None, lambda: [key for key in dict.fromkeys(keys) if self._has(key)])

    def beginning(self, most: int) -> Beginning:
        """The first by key; every folder is listed, no more keys are held than are asked for."""
        number = count()
        found = heapq.nsmallest(most, (key for key, _ in zip(self._listed(), number, strict=False)))
        self._refuse_shards(found)
        return Beginning(self._columns(None, lambda: found), next(number) if most else None)

    def _columns(self, names: Sequence[str] | None, listed: Callable[[], list[str]]) -> Columns:
        """The columns of what is listed, once their names are known to be right."""
        classes = self.classes()
        there = ["key", "label", "bytes", CLASS] if classes else ["key", "bytes"]
        wanted = chosen(names, there, self.name)
        keys = listed()
        found = {"key": column(keys, Kind.TEXT)}
        firsts = [key.partition("/")[0] for key in keys]
        if "label" in wanted:
            found["label"] = np.array([classes[first] for first in firsts], np.int64)
        if "bytes" in wanted:
            found["bytes"] = np.array([self._status(key).st_size for key in keys], np.int64)
        if CLASS in wanted:
            found[CLASS] = column(firsts, Kind.TEXT)
        return {name: found[name] for name in wanted}

    def provenance(self) -> Provenance:
        """The folder's place, and its classes: the rest is in the files' stamps."""
        classes = "/".join(self.classes())
        kind = "flat" if self._flat else "classes"
        return Provenance(f"file:{kind}:{os.path.realpath(self._root)}", digest_of(classes))

    def stamp(self, key: str) -> tuple[int, ...]:
        """The file's size and time."""
        found = os.stat(self._root + key)  # noqa: PTH116
        return found.st_size, found.st_mtime_ns

    def info(self) -> Info:
        kinds = {CLASS: Kind.TEXT} if self.classes() else {}
        labels = LabelKind.INTEGER if self.classes() else LabelKind.NONE
        return describe(self.name, self.columns(), labels, kinds)

    def close(self) -> None:
        """Nothing is held; folders are looked at again."""
        self._classes = None

    def _index(self) -> bytes | None:
        try:
            return read_file(f"{self._root}index.json")[: recognised.LARGEST]
        except (OSError, NoFile):
            return None

    def _status(self, path: str) -> os.stat_result:
        """The status of a file that was listed a moment ago."""
        try:
            return os.stat(self._root + path)  # noqa: PTH116
        except OSError as error:
            raise StoreUnavailable.at(
                self.name, f"{path!r} was there a moment ago, and cannot be looked at: {error.strerror}"
            ) from error

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                every = list(entries)
        except OSError as error:
            raise StoreRefused.at(self.name, f"{folder} cannot be listed: {error.strerror}") from None
        self._left_out += [entry.path for entry in every if entry.name in DOTTED]
        return [entry for entry in every if not entry.name.startswith(".")]

    def _files(self, folder: str, above: set[tuple[int, int]]) -> Iterator[str]:
        """Paths of files; a link that leads back to a folder above it is not followed."""
        entries = self._entries(folder)
        status = self._status(folder.removeprefix(self._root))
        identity = status.st_dev, status.st_ino
        if identity in above:
            return
        for entry in entries:
            if entry.is_dir():
                yield from self._files(entry.path, above | {identity})
            elif not entry.is_file() or entry.name.lower() in NO_SAMPLES:
                self._left_out.append(entry.path)
            elif not self._extensions or entry.name.lower().endswith(self._extensions):
                yield entry.path
