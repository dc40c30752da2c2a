"""A store written out as files: a folder, or WebDataset tars, with all that is needed to ingest them again."""

import csv
import errno
import io
import json
import shlex
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Self
from urllib.parse import quote

from headrace.core.errors import IngestError, StoreError
from headrace.store.base import Kind, LabelKind, LocalStore, Row, Store
from headrace.store.catalogues.columns import CLASS, OWN, plain
from headrace.store.contents import extension
from headrace.store.ingest.sources.fields import PATH
from headrace.store.ingest.sources.kinds import Guess
from headrace.store.reading.bridges import blocking

LABEL_FILE, MANIFEST = "label_file", "manifest.csv"
SAMPLES = "samples"
"""The folder of those that can lie nowhere else."""
LABEL_FILES = {True: f" --label-files {LABEL_FILE}", False: " --label-files label"}
"""Where labels that are files are found again: a column of the manifest, or an extension in the tars."""
AT_ONCE = 64
"""Rows that are asked for together."""


@dataclass
class Exported:
    """Report of an export, and how it is ingested again."""

    target: str
    samples: int = 0
    payload_bytes: int = 0
    again: str = ""
    """The command that ingests it, with the store's name left open."""


def export(
    store: Store,
    target: Path,
    keys: Sequence[str] | None,
    shard_bytes: int | None,
    progress: Callable[[int, int], None],
) -> Exported:
    """Writes rows to a folder that is not there yet, or to tars of about ``shard_bytes``. Raises ``HeadraceError``.

    What names the samples is written last: where that is missing, the export did not come to its end.
    """
    if target.exists():
        raise IngestError(f"{target} is there already: an export makes a folder of its own")
    info, columns = store.info(), store.columns()
    lists = {name: values.tolist() for name, values in columns.items()}
    rows = {key: place for place, key in enumerate(lists["key"])}
    wanted = list(lists["key"]) if keys is None else [key for key in keys if key in rows]
    names = [name for name in lists if name not in OWN]
    reader = blocking(store)
    done, guesses = Exported(str(target)), {name: Guess() for name in names}
    try:
        target.mkdir(parents=True)
        with (
            _FolderExport(target, info.labels, names) if shard_bytes is None else _TarExport(target, shard_bytes)
        ) as made:
            for row in _fetched(reader, wanted):
                metadata = {name: plain(lists[name][rows[row.key]]) for name in names}
                for name, value in metadata.items():
                    guesses[name].see("" if value is None else str(value))
                made.put(done.samples, row, metadata)
                done.samples += 1
                done.payload_bytes += len(row.payload)
                progress(done.samples, len(wanted))
            again = made.finish()
    except OSError as error:
        raise IngestError(f"{target}: cannot be written: {error.strerror or error}") from error
    finally:
        reader.close()
    label_files = "" if info.labels is not LabelKind.BLOB else LABEL_FILES[shard_bytes is None]
    done.again = f"headrace ingest {again} STORE{_types(info.columns, guesses)}{label_files}"
    return done


def _fetched(reader: LocalStore, keys: Sequence[str]) -> Iterator[Row]:
    """The rows in the order of the keys."""
    for start in range(0, len(keys), AT_ONCE):
        part = keys[start : start + AT_ONCE]
        found = {each.key: each for each in reader.get_many(part)}
        for key in part:
            row = found[key]
            if not isinstance(row, Row):
                raise row.error
            yield row


def _types(kinds: Mapping[str, Kind], guesses: Mapping[str, Guess]) -> str:
    """An option with the types that a reader of texts would take for something else."""
    wrong = [f"{name}={kind.value}" for name, kind in kinds.items() if name != PATH and guesses[name].kind is not kind]
    return f" --types {shlex.quote(','.join(wrong))}" if wrong else ""


class _FolderExport:
    """Files, by class where there are names, and a manifest. A row that knows its path keeps it, where that is safe."""

    def __init__(self, folder: Path, labels: LabelKind, names: Sequence[str]) -> None:
        self._folder, self._labels = folder, labels
        self._names = [name for name in names if name != PATH]
        label = {LabelKind.INTEGER: ["label"], LabelKind.BLOB: [LABEL_FILE], LabelKind.NONE: []}[labels]
        self._head = [PATH, "key", *label, *self._names]

    def __enter__(self) -> Self:
        partial = self._folder / f".{MANIFEST}.partial"
        self._partial, self._file = partial, partial.open("w", newline="", encoding="utf-8")
        self._table = csv.writer(self._file)
        self._table.writerow(self._head)
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def put(self, number: int, row: Row, metadata: Mapping[str, Any]) -> None:
        path = next(path for path in self._paths(number, row, metadata) if self._written(path, row.payload))
        label: list[Any] = [] if self._labels is LabelKind.NONE else [row.label]
        if isinstance(row.label, bytes):
            label = [f"labels/{number:08d}.{extension(row.label)}"]
            self._written(label[0], row.label)
        try:
            self._table.writerow([path, row.key, *label, *(metadata[name] for name in self._names)])
        except UnicodeEncodeError:
            raise StoreError(f"the row with the key {row.key!r} has a text that is none", key=row.key) from None

    def finish(self) -> str:
        """Finish once all are written, and return what is ingested again."""
        self._file.close()
        self._partial.rename(self._folder / MANIFEST)
        return shlex.quote(str(self._folder / MANIFEST))

    def _paths(self, number: int, row: Row, metadata: Mapping[str, Any]) -> Iterator[str]:
        """Paths for a sample, best first; the last is always free."""
        name = f"{number:08d}.{extension(row.payload)}"
        own, by_class = metadata.get(PATH), f"{quote(str(metadata.get(CLASS) or SAMPLES), safe=' ')}/{name}"
        yield from (path for path in (own, by_class) if isinstance(path, str) and _safe(path))
        yield f"{SAMPLES}/{name}"

    def _written(self, path: str, content: bytes | memoryview) -> bool:
        """Write a file. False where the path is taken, leads through a file, or is a folder's; or is too long for
        the disk.
        """
        where = self._folder / path
        try:
            where.parent.mkdir(parents=True, exist_ok=True)
            with where.open("xb") as file:  # "x": a row of before may have taken the path, which then keeps its file
                file.write(content)
        except (FileExistsError, NotADirectoryError):
            return False
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            return False
        return True


def _safe(path: str) -> bool:
    """True for a path that stays within the folder, and beside what is written there anyhow."""
    parts = PurePosixPath(path).parts
    fine = path == "/".join(parts) and path.isprintable() and len(path.encode("utf-8", "replace")) < 1000
    return fine and len(parts) > 1 and parts[0] not in ("/", "labels", SAMPLES) and ".." not in parts


class _TarExport:
    """WebDataset shards: ``00000000.png`` with ``.cls`` and ``.json``, which has the key."""

    def __init__(self, folder: Path, shard_bytes: int) -> None:
        self._folder, self._bytes = folder, shard_bytes
        self._tar: tarfile.TarFile | None = None
        self._shards = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._tar is not None:
            self._tar.close()

    def put(self, number: int, row: Row, metadata: Mapping[str, Any]) -> None:
        if self._tar is None:
            self._tar = tarfile.open(self._partial, "x")  # noqa: SIM115  (closed with the shard)
        known = {name: value for name, value in metadata.items() if value is not None and name != PATH}
        members: list[tuple[str, bytes | memoryview]] = [(extension(row.payload), row.payload)]
        if isinstance(row.label, int):
            members.append(("cls", str(row.label).encode()))
        elif row.label is not None:
            members.append(("label", row.label))
        members.append(("json", json.dumps({"key": row.key, **known}).encode()))
        for name, content in members:
            member = tarfile.TarInfo(f"{number:08d}.{name}")
            member.size = len(content)
            self._tar.addfile(member, io.BytesIO(content))
        if self._tar.offset >= self._bytes:
            self._next()

    def finish(self) -> str:
        """Close the last tar; returns the source that ingests the export."""
        if self._tar is not None:
            self._next()
        return shlex.quote(str(self._folder))

    @property
    def _partial(self) -> Path:
        return self._folder / f"shard-{self._shards:06d}.tar.partial"

    def _next(self) -> None:
        assert self._tar is not None
        self._tar.close()
        self._tar = None
        self._partial.rename(self._partial.with_suffix(""))
        self._shards += 1
