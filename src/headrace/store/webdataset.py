"""WebDataset shards as a store to read from: tar files, indexed by their headers, read by position."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from headrace.core.errors import BadRow, BadStoreUrl, MissingKey, StoreError, StoreRefused
from headrace.store.base import Columns, Info, Kind, Label, LabelKind, LocalStore, Row
from headrace.store.columns import OWN, chosen, column, describe, own_columns
from headrace.store.files import read_at
from headrace.store.provenance import Provenance, of_files
from headrace.store.tar import BadTar
from headrace.store.tar_index import Piece, TarIndex, stamp_of
from headrace.store.url import StoreUrl, UrlNamed

BESIDE = ("cls", "json", "txt", "id", "index", "labels", "cap")
"""Extensions that tell about a sample and are not it."""


class TarStore(UrlNamed, LocalStore):
    """``wds:///folder`` (its ``*.tar``), ``wds:///folder/train-*.tar`` or ``wds:///one.tar``.

    Files that share a name up to its first dot are one sample, and that name is its key; where two shards use the same
    name, keys begin with the shard's. ``?data=jpg`` says which file is the payload (else the first that is not known
    to be something else), ``?label=cls`` which one the label: the text of a number in ``.cls``, bytes otherwise.
    Numbers, texts and truth values at the top of ``.json`` files are metadata.
    """

    def __init__(self, url: StoreUrl) -> None:
        url.only(["data", "label"])
        if url.hosts or url.user or not url.path.strip("/"):
            raise BadStoreUrl(f"{url.redacted}: write wds:///folder, or wds:///folder/shard-*.tar")
        self._url = url
        self._data = url.options.get("data")
        self._label = url.options.get("label")
        self._index: TarIndex | None = None
        self._looked = 0  # the process that found the index to be that of the shards

    def get(self, key: str) -> Row:
        files = self._samples().find(key)
        if files is None:
            raise MissingKey(f"{self.name} has no sample {key!r}", server=self.name, key=key)
        extension = self._payload(files)
        if extension is None:
            wanted = "payload" if self._data is None else f".{self._data} file"
            raise BadRow.at(self.name, f"sample {key!r} has no {wanted}", key=key)
        return Row(key, self._read(files[extension]), self._label_of(key, files))

    def keys(self) -> list[str]:
        return list(self._samples().keys)

    def columns(self, names: Sequence[str] | None = None) -> Columns:
        kinds, values = self._metadata()
        wanted = chosen(names, kinds, self.name)
        return {name: column(values[name], kinds[name]) for name in wanted}

    def info(self) -> Info:
        kinds, values = self._metadata()
        columns = {name: column(values[name], kinds[name]) for name in kinds}
        return describe(self.name, columns, self._label_kind(), own_columns(kinds))

    def provenance(self) -> Provenance:
        """The shards' place, which of their files are samples, and the shards' sizes and times."""
        identity = f"wds:{os.path.realpath(self._url.path)}:data={self._data}:label={self._label}"
        return of_files(identity, self._find())

    def stamp(self, key: str) -> tuple[int, ...]:
        """The size and time of the sample's shard."""
        index = self._samples()
        files = index.find(key)
        if not files:
            raise FileNotFoundError(key)
        return stamp_of(index.shards[next(iter(files.values())).shard])

    def close(self) -> None:
        """Shards are opened for each read. The index is kept, and made again where a shard has changed since."""
        self._looked = 0

    def _label_extension(self) -> str | None:
        if self._label is not None:
            return self._label
        return "cls" if "cls" in self._samples().extensions else None

    def _label_kind(self) -> LabelKind:
        extension = self._label_extension()
        return {None: LabelKind.NONE, "cls": LabelKind.INTEGER}.get(extension, LabelKind.BLOB)

    def _label_of(self, key: str, files: dict[str, Piece]) -> Label:
        extension = self._label_extension()
        if extension is None:
            return None
        if extension not in files:
            raise BadRow.at(self.name, f"sample {key!r} has no .{extension} file", key=key)
        raw = self._read(files[extension])
        if extension != "cls":
            return raw
        try:
            label = int(raw)
        except ValueError:
            label = 1 << 63  # refused below, with those that are too large
        if not -(1 << 63) <= label < 1 << 63:
            raise BadRow.at(self.name, f"the label of sample {key!r} is no number of 64 bits: {raw[:40]!r}", key=key)
        return label

    def _payload(self, files: dict[str, Piece]) -> str | None:
        if self._data is not None:
            return self._data if self._data in files else None
        others = (name for name in files if name not in BESIDE and name != self._label)
        return next(others, next((name for name in files if name not in ("cls", self._label)), None))

    def _metadata(self) -> tuple[dict[str, Kind], dict[str, list[object]]]:
        index = self._samples()
        samples = [(key, index.files(number)) for number, key in enumerate(index.keys)]
        values: dict[str, list[object]] = {"key": [key for key, _ in samples]}
        kinds = {"key": Kind.TEXT}
        if self._label_kind() is LabelKind.INTEGER:
            values["label"] = [self._label_of(key, files) for key, files in samples]
            kinds["label"] = Kind.INTEGER
        payloads = [(files, self._payload(files)) for _, files in samples]
        values["bytes"] = [None if name is None else files[name].size for files, name in payloads]
        kinds["bytes"] = Kind.INTEGER
        told = [self._json(key, files) for key, files in samples]
        for name in dict.fromkeys(name for row in told for name in row if name not in OWN):
            values[name] = [row.get(name) for row in told]
            kinds[name] = _kind(values[name])
            if kinds[name] is Kind.TEXT:
                values[name] = [None if value is None else str(value) for value in values[name]]
        return kinds, values

    def _json(self, key: str, files: dict[str, Piece]) -> dict[str, object]:
        if "json" not in files or "json" in (self._data, self._label):
            return {}
        try:
            told = json.loads(self._read(files["json"]))
        except (ValueError, RecursionError) as error:
            raise BadRow.at(self.name, f"the .json of sample {key!r} is none: {error}", key=key) from None
        if not isinstance(told, dict):
            return {}
        return {name: value for name, value in told.items() if isinstance(value, (int, float, str, bool))}

    def _samples(self) -> TarIndex:
        """Headers are read once. A copy in another process looks whether the shards are still the same."""
        if self._index is None or self._looked != os.getpid():
            try:
                shards = tuple(self._find())
                if self._index is None or self._index.shards != shards or not self._index.is_current():
                    self._index = TarIndex(shards)
            except (BadTar, OSError) as error:
                raise StoreRefused.at(self.name, f"{error}") from error
            self._looked = os.getpid()
        return self._index

    def _find(self) -> list[Path]:
        path = Path(self._url.path)
        if path.is_dir():
            found = sorted(path.glob("*.tar"))
        elif "*" in path.name or "?" in path.name:
            found = sorted(path.parent.glob(path.name))
        else:
            found = [path] if path.exists() else []
        if not found:
            raise StoreRefused.at(self.name, "there are no tar files")
        return found

    def _read(self, piece: Piece) -> bytes:
        index = self._samples()
        path = index.shards[piece.shard]
        try:
            found = read_at(path, piece.offset, piece.size)
            current = index.is_shard_current(piece.shard)
        except OSError as error:
            raise StoreError.at(self.name, f"{path}: {error}") from error
        if not current:
            raise StoreError.at(self.name, f"{path} was written again since its headers were read: begin another epoch")
        return found


def _kind(values: Sequence[object]) -> Kind:
    types = {type(value) for value in values if value is not None}
    if types == {bool}:
        return Kind.TRUTH
    if any(type(value) is int and not -(1 << 63) <= value < 1 << 63 for value in values):
        return Kind.TEXT
    if types == {int}:
        return Kind.INTEGER
    return Kind.NUMBER if types <= {int, float} else Kind.TEXT
