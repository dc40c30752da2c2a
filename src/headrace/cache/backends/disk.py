"""A directory on a local disk, which takes what memory has no room for: a file for each entry.

A file is written beside its place and renamed. What it holds in all is counted with the rest of the cache.
"""

import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headrace.cache.backends import entry_word as W
from headrace.cache.backends.backend import Entry
from headrace.cache.entries.entry import Bytes, Pieces
from headrace.core.errors import CacheError

BLOCK = 4096
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = "[0-9a-f]"
_ENTRY = re.compile(r"[0-9a-f]+-[0-9a-f]+|[0-9a-f]+\.part")
PART = ".part"
_SPOILT = "spoilt"


class Disk:
    """The part of a cache's directory that belongs to one dataset."""

    def __init__(self, path: str | Path, title: str, limit: int) -> None:
        """Make the directory, or use the one there is; ``CacheError`` where it cannot hold a cache."""
        where, self.limit = Path(path) / title, limit
        try:
            where.mkdir(parents=True, exist_ok=True, mode=0o700)
            if where.is_symlink():
                raise CacheError(_not_private(where))
            self._fd = os.open(where, _FLAGS)
        except OSError as error:
            msg = f"{path} cannot hold a cache: {error.strerror}"
            raise CacheError(msg) from None
        about = os.fstat(self._fd)
        # Entries are under a checksum, which whoever may write there can make.
        if about.st_uid != os.geteuid() or about.st_mode & 0o077:
            self.close()
            raise CacheError(_not_private(where))
        # This directory from now on, whatever is put in its place by whoever may write to the one above it.
        self._path = Path(f"/proc/self/fd/{self._fd}")

    def close(self) -> None:
        """Idempotent. Nothing is found, and nothing kept, from then on."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
            self._path = Path("/proc/self/fd/-1")

    def spoil(self) -> None:
        """Have nothing that is here used any more, also by who comes when the table is gone."""
        with suppress(OSError):
            (self._path / _SPOILT).touch(mode=0o600)

    def spoilt(self) -> bool:
        """True if ``spoil`` was called, by anybody, and nobody has cleared it since."""
        return (self._path / _SPOILT).exists()

    def _file(self, entry: Entry) -> Path:
        return self._path / f"{entry.sample & 255:02x}" / f"{entry.sample:x}-{entry.word:x}"

    def aside(self, entry: Entry, pieces: Pieces) -> "DiskAside | None":
        """See ``Backend``."""
        place = self._file(entry)
        beside = place.with_name(f"{secrets.token_hex(8)}{PART}")
        try:
            place.parent.mkdir(exist_ok=True, mode=0o700)
            with beside.open("wb") as file:
                file.writelines(pieces)
        except OSError:  # no space, or no such disk any more
            with suppress(OSError):
                beside.unlink()
            return None
        return DiskAside(beside, place)

    def read(self, entry: Entry) -> Bytes | None:
        """See ``Backend``."""
        try:
            # No more than the word says: what another put there is not read into memory.
            return np.fromfile(self._file(entry), np.uint8, W.size_of(entry.word))
        except OSError:
            return None

    def erase(self, entries: Sequence[Entry]) -> None:
        """See ``Backend``."""
        for entry in entries:
            with suppress(OSError):
                self._file(entry).unlink()

    def footprint(self, size: int) -> int:
        """See ``Backend``."""
        return -(-size // BLOCK) * BLOCK

    def listed(self) -> Iterator[Entry]:
        """Yield the entries that are there. What somebody who died was writing is deleted: to be asked when nobody
        else is here.
        """
        with suppress(OSError):
            for file in [file for folder in self._path.iterdir() if folder.is_dir() for file in folder.iterdir()]:
                sample, _, word = file.name.partition("-")
                try:
                    entry = Entry(int(sample, 16), int(word, 16))
                except ValueError:
                    file.unlink(missing_ok=True)
                    continue
                if W.on_disk(entry.word) and entry.word < 1 << 64:
                    yield entry


class DiskAside(NamedTuple):
    """A file beside its place."""

    beside: Path
    place: Path

    def settle(self) -> bool:
        """See ``Aside``."""
        try:
            self.beside.rename(self.place)
        except OSError:
            self.drop()
            return False
        return True

    def drop(self) -> None:
        """See ``Aside``."""
        with suppress(OSError):
            self.beside.unlink()


def _not_private(path: Path) -> str:
    return f"{path} is not private to this user: remove it, or choose another directory for the cache"


def clear(path: str | Path) -> int:
    """Delete what a cache has in a directory, and nothing else; the bytes that were held there."""
    held = 0
    for folder in Path(path).glob(_FOLDER * 16):
        if folder.is_symlink():
            continue
        for part in folder.glob(_FOLDER * 2):
            for file in part.iterdir() if part.is_dir() and not part.is_symlink() else ():
                if _ENTRY.fullmatch(file.name):
                    with suppress(OSError):
                        held += file.lstat().st_size
                        file.unlink()
            with suppress(OSError):
                part.rmdir()
        with suppress(OSError):
            (folder / _SPOILT).unlink(missing_ok=True)
            folder.rmdir()  # where nothing else is in it
    return held
