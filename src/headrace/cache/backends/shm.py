"""Caches in this host's shared memory: a directory for each, private to its user, and nothing that has to run.

    cache              version and size
    lock               held while words and counts are changed, and for nothing else
    room               what each dataset takes
    <dataset>/         see ``local.py``

Everything is read and written by calls, nothing is mapped: a file that was cut short reads as nothing.
"""

import json
import os
import re
import shutil
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from headrace.cache.backends.latch import Latch
from headrace.core.errors import CacheError

ROOT = Path("/dev/shm")  # noqa: S108  (a memory file system, and the directories are the user's own)
VERSION = 5
LEAST = 1 << 20
"""Bytes of the smallest cache."""
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW
SLOTS = 56
"""Datasets that a cache may have at once."""
TITLE, HELD, KEPT, EVICTED, LOST, SAMPLES, FIELDS = 0, 1, 5, 6, 7, 8, 9
"""What stands where in the record of a dataset, from ``HELD`` on in the order of ``Room.held``."""
_RECORD = struct.Struct(f"<{FIELDS}q")


def checked(name: str) -> str:
    """The name, or ``CacheError`` if no directory can have it."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        msg = f"shm://{name}: the name of a cache has up to 64 letters, digits, dots, dashes and underscores"
        raise CacheError(msg)
    return name


def path_of(name: str) -> Path:
    """The directory of a cache of this user."""
    return ROOT / f"headrace-cache-{os.geteuid()}-{checked(name)}"


def names() -> list[str]:
    """The caches of this user."""
    prefix = path_of("x").name[:-1]
    return sorted(path.name.removeprefix(prefix) for path in ROOT.glob(f"{prefix}*") if path.is_dir())


def size_of(name: str) -> int:
    """Bytes that a cache may hold; ``CacheError`` if there is none of that name."""
    path = path_of(name)
    if not path.is_dir():
        msg = f"there is no cache shm://{name} of this user"
        raise CacheError(msg)
    found = _facts(path / "cache")
    return found.size if found is not None else LEAST


def is_current(name: str) -> bool:
    """True if a cache can be read by this version; ``CacheError`` if there is none of that name."""
    size_of(name)
    found = _facts(path_of(name) / "cache")
    return found is None or found.version == VERSION


def remove(name: str) -> None:
    """Remove a cache. Whoever uses it goes on with what they have open, and finds nothing more."""
    shutil.rmtree(path_of(name), ignore_errors=True)


def disks(name: str) -> list[str]:
    """Directories that have entries of a cache, on the level below memory."""
    found = []
    with suppress(OSError, UnicodeDecodeError):
        for line in (path_of(name) / "disks").read_text().splitlines():
            with suppress(ValueError):
                found.append(str(json.loads(line)))
    return found


_MOST = 1 << 50


class _CacheFacts(NamedTuple):
    version: int
    size: int


def _facts(path: Path) -> _CacheFacts | None:
    """The facts about a cache; None where there are none, or none that make sense."""
    try:
        version, size = json.loads(path.read_bytes()[:200])
    except (OSError, ValueError, TypeError):
        return None
    return _CacheFacts(version, size) if type(version) is int and type(size) is int and size >= LEAST else None


def table_bytes(samples: int) -> int:
    """Bytes that a dataset takes at most beside its entries, for a job that is alone."""
    return 8 * samples


def memory(record: list[int]) -> int:
    """Bytes that a dataset takes in memory, its table included."""
    return sum(record[HELD : HELD + 3]) + table_bytes(record[SAMPLES])


def number_of(title: str) -> int:
    """The title of a dataset as it stands in its record."""
    return int.from_bytes(bytes.fromhex(title), "little", signed=True)


def title_of(number: int) -> str:
    """The title that ``number_of`` made a number of."""
    return number.to_bytes(8, "little", signed=True).hex()


class Directory:
    """A cache, opened by one process."""

    def __init__(self, name: str, size: int | None) -> None:
        """Make it, or use the one there is; ``CacheError`` says why that cannot be. ``size``: None for the one there
        is, which only a look is taken at.
        """
        self.path, self.name = path_of(name), name
        self.url = f"shm://{name}"
        self._open: list[int] = []
        try:
            if size is not None:
                with suppress(FileExistsError):
                    self.path.mkdir(mode=0o700)
            self.fd = self._opened(self.path, os.O_RDONLY | os.O_DIRECTORY)
            self._check()  # before anything is written: another user may have been here first, and left links
            self._make(size)
            self._room = self._opened("room", os.O_RDWR | os.O_CREAT)
            self.latch = Latch(self._opened("lock", os.O_RDWR | os.O_CREAT))
        except OSError as error:
            self.close()
            msg = f"the cache {self.url} cannot be used: {self.path}: {error.strerror}"
            raise CacheError(msg) from None
        except BaseException:
            self.close()
            raise

    def _opened(self, path: Path | str, flags: int) -> int:
        at = self.fd if isinstance(path, str) else None
        self._open.append(os.open(path, flags | _FLAGS, 0o600, dir_fd=at))
        return self._open[-1]

    def _make(self, size: int | None) -> None:
        facts = self.path / "cache"
        found = _facts(facts)
        if found is None:
            if size is not None:
                beside = self.path / f".{os.getpid()}"
                beside.write_text(json.dumps([VERSION, size]))
                beside.rename(facts)
        elif found.version != VERSION:
            msg = f"{self.path} was made by another version: remove it with `headrace cache clear {self.url}`"
            raise CacheError(msg)
        elif size not in {None, found.size}:
            msg = (
                f"the cache {self.url} has {found.size} bytes, and {size} were asked for: ask for the same, "
                f"choose another name, or remove it with `headrace cache clear {self.url}`"
            )
            raise CacheError(msg)

    def _check(self) -> None:
        about = os.fstat(self.fd)
        if about.st_uid != os.geteuid() or about.st_mode & 0o077:
            msg = f"{self.path} is not private to this user: remove it, or choose another name for the cache"
            raise CacheError(msg)

    def records(self) -> list[list[int]]:
        """The records of all datasets, by their places; one without a title is free. What makes no sense counts as
        nothing.
        """
        content = os.pread(self._room, SLOTS * _RECORD.size, 0)
        found = [list(each) for each in _RECORD.iter_unpack(content[: len(content) // _RECORD.size * _RECORD.size])]
        for each in found:
            if min(each[HELD:]) < 0 or max(each[HELD:]) > _MOST:
                each[HELD:] = [0] * (FIELDS - HELD)
        return found

    def write(self, slot: int, record: list[int]) -> None:
        """The lock is held."""
        if min(record[HELD:]) < 0:
            record[HELD:] = [max(0, count) for count in record[HELD:]]
        os.pwrite(self._room, _RECORD.pack(*record), slot * _RECORD.size)

    def slot(self, records: list[list[int]], title: int) -> int:
        """The place of a dataset among them, or a free one, which is then there; -1 if there is none."""
        for slot, each in enumerate(records):
            if each[TITLE] == title:
                return slot
        if len(records) < SLOTS:
            records.append([0] * FIELDS)
        for slot, each in enumerate(records):
            if not each[TITLE] or not (self.path / title_of(each[TITLE])).is_dir():
                records[slot] = [title, *[0] * (FIELDS - 1)]
                return slot
        return -1

    def datasets(self) -> list[str]:
        """Titles of those there are."""
        with suppress(OSError):
            return sorted(each.name for each in self.path.iterdir() if re.fullmatch(r"[0-9a-f]{16}", each.name))
        return []

    def note_disk(self, path: str) -> None:
        """See ``disks``."""
        if path not in disks(self.name):
            with suppress(OSError), (self.path / "disks").open("a") as file:
                file.write(f"{json.dumps(path)}\n")

    def close(self) -> None:
        """Idempotent."""
        while self._open:
            os.close(self._open.pop())
