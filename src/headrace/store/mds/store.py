"""The store over a folder of MDS shards. Keys are the samples' numbers, with leading zeros."""

import os
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from headrace.core.errors import BadRow, BadStoreUrl, MissingKey, StoreError, StoreRefused
from headrace.store.base import Columns, Info, Kind, Label, LabelKind, LocalStore, Row
from headrace.store.columns import chosen, column, describe
from headrace.store.mds.shard import DamagedShard, Shard, decoded, kind_of, read_index
from headrace.store.provenance import Provenance, of_files
from headrace.store.url import StoreUrl, UrlNamed

DIGITS = 9


class MdsStore(UrlNamed, LocalStore):
    """``mds:///folder``, with an ``index.json`` and shards that are not compressed.

    ``?data=image`` names the column that is the payload (else the first that is neither a number nor a text),
    ``?label=class`` that of the label (else ``label``, if it is there). Columns of numbers and texts are metadata.
    Nothing is unpickled: a column of that encoding can only be a payload, as bytes.
    """

    def __init__(self, url: StoreUrl) -> None:
        url.only(["data", "label"])
        if url.hosts or url.user or not url.path.strip("/"):
            raise BadStoreUrl(f"{url.redacted}: write mds:///folder")
        self._url = url
        self._shards: list[Shard] | None = None
        self._starts: list[int] = []
        self._holds: dict[str, Kind | None] = {}  # by column, as in the first shard; None: what is no metadata
        self._stamp: tuple[int, int] | None = None  # of the index that was read
        self._looked = False  # whether that is the one that is there

    def get(self, key: str) -> Row:
        number = int(key) if key.isdecimal() and len(key) == DIGITS else -1  # "7" would be a second key of a sample
        if not 0 <= number < self._count():
            raise MissingKey(f"{self.name} has no sample {key!r}", server=self.name, key=key)
        data, label = self._roles()
        try:
            shard, at = self._locate(number)
            found = shard.columns(at, [data] if label is None else [data, label])
            return Row(key, found[data], None if label is None else self._label(shard, label, found[label]))
        except (DamagedShard, OSError, LookupError) as error:
            raise BadRow.at(self.name, f"sample {key!r} cannot be read: {error}", key=key) from error

    def keys(self) -> list[str]:
        return [f"{number:0{DIGITS}}" for number in range(self._count())]

    def columns(self, names: Sequence[str] | None = None) -> Columns:
        kinds = self._kinds()
        _, label = self._roles()
        wanted = chosen(names, kinds, self.name)
        sources = {name: label if name == "label" and label is not None else name for name in wanted[1:]}
        found: dict[str, list[object]] = {name: [] for name in wanted}
        found["key"] = list(self.keys())
        for number in range(self._count()) if sources else ():
            shard, at = self._locate(number)
            try:
                raw = shard.columns(at, list(sources.values()))
                for name, source in sources.items():
                    found[name].append(decoded(raw[source], self._encoding(shard, source)))
            except (DamagedShard, OSError, LookupError) as error:
                raise StoreError.at(self.name, f"sample {found['key'][number]!r} cannot be read: {error}") from error
        return {name: column(found[name], kinds[name]) for name in wanted}

    def info(self) -> Info:
        own = {name: kind for name, kind in self._kinds().items() if name not in ("key", "label")}
        _, label = self._roles()
        kind = self._label_kind(label)
        return describe(self.name, self.columns(["label"] if kind is LabelKind.INTEGER else []), kind, own)

    def provenance(self) -> Provenance:
        """The shards' place, the columns that are read, and the sizes and times of index and shards."""
        folder = Path(self._url.path)
        try:
            files = [folder / "index.json", *(shard.path for shard in read_index(folder))]
            return of_files(f"mds:{os.path.realpath(folder)}:{self._roles()}", files)
        except (DamagedShard, OSError) as error:
            raise StoreRefused.at(self.name, f"its shards cannot be looked at: {error}") from error

    def stamp(self, key: str) -> tuple[int, ...]:
        """The size and time of the sample's shard."""
        if not key.isdecimal() or not int(key) < self._count():
            raise FileNotFoundError(key)
        found = self._locate(int(key))[0].path.stat()
        return found.st_size, found.st_mtime_ns

    def close(self) -> None:
        """Shards are opened for each read. The index is read again where it has changed."""
        self._looked = False

    def _all(self) -> list[Shard]:
        if self._shards is None or not self._looked:
            folder = Path(self._url.path)
            try:
                found = (folder / "index.json").stat()
                if self._shards is None or self._stamp != (found.st_size, found.st_mtime_ns):
                    self._shards = read_index(folder)
                    self._starts = list(accumulate((shard.samples for shard in self._shards), initial=0))
                    self._holds = dict(self._shards[0].kinds()) if self._shards else {}
                    self._stamp = found.st_size, found.st_mtime_ns
            except (DamagedShard, OSError) as error:
                raise StoreRefused.at(self.name, f"no MDS shards can be read: {error}") from error
            self._looked = True
        return self._shards

    def _count(self) -> int:
        self._all()
        return self._starts[-1]

    def _locate(self, number: int) -> tuple[Shard, int]:
        shards = self._all()
        position = bisect_right(self._starts, number) - 1
        return shards[position], number - self._starts[position]

    def _roles(self) -> tuple[str, str | None]:
        """The columns of the payload and of the label."""
        self._all()
        asked = [self._url.options.get(role) for role in ("data", "label")]
        for name in asked:
            if name is not None and name not in self._holds:
                has = ", ".join(self._holds)
                raise StoreRefused.at(self.name, f"there is no column {name!r}; there are {has}")
        label = asked[1] or ("label" if "label" in self._holds else None)
        blobs = (name for name, kind in self._holds.items() if kind is None and name != label)
        data = asked[0] or next(blobs, None)
        if data is None:
            raise StoreRefused.at(self.name, "no column looks like a payload; name it with ?data=")
        return data, label

    def _label_kind(self, label: str | None) -> LabelKind:
        if label is None:
            return LabelKind.NONE
        return LabelKind.INTEGER if self._holds[label] is Kind.INTEGER else LabelKind.BLOB

    def _label(self, shard: Shard, name: str, raw: bytes) -> Label:
        if self._label_kind(name) is LabelKind.BLOB:
            return raw
        value = decoded(raw, self._encoding(shard, name))
        return value if isinstance(value, int) else raw

    def _encoding(self, shard: Shard, name: str) -> str:
        """Of a column, in the shard that has the sample: it holds what the column holds in all of them."""
        found = shard.encodings[shard.names.index(name)]
        if kind_of(found) is not self._holds[name]:
            raise DamagedShard(
                f"column {name!r} is {found!r} in {shard.path.name!r} and another kind in the first shard"
            )
        return found

    def _kinds(self) -> dict[str, Kind]:
        data, label = self._roles()
        label_kind = {"label": Kind.INTEGER} if self._label_kind(label) is LabelKind.INTEGER else {}
        apart = (data, label, "key", "bytes")
        others = {name: kind for name, kind in self._holds.items() if kind is not None and name not in apart}
        return {"key": Kind.TEXT, **label_kind, **others}
