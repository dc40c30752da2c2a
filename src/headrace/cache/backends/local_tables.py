"""A dataset in a cache in shared memory.

    table      8 bytes for each sample: its word, see ``words.py``
    log        samples as they were added, the newest last; cut now and then
    facts      how the room is divided, and what was measured
    entries/   one file for each entry, named by its sample and its word
    seen/      what each job has seen of its epoch, a bit for each sample
    used/      by job: 8 bytes for each sample, the augmented entry that it made or was given last
    ranks/     one file for each rank, which it holds a lock on as long as it lives

The kernel is the allocator, and what is being written has no name yet, so whoever dies leaves nothing. Words and counts
are changed under the cache's lock: a few calls, nothing else. Who dies there leaves counts that are a little wrong,
which ``share.py`` puts right.
"""

import fcntl
import os
import select
import shutil
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from headrace.cache import division as D
from headrace.cache.backends import entry_word as W
from headrace.cache.backends import shm
from headrace.cache.backends.backend import CacheTerms, Entry, RoomUse, Swapped
from headrace.cache.backends.descriptors import open_file
from headrace.cache.backends.entry_word import Array, Words
from headrace.cache.backends.shm import HELD, Directory, memory
from headrace.cache.division import DivisionRecord, Sums
from headrace.cache.entries.entry import Bytes, Pieces
from headrace.cache.entries.reuse import Blocks
from headrace.core.errors import CacheError

PAGE, INODE = 4096, 1024
"""What files are made of, and about what each takes beside."""
PARTS = 16
"""Directories that entries lie in, so that those who add some do not wait for each other."""
LOG = 8 << 20
"""Bytes at which the log is cut."""
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW
_WORD = struct.Struct("<Q")
_SPOILT = "spoilt"
_SUMS = 8 * D.PACKED
"""Where sums begin in the facts."""
_T = TypeVar("_T")


def footprint(size: int) -> int:
    """Bytes of shared memory that an entry of ``size`` bytes takes."""
    return -(-size // PAGE) * PAGE + INODE


class LocalBackend:
    """See ``Backend``."""

    slow = False

    def __init__(self, directory: Directory, title: str, samples: int, *, owns: bool = True) -> None:
        """``owns``: the directory is closed with this."""
        self._directory, self._title, self.samples, self._owns = directory, title, samples, owns
        self.where, self._number, self._noted = directory.url, shm.number_of(title), 0
        self._path = directory.path / title
        self._blocks = Blocks()
        self._fds: dict[str, int] = {}
        self._ranks: dict[str, int] = {}
        for each in (*(f"entries/{part:x}" for part in range(PARTS)), "seen", "used", "ranks"):
            (self._path / each).mkdir(mode=0o700, parents=True, exist_ok=True)
        for each in ("table", "facts"):
            self._fds[each] = os.open(self._path / each, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
        self._fds["log"] = os.open(self._path / "log", os.O_RDWR | os.O_CREAT | os.O_APPEND | _FLAGS, 0o600)
        self._fds["entries"] = os.open(self._path / "entries", os.O_RDONLY | os.O_DIRECTORY | _FLAGS)

    rests = False

    @property
    def barred(self) -> bool:
        """See ``Backend``."""
        return self._directory.latch.rests

    def word(self, sample: int) -> int:
        """See ``Backend``."""
        return _word(self._fds["table"], sample)

    def words(self, samples: Array) -> Words:
        """See ``Backend``."""
        fd = self._fds["table"]
        if len(samples) > self.samples // 800:  # a call for each would cost more than all of it
            return self.block(0, self.samples)[samples]
        return np.array([_word(fd, sample) for sample in samples.tolist()], np.uint64)

    def block(self, first: int, count: int) -> Words:
        """See ``Backend``."""
        return np.frombuffer(os.pread(self._fds["table"], 8 * count, 8 * first).ljust(8 * count, b"\0"), np.uint64)

    def arrivals(self, since: int) -> tuple[Array | None, int]:
        """See ``Backend``."""
        size = os.fstat(self._fds["log"]).st_size // 8 * 8
        if not 0 <= since <= size or size - since > LOG // 8:
            return None, size
        found = np.frombuffer(os.pread(self._fds["log"], size - since, since), np.int64)
        return found[(found >= 0) & (found < self.samples)], since + 8 * len(found)

    def swap(self, remove: Sequence[Entry], add: Sequence[Entry], terms: CacheTerms, *, lost: bool = False) -> Swapped:
        """See ``Backend``."""
        why = shm.LOST if lost else shm.EVICTED
        return self._locked(lambda: self._swapped(remove, add, terms, why), Swapped([], []))

    def _swapped(self, remove: Sequence[Entry], add: Sequence[Entry], terms: CacheTerms, why: int) -> Swapped:
        table, removed = self._fds["table"], []
        slot, record, records = self._own()
        for entry in remove:
            if _word(table, entry.sample) == entry.word:
                os.pwrite(table, bytes(8), 8 * entry.sample)
                record[_field(entry.word)] -= W.size_of(entry.word)
                record[why] += 1
                removed.append(entry)
        added = []
        if add and slot >= 0:
            free = terms.limit - sum(map(memory, records))
            for entry in add:
                field, size = _field(entry.word), W.size_of(entry.word)
                taken = 0 if field == HELD + 3 else size
                if record[field] + size > terms.budget[field - HELD] or taken > free or _word(table, entry.sample):
                    continue
                with suppress(OSError):  # no memory for a page of the table
                    if os.pwrite(table, _WORD.pack(entry.word), 8 * entry.sample) == 8:
                        record[field] += size
                        free -= taken
                        added.append(entry)
            record[shm.KEPT] += len(added)
            self._note(added)
        if slot >= 0 and (removed or added):
            self._directory.write(slot, record)
        return Swapped(removed, added)

    def _own(self) -> tuple[int, list[int], list[list[int]]]:
        """The place of this dataset's record (-1: there is none, and no room for one), that record, and all of them."""
        records = self._directory.records()
        slot = self._directory.slot(records, self._number)
        record = records[slot] if slot >= 0 else [0] * shm.FIELDS
        record[shm.SAMPLES] = self.samples
        return slot, record, records

    def _locked(self, change: Callable[[], _T], otherwise: _T) -> _T:
        """The result of a change that is made under the lock; ``otherwise`` where the lock cannot be had."""
        taken, latch = None, self._directory.latch
        try:
            taken = latch.take()
            return otherwise if taken is None else change()
        except OSError:
            return otherwise
        finally:
            latch.give(taken)

    def _note(self, added: Sequence[Entry]) -> None:
        log = self._fds["log"]
        self._noted += 1
        with suppress(OSError):
            # Whoever has read further than the log then goes is told to look at all of the table.
            if self._noted % 256 == 0 and os.fstat(log).st_size >= LOG:
                os.ftruncate(log, 0)
            os.write(log, b"".join([_WORD.pack(entry.sample) for entry in added]))

    def aside(self, entry: Entry, pieces: Pieces) -> "LocalAside | None":
        """See ``Backend``."""
        with suppress(OSError):  # no memory
            file = open_file(".", os.O_TMPFILE | os.O_RDWR, at=self._fds["entries"])
            # Where memory runs out in the middle, less is written, and no error is raised.
            if os.writev(file.fileno(), pieces) == sum(map(len, pieces)):
                return LocalAside(file, self._fds["entries"], entry)
            file.close()
        return None

    def read(self, entry: Entry) -> Bytes | None:
        """See ``Backend``."""
        try:
            with open_file(_name(entry), os.O_RDONLY | _FLAGS, at=self._fds["entries"]) as file:
                # A word says how many whole pages an entry takes, so never less than it has.
                found = self._blocks.take(W.size_of(entry.word))
                return found[: os.preadv(file.fileno(), [found], 0)]  # type: ignore[list-item]
        except OSError:
            return None

    def erase(self, entries: Sequence[Entry]) -> None:
        """See ``Backend``."""
        for entry in entries:
            with suppress(OSError):
                os.unlink(_name(entry), dir_fd=self._fds["entries"])

    def footprint(self, size: int) -> int:
        """See ``Backend``."""
        return footprint(size)

    def room(self) -> RoomUse:
        """See ``Backend``."""
        _, record, records = self._own()
        held, (kept, evicted, lost) = record[HELD : HELD + 4], record[shm.KEPT : shm.LOST + 1]
        others = sum(map(memory, records)) - sum(held[:3])
        return RoomUse((held[0], held[1], held[2], held[3]), others, kept, evicted, lost)

    def correct(self, by: Sequence[int]) -> None:
        """See ``Backend``."""

        def corrected() -> None:
            slot, record, _ = self._own()
            if slot >= 0:
                for at, more in enumerate(by, HELD):
                    record[at] += more
                self._directory.write(slot, record)

        self._locked(corrected, None)

    def saw(self, name: str, fresh: Array, mirror: Bytes) -> None:
        """See ``Backend``; ranks of a job add to what others wrote, and what gets lost is written the next time."""
        with suppress(OSError), open_file(self._path / "seen" / name, os.O_RDWR | os.O_CREAT | _FLAGS) as file:
            # Not one step: bits of another rank that get lost here come again from its mirror, with its next batch.
            there = np.frombuffer(os.pread(file.fileno(), len(mirror), 0).ljust(len(mirror), b"\0"), np.uint8)
            os.pwrite(file.fileno(), np.bitwise_or(there, mirror), 0)  # type: ignore[arg-type]

    def seen(self, names: Sequence[str], first: int, count: int) -> list[Bytes]:
        """See ``Backend``."""
        found = []
        size = -(-count // 8)
        for name in names:
            content = b""
            with suppress(OSError), open_file(self._path / "seen" / name, os.O_RDONLY | _FLAGS) as file:
                content = os.pread(file.fileno(), size, first // 8)
            found.append(np.frombuffer(content.ljust(size, b"\0"), np.uint8))
        return found

    def forget(self, name: str) -> None:
        """See ``Backend``."""
        with suppress(OSError):
            (self._path / "seen" / name).unlink()

    def claim(self, job: str, entries: Sequence[Entry]) -> list[bool]:
        """See ``Backend``."""
        try:
            with open_file(self._path / "used" / job, os.O_RDWR | os.O_CREAT | _FLAGS) as file:
                fresh = [_word(file.fileno(), entry.sample) != entry.word for entry in entries]
                for entry, new in zip(entries, fresh, strict=True):
                    if new:
                        os.pwrite(file.fileno(), _WORD.pack(entry.word), 8 * entry.sample)
        except OSError:
            return [False] * len(entries)
        return fresh

    def report(self, name: str, record: bytes) -> None:
        """See ``Backend``: the kernel knows who lives."""
        try:
            if name not in self._ranks:
                # It gets its name once it is locked: whoever sees it unlocked takes its rank for dead.
                beside, place = self._path / "ranks" / f".{name}", self._path / "ranks" / name
                self._ranks[name] = fd = os.open(beside, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                beside.rename(place)
            os.pwrite(self._ranks[name], record, 0)
        except OSError:
            self.leave(name)

    def reports(self) -> dict[str, bytes]:
        """See ``Backend``; what the dead left is cleared away."""
        found = {}
        folder = self._path / "ranks"
        with suppress(OSError):
            for path in folder.iterdir():
                name = path.name
                with suppress(OSError), open_file(path, os.O_RDONLY | _FLAGS) as file:
                    if not _is_free(file.fileno()):
                        found[name] = os.pread(file.fileno(), 4096, 0)
                    elif not name.startswith("."):
                        self._bury(name)
        return found

    def _bury(self, name: str) -> None:
        (self._path / "ranks" / name).unlink()
        unit = name.rsplit(".", 1)[0]
        if not any(other.startswith(f"{unit}.") for other in _names(self._path / "ranks")):
            for seen in (self._path / "seen").glob(f"{unit}.*"):
                seen.unlink(missing_ok=True)

    def leave(self, name: str) -> None:
        """See ``Backend``."""
        fd = self._ranks.pop(name, None)
        if fd is not None:
            with suppress(OSError):
                # While it is still locked: nobody else then takes it for dead and clears it away too.
                self._bury(name)
            os.close(fd)

    def division(self) -> DivisionRecord | None:
        """See ``Backend``."""
        content = os.pread(self._fds["facts"], _SUMS, 0).ljust(_SUMS, b"\0")
        return D.unpack(np.frombuffer(content, np.int64).tolist())

    def divide(self, new: DivisionRecord, after: int | None) -> bool:
        """See ``Backend``."""

        def divided() -> bool:
            now = self.division()
            if after is not None and (now is None or now.number != after):
                return False
            os.pwrite(self._fds["facts"], np.array(D.pack(new), np.int64).tobytes(), 0)
            return True

        return self._locked(divided, False)

    def measure(self, sums: Sums) -> bool:
        """See ``Backend``."""
        return self._summed(lambda before: [a + b for a, b in zip(before, sums, strict=True)])

    def fade(self) -> None:
        """See ``Backend``."""
        self._summed(lambda before: [value // 2 for value in before])

    def _summed(self, change: Callable[[Sums], list[int]]) -> bool:
        def summed() -> bool:
            os.pwrite(self._fds["facts"], np.array(change(self.measured()), np.int64).tobytes(), _SUMS)
            return True

        return self._locked(summed, False)

    def measured(self) -> Sums:
        """See ``Backend``."""
        size = 8 * len(Sums._fields)
        content = os.pread(self._fds["facts"], size, _SUMS).ljust(size, b"\0")
        found = np.frombuffer(content, np.int64).tolist()
        return Sums(*found) if all(0 <= value < 1 << 60 for value in found) else Sums()

    def note_disk(self, path: str) -> None:
        """See ``Backend``."""
        self._directory.note_disk(path)

    def siblings(self) -> list["LocalBackend"]:
        """See ``Backend``."""
        return datasets(self._directory, but=self._title)

    def spoil(self) -> None:
        """See ``Backend``."""
        with suppress(OSError), open_file(_SPOILT, os.O_WRONLY | os.O_CREAT | _FLAGS, at=self._fds["entries"]):
            pass

    def spoilt(self) -> bool:
        """See ``Backend``."""
        return os.access(_SPOILT, os.F_OK, dir_fd=self._fds["entries"])

    def remove(self) -> None:
        """See ``Backend``."""
        beside = self._directory.path / f".{self._title}.{os.getpid()}"

        def removed() -> None:
            # Before it is deleted, so that nobody finds a part of it; under the lock, so that no swap counts there.
            self._path.rename(beside)
            records = self._directory.records()
            for slot, each in enumerate(records):
                if each[shm.TITLE] == self._number:
                    self._directory.write(slot, [0] * shm.FIELDS)

        self._locked(removed, None)
        shutil.rmtree(beside, ignore_errors=True)

    def close(self) -> None:
        """See ``Backend``."""
        for name in list(self._ranks):
            self.leave(name)
        while self._fds:
            os.close(self._fds.popitem()[1])
        if self._owns:
            self._directory.close()


class LocalAside(NamedTuple):
    """A file without a name: the kernel takes it back with its descriptor."""

    file: select.epoll
    folder: int
    entry: Entry

    def settle(self) -> bool:
        """See ``Aside``."""
        name, source = _name(self.entry), f"/proc/self/fd/{self.file.fileno()}"
        try:
            os.link(source, name, dst_dir_fd=self.folder, follow_symlinks=True)
        except OSError:
            return False
        finally:
            self.drop()
        return True

    def drop(self) -> None:
        """See ``Aside``."""
        self.file.close()


def _name(entry: Entry) -> str:
    return f"{entry.sample % PARTS:x}/{entry.sample:x}-{entry.word:x}"


def _word(fd: int, sample: int) -> int:
    return int.from_bytes(os.pread(fd, 8, 8 * sample), "little")


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def _field(word: int) -> int:
    """The field in which the bytes of an entry are counted; those of a word that makes no sense, nowhere that
    matters.
    """
    return HELD + 3 if W.on_disk(word) else HELD - 1 + max(1, W.form_of(word))


def _is_free(fd: int) -> bool:
    """True if nobody holds a lock on that file."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def datasets(directory: Directory, but: str = "") -> list[LocalBackend]:
    """The datasets that a cache has, except the one titled ``but``."""
    samples = {shm.title_of(each[shm.TITLE]): max(0, each[shm.SAMPLES]) for each in directory.records()}
    found = []
    for title in directory.datasets():
        if title != but:
            with suppress(OSError):  # it was removed meanwhile
                found.append(LocalBackend(directory, title, samples.get(title, 0), owns=False))
    return found


def opened(name: str, size: int, title: str, samples: int) -> LocalBackend:
    """A dataset in a cache; ``CacheError`` where it cannot be had."""
    directory = Directory(name, size)
    try:
        return LocalBackend(directory, title, samples)
    except OSError as error:
        directory.close()
        msg = f"the cache {directory.url} cannot be used: {error.strerror}"
        raise CacheError(msg) from None
    except BaseException:
        directory.close()
        raise
