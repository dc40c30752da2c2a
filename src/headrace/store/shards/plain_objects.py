"""Plain objects, or files in class folders: each object is a sample, and the first folder of its name is its class."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from headrace.core.errors import BadStoreUrl
from headrace.store.base import Kind, Label, LabelKind
from headrace.store.catalogues.columns import CLASS
from headrace.store.files import MOST
from headrace.store.folder import NO_SAMPLES
from headrace.store.shards.recent import Unpacked
from headrace.store.shards.shard import Below, DamagedShard, Listed, Shard, Steps, Wanted
from headrace.store.url import StoreUrl


class FilesFormat:
    """Every object below the place, but those whose name, or a folder's, begins with a dot.

    Where there are folders, the first of each name is the class: sorted by name, their numbers are the labels, and
    objects beside them are no samples. ``?labels=none`` takes every object, without labels, ``?extensions=jpg,png``
    only such ones.
    """

    def __init__(self, url: StoreUrl) -> None:
        labels = url.options.get("labels", "")
        if labels not in {"", "none"}:
            raise BadStoreUrl.at(url.redacted, "labels= takes only 'none'")
        self._flat = labels == "none"
        listed = url.options.get("extensions", "").split(",")
        self._extensions = tuple(f".{one.strip().removeprefix('.').lower()}" for one in listed if one.strip())
        self.identity = f"files:{labels}:{','.join(self._extensions)}"

    def opened(self, before: Any) -> Steps["Files"]:
        """Raises ``DamagedShard``."""
        (listed,) = yield [Below()]
        if listed is None:
            raise DamagedShard("a web server does not say which files it has; tars and MDS shards can be read from one")
        found = [each for each in listed if self._is_sample(each.object)]
        in_folders = [each for each in found if "/" in each.object]
        with_classes = bool(in_folders) and not self._flat
        found = sorted(in_folders if with_classes else found)
        if not found:
            raise DamagedShard("there is no file in it")
        if isinstance(before, Files) and before.files == found:
            return before
        return Files(found, with_classes=with_classes)

    def _is_sample(self, name: str) -> bool:
        parts = name.split("/")
        if any(part.startswith(".") for part in parts) or parts[-1].lower() in NO_SAMPLES or not parts[-1]:
            return False
        return not self._extensions or name.lower().endswith(self._extensions)


class OneEach(Sequence[Shard]):
    """Shards of one sample each, made when they are asked for."""

    def __init__(self, files: Sequence[Listed]) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    @overload
    def __getitem__(self, index: int) -> Shard: ...
    @overload
    def __getitem__(self, index: slice) -> list[Shard]: ...
    def __getitem__(self, index: int | slice) -> Shard | list[Shard]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        listed = self._files[index]
        return Shard(*listed, (0, listed.size))


@dataclass
class Files:
    """All objects that are samples, by name."""

    files: list[Listed]
    with_classes: bool
    shards: Sequence[Shard] = field(init=False)

    def __post_init__(self) -> None:
        self.shards = OneEach(self.files)
        names = sorted({each.object.partition("/")[0] for each in self.files}) if self.with_classes else []
        self._classes = {name: number for number, name in enumerate(names)}
        self.labels = LabelKind.INTEGER if self.with_classes else LabelKind.NONE

    def counts(self) -> list[int]:
        return [1] * len(self.files)

    def keys(self) -> list[str]:
        return [each.object for each in self.files]

    def find(self, key: str) -> tuple[int, int] | None:
        at = bisect_left(self.files, key, key=lambda each: each.object)
        return (at, 0) if at < len(self.files) and self.files[at].object == key else None

    def kinds(self) -> Steps[dict[str, Kind]]:
        yield from ()
        own = {"label": Kind.INTEGER, CLASS: Kind.TEXT} if self.with_classes else {}
        return {"key": Kind.TEXT, "bytes": Kind.INTEGER, **own}

    def columns(self, names: Sequence[str]) -> Steps[dict[str, list[Any]]]:
        yield from ()
        firsts = [each.object.partition("/")[0] for each in self.files] if self.with_classes else []
        found: dict[str, list[Any]] = {
            "bytes": [each.size for each in self.files],
            "label": [self._classes[first] for first in firsts],
            CLASS: firsts,
        }
        return {name: found[name] for name in names}

    def section(self, shard: int, names: Sequence[str]) -> Steps[dict[str, list[Any]]]:
        yield from ()
        of = self.files[shard]
        first = of.object.partition("/")[0]
        found = {"key": of.object, "bytes": of.size, "label": self._classes.get(first), CLASS: first}
        return {name: [found[name]] for name in names}

    def table(self, shard: int) -> None:
        return None

    def piece(self, shard: int, position: int, table: Any) -> Wanted:
        of = self.files[shard]
        if of.size > MOST:
            raise DamagedShard(f"it has {of.size} bytes, and a sample has {MOST} at most")
        return Wanted(of.object, 0, of.size, of.etag)

    def is_block(self, shard: int) -> bool:
        return False

    def is_whole(self, shard: int) -> bool:
        return False

    def room(self, shard: int) -> int:
        return self.shards[shard].size

    def block(self, shard: int, raw: bytes | memoryview, begin: int, table: Any) -> Unpacked:
        return Unpacked(raw, len(raw))

    def row(self, shard: int, position: int, piece: Any, table: Any) -> tuple[bytes | memoryview, Label]:
        return piece, self._classes.get(self.files[shard].object.partition("/")[0])
