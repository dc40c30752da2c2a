"""The ledger of a shared cache in this host's shared memory: ``ledger.py`` with a file, a lock and a clock."""

import os
import secrets
import time
from collections.abc import Callable, Iterable

import numpy as np

from headrace.cache import division, ledger
from headrace.cache import words as W
from headrace.cache.book import Answer, Entry, Grant
from headrace.cache.division import Division, Facts, Parts, Rank, Sums
from headrace.cache.ledger import Seat
from headrace.cache.ledger_files import SILENCE, form_of, lately, living_scopes, packed, path_of
from headrace.cache.memory_file import MemoryFile, release, shared
from headrace.cache.policies import Policy
from headrace.cache.tier import Key
from headrace.cache.words import Array, Dims


class LocalBook:
    """A rank at the ledger of one dataset. Used by one thread of one process; ``fork`` leaves it to the parent."""

    def __init__(
        self,
        name: str,
        *,
        samples: int,
        scopes: tuple[str, str, str],
        budget: tuple[int, int, int],
        policy: Policy,
        group: int | None = None,
    ) -> None:
        """``scopes``: the fingerprints of encoded, decoded and augmented entries. ``budget``: the bytes they may take,
        if nobody kept this ledger before.

        ``group``: a number that all ranks of a job have in common; None: it has one.
        """
        dims = Dims(samples)
        path, form = path_of(name, scopes, samples), form_of(name, dims)
        self._file = shared(path, form, lambda: MemoryFile(path, form, dims.words))
        self._name, self._scopes, self._pid, self._open = name, scopes, os.getpid(), True
        self._epoch, self._stands_in = 0, False
        self._members: Array | None = None
        self._served = np.zeros(samples, bool)
        words = self._file.words
        with self._file.locked():
            self.new = bool(words[W.SAMPLES] == 0)
            """Nobody kept this ledger before: what the tier has may be taken in."""
            if self.new:
                words[W.SCOPES : W.SCOPES + 6] = packed(scopes)
                ledger.found(words, dims, budget)
            self.seat = Seat(
                words,
                words,
                policy=policy,
                name=secrets.randbits(61) + 1,
                group=group or secrets.randbits(61) + 1,
                timeout=SILENCE,
                seed=secrets.randbits(64),
            )

    def _sit(self) -> list[Entry]:
        """Take a seat, or another if it was given away in a long silence: with what was served. The lock is held."""
        if self.seat.seated:
            return []
        before = self.seat.number >= 0
        abandoned = self.seat.join(time.monotonic_ns())
        if before:
            done = np.flatnonzero(self._served)
            self.seat.begin(self._epoch, time.monotonic_ns(), members=self._members, done=done)
        return abandoned

    def begin(self, epoch: int, *, members: Array | None = None, done: Iterable[int] = ()) -> list[Entry]:
        """See ``Book``."""
        self._epoch, self._members = epoch, members
        past = np.fromiter(done, np.int64)
        self._served[:] = False
        self._served[past] = True
        with self._file.locked():
            abandoned = self._sit()
            self.seat.begin(epoch, time.monotonic_ns(), members=members, done=past)
        return abandoned

    @property
    def badge(self) -> tuple[int, int]:
        """See ``Book``."""
        return self.seat.number, self.seat.name

    def stand_in(self, badge: tuple[int, int]) -> None:
        """See ``Book``."""
        self.seat.number, self.seat.name = badge
        self._stands_in = True

    def request(self, asked: Array, *, exchange: bool = True) -> Answer:
        """See ``Book``."""
        with self._file.locked():
            abandoned = self._sit()
            answer = self.seat.request(asked, time.monotonic_ns(), exchange=exchange)
        self._served[[each.sample for each in answer.servings]] = True
        return answer._replace(dropped=[*abandoned, *answer.dropped])

    def reserve(self, sample: int, form: int, size: int) -> Grant:
        """See ``Book``."""
        with self._file.locked():
            if not self.seat.seated:
                return Grant(granted=False, evicted=[])
            return self.seat.reserve(sample, form, size, time.monotonic_ns(), os.getpid())

    def settle(self, sample: int, *, served: bool = True) -> bool:
        """See ``Book``."""
        with self._file.locked():
            return self.seat.settle(sample, served=served)

    def cancel(self, sample: int) -> None:
        """See ``Book``."""
        with self._file.locked():
            self.seat.cancel(sample)

    def lost(self, sample: int, form: int) -> None:
        """See ``Book``."""
        with self._file.locked():
            self.seat.lost(sample, form)

    def bury(self, lives: Callable[[int], bool]) -> list[Entry]:
        """See ``Book``."""
        with self._file.locked():
            if not self.seat.seated:
                return []
            gone = [sample for sample, writer in self.seat.entries.writing(self.seat.number) if not lives(writer)]
            return self.seat.bury(gone) if gone else []

    def agree(self, parts: Parts | None, room: int) -> None:
        """See ``Book``."""
        with self._file.locked():
            self.seat.agree(parts, room, time.monotonic_ns())

    def measure(self, sums: Sums) -> None:
        """See ``Book``."""
        with self._file.locked():
            division.measure(self._file.words, self._file.words, sums)

    def report(self, rank: Rank) -> None:
        """See ``Book``."""
        with self._file.locked():
            if self.seat.seated:
                first = self.seat.dims.seat(self.seat.number) + W.J_RANK
                self._file.words[first : first + W.J_FACTS] = rank.words()

    def facts(self) -> Facts:
        """See ``Book``."""
        with self._file.locked():
            return division.facts(self._file.words, self.seat.dims, lately())

    def divide(self, new: Division) -> bool:
        """See ``Book``."""
        with self._file.locked():
            return self.seat.divide(new)

    def adopt(self, listed: Iterable[tuple[Key, int]]) -> list[Key]:
        """See ``Book``."""
        if not self.new:
            return []
        useless = []
        for key, size in listed:
            if key.scope not in self._scopes:
                continue
            with self._file.locked():
                self._sit()
                known = key.sample < self.seat.dims.samples and key.scope == self._scopes[key.form - 1]
                if not known or not self.seat.adopt(key.sample, key.form, size, time.monotonic_ns()):
                    useless.append(key)
        self.new = False
        return useless

    def useless(self, listed: Iterable[tuple[Key, int]]) -> list[Key]:
        """See ``Book``."""
        living = living_scopes(self._name)
        found = []
        with self._file.locked():
            form = self.seat.entries.place & W.FORM
            for key, _ in listed:
                ours = key.scope in self._scopes
                if (ours and form[key.sample] != key.form) or (not ours and key.scope not in living):
                    found.append(key)
        return found

    def counts(self) -> dict[str, int]:
        """What the ledger counted, of all jobs together."""
        with self._file.locked():
            words = self._file.words[: W.HEADER].tolist()
        names = ("encoded", "decoded", "augmented")
        found = {f"hits_{name}": words[W.HITS + at] for at, name in enumerate(names)}
        found |= {f"bytes_{name}": words[W.BYTES + at] for at, name in enumerate(names)}
        others = {
            "misses": W.MISSES,
            "exchanged": W.EXCHANGED,
            "admitted": W.ADMITTED,
            "evicted": W.EVICTED,
            "refused": W.REFUSED,
            "lost": W.LOST,
            "refilled": W.REFILLED,
        }
        return found | {name: words[at] for name, at in others.items()}

    def leave(self) -> list[Entry]:
        """See ``Book``; idempotent, and closes the file."""
        if not self._open:
            return []
        self._open = False
        abandoned = []
        if self._pid == os.getpid() and not self._stands_in:
            with self._file.locked():
                abandoned = self.seat.leave()
        del self.seat  # its views keep the mapping
        release(self._file)
        return abandoned
