"""A folder of shards: files, read with ``pread``."""

import os
from pathlib import Path
from typing import Any, TypeVar

from headrace.store.files import read_at, stamp_of
from headrace.store.shards.shard import (
    Below,
    Content,
    DamagedShard,
    Listed,
    Look,
    Recall,
    Remember,
    Request,
    Steps,
    Wanted,
    check_small,
)

T = TypeVar("T")


class FolderPlace:
    """Files below a folder. Nothing is held open."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def identity(self) -> str:
        return os.path.realpath(self._root)

    def run(self, steps: Steps[T]) -> T:
        """The parser's result. Raises what it raises, ``DamagedShard`` or ``OSError``."""
        try:
            requests = next(steps)
            while True:
                try:
                    answers = [self._answer(request) for request in requests]
                except Exception as error:  # noqa: BLE001  (the parser knows what it was reading)
                    requests = steps.throw(error)
                else:
                    requests = steps.send(answers)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]

    def read(self, wanted: Wanted) -> bytes:
        """The bytes. Raises ``DamagedShard`` where they are not there, or the file is another one by now."""
        try:
            return read_at(self._root / wanted.object, wanted.begin, wanted.end - wanted.begin, wanted.etag or None)
        except FileNotFoundError:
            raise DamagedShard("it is gone") from None
        except OSError as error:
            raise DamagedShard(error.strerror or str(error)) from error

    def close(self) -> None:
        """Nothing is held."""

    def _answer(self, request: Request) -> Any:
        if isinstance(request, Wanted):
            return self.read(request)
        if isinstance(request, (Look, Content)):
            listed = self._look(self._root / request.object, request.object)
            return listed if isinstance(request, Look) or listed is None else self._content(listed, request.most)
        if isinstance(request, Below):
            return self._names(request.prefix)
        if isinstance(request, (Recall, Remember)):
            return None
        return [self.run(each) for each in request.steps]

    def _content(self, listed: Listed, most: int) -> tuple[Listed, bytes]:
        check_small(listed, most)
        return listed, self.read(Wanted(listed.object, 0, listed.size, listed.etag)) if listed.size else b""

    def _look(self, path: Path, name: str) -> Listed | None:
        # A name that leads out of the folder, by itself or by a link, is no object of this place.
        if not path.is_file() or not path.resolve().is_relative_to(self._root.resolve()):
            return None
        status = path.stat()
        return Listed(name, status.st_size, stamp_of(status))

    def _names(self, prefix: str) -> list[Listed]:
        found = []
        for folder, inner, files in os.walk(self._root / prefix, onerror=_raise):
            inner[:] = sorted(name for name in inner if not name.startswith("."))
            for name in files:
                path = Path(folder, name)
                listed = None if name.startswith(".") else self._look(path, path.relative_to(self._root).as_posix())
                if listed is not None:
                    found.append(listed)
        return sorted(found)


def _raise(error: OSError) -> None:
    raise error
