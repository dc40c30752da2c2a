"""Entries as files of a directory on a local disk: the level below memory.

A file is written beside its place and renamed, so what is found is whole; who reads a file that is deleted goes on
reading it. What is held is counted under a lock of the kernel. Whoever dies while writing leaves the count too high and
a file that nobody finds; who opens the directory when nobody else has it open puts both right.
"""

import fcntl
import mmap
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.cache.tier import Key, Usage, Writer
from headrace.core.errors import CacheError

BLOCK = 4096
COUNT, USERS, PART = "count", "users", ".part"


class DirectoryTier:
    """A tier on a disk. Each process opens an object of its own."""

    def __init__(self, path: str | Path, size: int) -> None:
        """Make the directory, or use the one there is."""
        self._path, self._limit, self._pid, self._closed = Path(path), size, 0, False
        try:
            self._path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._attach()
        except OSError as error:
            msg = f"{self._path} cannot hold a cache: {error.strerror}"
            raise CacheError(msg) from None

    def _attach(self) -> None:
        """Descriptors of this process's own: locks of an inherited one would be the parent's."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._count = os.open(self._path / COUNT, flags, 0o600)
        self._users = os.open(self._path / USERS, flags, 0o600)
        self._pid = os.getpid()
        with self._locked():
            try:
                fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                pass
            else:
                self._put_right()
            fcntl.flock(self._users, fcntl.LOCK_SH)

    def _put_right(self) -> None:
        held = 0
        for file in self._files():
            if file.suffix == PART:
                file.unlink(missing_ok=True)
            else:
                held += _rounded(file.stat().st_size)
        self._set_held(held)

    def _files(self) -> Iterator[Path]:
        for folder in self._path.iterdir():
            if folder.is_dir() and len(folder.name) == 2:
                yield from folder.iterdir()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._count, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._count, fcntl.LOCK_UN)

    def _held(self) -> int:
        return int.from_bytes(os.pread(self._count, 8, 0), "little")

    def _set_held(self, held: int) -> None:
        os.pwrite(self._count, max(0, held).to_bytes(8, "little"), 0)

    def _here(self) -> None:
        if self._closed:
            msg = f"the cache in {self._path} was closed"
            raise CacheError(msg)
        if self._pid != os.getpid():
            self._attach()

    def file(self, key: Key) -> Path:
        """Where an entry lies."""
        return self._path / f"{key.sample % 256:02x}" / f"{key.scope}-{key.form}-{key.sample}"

    def reading(self) -> "DirectoryReading":
        """What it hands out are mappings of files."""
        return DirectoryReading(self)

    def put(self, key: Key, size: int, write: Writer) -> bool:
        """See ``Tier``."""
        self._here()
        place = self.file(key)
        if size <= 0 or place.exists() or self._held() + _rounded(size) > self._limit:
            return False
        entry = bytearray(size)
        write(memoryview(entry))
        beside = place.with_name(f"{secrets.token_hex(8)}{PART}")
        try:
            place.parent.mkdir(exist_ok=True, mode=0o700)
            beside.write_bytes(entry)
            with self._locked():
                held = self._held() + _rounded(size)
                if held > self._limit or place.exists():
                    return False
                self._set_held(held)
                beside.rename(place)
        except OSError:  # no space, or no such disk any more
            return False
        finally:
            with suppress(OSError):
                beside.unlink(missing_ok=True)
        return True

    def delete(self, keys: Sequence[Key]) -> None:
        """See ``Tier``."""
        self._here()
        with suppress(OSError), self._locked():
            for key in keys:
                place = self.file(key)
                with suppress(FileNotFoundError):
                    size = place.stat().st_size
                    place.unlink()
                    self._set_held(self._held() - _rounded(size))

    def listed(self) -> Iterator[tuple[Key, int]]:
        """See ``Tier``."""
        self._here()
        for file in self._files():
            with suppress(OSError, ValueError):
                scope, form, sample = file.name.split("-")
                yield Key(scope, int(sample), int(form)), file.stat().st_size

    def clear(self) -> None:
        """See ``Tier``."""
        self.delete([key for key, _ in self.listed()])

    def usage(self) -> Usage:
        """See ``Tier``; counts files."""
        self._here()
        return Usage(sum(1 for _ in self.listed()), self._held(), self._limit)

    def footprint(self, size: int) -> int:
        """See ``Tier``."""
        return _rounded(size)

    def close(self) -> None:
        """See ``Tier``."""
        if not self._closed:
            self._closed = True
            os.close(self._count)
            os.close(self._users)


class DirectoryReading:
    """Mappings of files: the kernel keeps what is mapped, whatever becomes of the file."""

    def __init__(self, tier: DirectoryTier) -> None:
        """Of that tier."""
        self._tier = tier

    def __enter__(self) -> Self:
        return self

    def get(self, keys: Sequence[Key]) -> list[memoryview | None]:
        """See ``Reading``."""
        found: list[memoryview | None] = []
        for key in keys:
            try:
                with self._tier.file(key).open("rb") as file:
                    found.append(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
            except (OSError, ValueError):
                found.append(None)
        return found

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Mappings go with the views of them."""


def _rounded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK
