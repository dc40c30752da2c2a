"""Targets that shards are written to: a folder, or a bucket. Blocking; an object is there whole, or not at all."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, TypeVar

from headrace.core.errors import StoreRefused
from headrace.core.options import Retry
from headrace.store.files import replacing
from headrace.store.reading.background import run_here
from headrace.store.reading.perseverance import Perseverance

T = TypeVar("T")


class ShardTarget(Protocol):
    """Objects by name."""

    def get(self, name: str) -> bytes | None:
        """The content; None where there is no such object."""
        ...

    def put(self, name: str, content: bytes) -> None: ...

    def delete(self, name: str) -> None: ...

    def names(self, folder: str) -> list[str]:
        """The objects in a folder, sorted."""
        ...


class FolderTarget:
    """Files below a folder, which is made when the first one is written."""

    def __init__(self, root: Path, store: str) -> None:
        self._root, self._store = root, store

    def get(self, name: str) -> bytes | None:
        try:
            return (self._root / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreRefused.at(self._store, f"{name!r} cannot be read: {error.strerror}") from error

    def put(self, name: str, content: bytes) -> None:
        path = self._root / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as beside:
                beside.write_bytes(content)
        except OSError as error:
            raise StoreRefused.at(self._store, f"{name!r} cannot be written: {error.strerror}") from error

    def delete(self, name: str) -> None:
        (self._root / name).unlink(missing_ok=True)

    def names(self, folder: str) -> list[str]:
        place = self._root / folder
        if not place.is_dir():
            return []
        return sorted(each.relative_to(self._root).as_posix() for each in place.iterdir() if each.name[0] != ".")


class BucketTarget:
    """Objects below a prefix. Passing failures are tried again."""

    def __init__(self, bucket: "BucketToWrite", store: str) -> None:
        self._bucket, self._store = bucket, store

    def get(self, name: str) -> bytes | None:
        found = self._run(lambda: self._bucket.get(name))
        return None if found is None else bytes(found[0])

    def put(self, name: str, content: bytes) -> None:
        self._run(lambda: self._bucket.put(name, content))

    def delete(self, name: str) -> None:
        self._run(lambda: self._bucket.delete(name))

    def names(self, folder: str) -> list[str]:
        depth = folder.count("/") + 1 if folder else 0
        return [name for name in self._run(lambda: self._bucket.names(folder)) if name.count("/") == depth]

    def _run(self, request: Callable[[], Awaitable[T]]) -> T:
        return run_here(Perseverance(self._store, Retry(), None).run(None, request))


class BucketToWrite(Protocol):
    """The part of a bucket that is needed to write to it."""

    async def get(self, path: str) -> tuple[memoryview, dict[str, str]] | None: ...

    async def put(self, path: str, payload: bytes | memoryview) -> None: ...

    async def delete(self, path: str) -> None: ...

    async def names(self, prefix: str) -> list[str]: ...
