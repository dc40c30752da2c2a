"""A rank's share in a cache on this host: the ledger in shared memory beside a tier that holds the bytes."""

import hashlib
import os
import secrets
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from headrace.cache import ledger
from headrace.cache import words as W
from headrace.cache.codec import Encoded
from headrace.cache.entries import Entry
from headrace.cache.ledger import Answer, Seat, Serving
from headrace.cache.memory_file import ROOT, Format, MemoryFile, checked, peek, release, shared
from headrace.cache.policies import Policy
from headrace.cache.tier import Key, Reading, Tier
from headrace.cache.words import Array, Dims

MAGIC, VERSION = 0x68726C6564676572, 1
PREFIX = "headrace-ledger-"
SILENCE = 60.0
"""Seconds after which a rank that asks for nothing does not count any more."""


def ledgers(name: str) -> list[Path]:
    """The ledgers of a cache, one for each dataset it serves."""
    return sorted(ROOT.glob(f"{PREFIX}{checked(name)}.*"))


class Share:
    """One rank at the ledger of one dataset. Used by one thread of one process; ``fork`` leaves it to the parent."""

    def __init__(
        self,
        name: str,
        tier: Tier,
        *,
        samples: int,
        scopes: tuple[str, str, str],
        budget: tuple[int, int, int],
        policy: Policy,
        group: int | None = None,
    ) -> None:
        """``scopes`` and ``budget``: for encoded, decoded and augmented entries, the fingerprint and the bytes.

        ``group``: a number that all ranks of a job have in common; None: it has one.
        """
        dims = Dims(samples)
        data = hashlib.blake2b(":".join((*scopes, str(samples))).encode(), digest_size=8).hexdigest()
        path = ROOT / f"{PREFIX}{checked(name)}.{data}"
        form = Format(MAGIC, VERSION, 8 * dims.words, 8 * dims.words, f"shm://{name}")
        self._file: MemoryFile | None = shared(path, form, lambda: MemoryFile(path, form, dims.words))
        self._pid, self._tier, self._scopes = os.getpid(), tier, scopes
        self._epoch = 0
        self._members: Array | None = None
        self._served = np.zeros(samples, bool)
        words = self._file.words
        self._name, self._swept = name, -(1 << 62)
        with self._file.locked():
            new = words[W.SAMPLES] == 0
            if new:
                words[W.SCOPES : W.SCOPES + 6] = _scope_words(scopes)
                ledger.found(words, dims, budget)
            else:
                ledger.set_budget(words, budget)
            self.seat = Seat(
                words,
                words,
                policy=policy,
                name=secrets.randbits(61) + 1,
                group=group or secrets.randbits(61) + 1,
                timeout=int(SILENCE * 1e9),
                seed=secrets.randbits(64),
            )
        self._rejoin(fresh=True)
        if new:
            self._adopt()

    def key(self, sample: int, form: int) -> Key:
        """Where an entry lies in the tier."""
        return Key(self._scopes[form - 1], sample, form)

    def _rejoin(self, *, fresh: bool = False) -> None:
        """Sit down again, if the seat was given away during a long silence: with what this process knows it served."""
        assert self._file is not None
        with self._file.locked():
            if self.seat.seated and not fresh:
                return
            abandoned = self.seat.join(time.monotonic_ns())
            if not fresh:
                done = np.flatnonzero(self._served)
                self.seat.begin(self._epoch, time.monotonic_ns(), members=self._members, done=done)
        self._delete(abandoned)

    def _adopt(self) -> None:
        """A tier may outlive its ledger, on a disk or a server: what it has of this dataset is taken in."""
        assert self._file is not None
        useless = []
        for key, size in self._tier.listed():
            if key.scope not in self._scopes:
                continue
            with self._file.locked():
                known = key.sample < self.seat.dims.samples and key.scope == self._scopes[key.form - 1]
                if not known or not self.seat.adopt(key.sample, key.form, size, time.monotonic_ns()):
                    useless.append(key)
        self._tier.delete(useless)

    def sweep(self) -> int:
        """Delete what no ledger with a living rank knows: what a changed transform, or a death, left. How many."""
        assert self._file is not None
        living = _living_scopes(self._name, time.monotonic_ns() - int(SILENCE * 1e9))
        useless = []
        with self._file.locked():
            place = self.seat.entries.place & W.FORM
            for key, _ in self._tier.listed():
                ours = key.scope in self._scopes
                if (ours and place[key.sample] != key.form) or (not ours and key.scope not in living):
                    useless.append(key)
        self._tier.delete(useless)
        return len(useless)

    def _make_room(self) -> bool:
        """The ledger has room and the tier has not: sweep, at most every ten seconds."""
        now = time.monotonic_ns()
        if now - self._swept < 10_000_000_000:
            return False
        self._swept = now
        return self.sweep() > 0

    def _delete(self, entries: Sequence[Entry]) -> None:
        if entries:
            self._tier.delete([self.key(*entry) for entry in entries])

    def begin(self, epoch: int, *, members: Array | None = None, done: Iterable[int] = ()) -> None:
        """See ``Seat.begin``."""
        assert self._file is not None
        self._rejoin()
        self._epoch, self._members = epoch, members
        past = np.fromiter(done, np.int64)
        self._served[:] = False
        self._served[past] = True
        with self._file.locked():
            self.seat.begin(epoch, time.monotonic_ns(), members=members, done=past)

    def request(self, asked: Array) -> Answer:
        """See ``Seat.request``; what is dropped has been deleted."""
        assert self._file is not None
        self._rejoin()
        with self._file.locked():
            answer = self.seat.request(asked, time.monotonic_ns())
        self._served[[each.sample for each in answer.servings]] = True
        self._delete(answer.dropped)
        return answer

    def read(self, reading: Reading, servings: Sequence[Serving]) -> list[memoryview | None]:
        """The entries of hits, as long as ``reading`` lasts; what is not there is forgotten, and None."""
        hits = [(at, each) for at, each in enumerate(servings) if each.form]
        views = reading.get([self.key(each.sample, each.form) for _, each in hits])
        found: list[memoryview | None] = [None] * len(servings)
        for (at, each), view in zip(hits, views, strict=True):
            found[at] = view
            if view is None:
                self.lost(each.sample, each.form)
        return found

    def lost(self, sample: int, form: int) -> None:
        """An entry is not there, or is corrupt: let nobody be served it."""
        assert self._file is not None
        with self._file.locked():
            self.seat.lost(sample)
        self._tier.delete([self.key(sample, form)])

    def keep(self, sample: int, form: int, entry: Encoded, *, served: bool = True) -> bool:
        """Put an entry into the cache, if it is worth what must go for it."""
        assert self._file is not None
        self._rejoin()
        with self._file.locked():
            grant = self.seat.reserve(sample, form, entry.size, time.monotonic_ns())
        self._delete(grant.evicted)
        if not grant.granted:
            return False
        key = self.key(sample, form)
        written = False
        try:
            written = self._tier.put(key, entry.size, entry.write)
            if not written and self._make_room():
                written = self._tier.put(key, entry.size, entry.write)
        finally:
            with self._file.locked():
                settled = written and self.seat.settle(sample, served=served)
                if not written:
                    self.seat.cancel(sample)
        if written and not settled:
            self._tier.delete([key])
        return settled

    def counts(self) -> dict[str, int]:
        """What the ledger counted, of all jobs together."""
        assert self._file is not None
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

    def close(self) -> None:
        """Leave; idempotent. What is cached stays."""
        if self._file is None:
            return
        file, self._file = self._file, None
        if self._pid == os.getpid():
            with file.locked():
                abandoned = self.seat.leave()
            self._delete(abandoned)
        del self.seat  # its views keep the mapping
        release(file)


def _scope_words(scopes: tuple[str, str, str]) -> Array:
    return np.frombuffer(bytes.fromhex("".join(scope.rjust(32, "0") for scope in scopes)), np.int64)


def _living_scopes(name: str, since: int) -> set[str]:
    """The scopes of all ledgers of a cache with a rank that was heard of since then."""
    found: set[str] = set()
    for path in ledgers(name):
        # Without the lock: a beat is one word, and scopes never change.
        words = np.frombuffer(peek(path, 8 * (W.HEADER + W.SEATS * W.SEAT)), np.int64)
        if len(words) < W.HEADER + W.SEATS * W.SEAT:
            continue
        seats = words[W.HEADER :].reshape(W.SEATS, W.SEAT)
        if ((seats[:, W.J_NAME] != 0) & (seats[:, W.J_BEAT] > since)).any():
            text = words[W.SCOPES : W.SCOPES + 6].tobytes().hex()
            found |= {text[at : at + 32] for at in range(0, 96, 32)}
    return found
