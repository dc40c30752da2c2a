"""The use of a cache by a process that makes samples: it reads entries, and keeps what is worth its room.

What an entry is worth is how many epochs under way have still to see it. Everything is decided outside of any lock,
from hints; a swap of words makes it so, or does not.
"""

import hashlib
import time
from collections.abc import Callable, Sequence

import numpy as np

from headrace.cache import division as D
from headrace.cache.backends import entry_word as W
from headrace.cache.backends.backend import Aside, Backend, CacheTerms, Entry, RoomUse, blocks
from headrace.cache.backends.disk import Disk
from headrace.cache.backends.victims import BLOCK, LOOKS, MOMENT, Victims
from headrace.cache.division import Parts, Sums
from headrace.cache.entries import entry as E
from headrace.cache.entries.codec import Described
from headrace.cache.peers import Peers, Unit
from headrace.cache.policies import NEVER, Policy

START: Parts = (0, 100, 0)
"""The split until one is planned: all for decoded samples, which spare reading and decoding in every later epoch."""
PERIOD = 0.5
"""Seconds that a division and the room are remembered, where they lie behind a network."""


HELD = 16
"""Entries that are held at most until they are settled: each is an open file."""
PAUSE = 2.0
"""Seconds after which datasets that had nothing to give are asked again."""


class Share:
    """A process's share in a cache: reads entries and keeps new ones. Used by one thread of one process."""

    def __init__(
        self, backend: Backend, disk: Disk | None, scopes: tuple[str, str, str], limit: int, unit: Unit, policy: Policy
    ) -> None:
        """``scopes``: fingerprints of what makes encoded, decoded and augmented entries. ``limit``: bytes in memory.

        The backend is closed with this. ``unit``: for whom samples are made here.
        """
        self.backend, self.disk, self._limit, self.unit, self.policy = backend, disk, limit, unit, policy
        self._scopes = [bytes.fromhex(scope.rjust(32, "0")[-32:]) for scope in scopes]
        self._maker = _half(unit.job) << 32 | _half(unit.job if unit.seed is None else str(unit.seed))
        self.peers = Peers(backend, unit)
        self._victims = Victims(backend, self.peers, policy)
        self._rng = np.random.default_rng()
        self._scratch = np.empty(0, np.uint8)
        self._terms: tuple[float, CacheTerms] | None = None
        self._room: tuple[float, RoomUse] | None = None
        self._typical: tuple[float, Parts] | None = None
        self._asked = 0.0  # other datasets are not asked for room before
        self._held: list[tuple[Entry, Aside]] = []
        self._holds: Callable[[], bool] = lambda: True
        self._left = self.is_spoilt()

    def key(self, entry: Entry) -> E.Key:
        """The key that an entry of that name must state."""
        return E.Key(self._scopes[W.form_of(entry.word) - 1], *entry)

    def footprint(self, described: Described) -> int:
        """Bytes of the room that an entry takes."""
        return self.backend.footprint(E.length(described))

    def terms(self) -> CacheTerms:
        """The limits on what may be held, as the room is divided."""
        now = time.monotonic()
        if self._terms is not None and now < self._terms[0]:
            return self._terms[1]
        division = self.backend.division()
        parts = START if division is None else division.parts
        self._left = self._left or self.backend.spoilt()
        found = CacheTerms((*D.budgets(self._limit, parts), 0 if self.disk is None else self.disk.limit), self._limit)
        self._terms = now + PERIOD * (1 if self.backend.slow else 0.1), found
        return found

    def typical(self) -> Parts:
        """Bytes of an entry in each form, on average; 0 while none was measured."""
        now = time.monotonic()
        if self._typical is None or now >= self._typical[0]:
            self._typical = now + PERIOD, D.typical(self.backend.measured())
        return self._typical[1]

    def room(self) -> RoomUse:
        """The room that is held, and was promised; a moment old, for a swap looks again."""
        now = time.monotonic()
        if self._room is None or now >= self._room[0]:
            self._room = now + (PERIOD if self.backend.slow else MOMENT), self.backend.room()
            for entry, _ in self._held:
                self._count(entry, 1)
            for entry in self._victims.going:
                self._count(entry, -1)
        return self._room[1]

    @property
    def is_left(self) -> bool:
        """True if the cache is not to be used any more for this data."""
        self.terms()
        return self._left

    def use(self, holds: Callable[[], bool]) -> None:
        """Use the cache, from now on, as long as nobody finds it spoilt.

        ``holds``: whether what makes samples is still what the scopes stand for: asked before entries can be found.
        """
        self._holds, self._left = holds, self.is_spoilt()

    def is_spoilt(self) -> bool:
        """True if somebody found that what is kept is not what is made; the cache may be left for other reasons."""
        return self.backend.spoilt() or (self.disk is not None and self.disk.spoilt())

    def leave(self) -> None:
        """Use the cache no more here: what is made is of something else than the scopes stand for."""
        self._left = True
        self._drop()

    def spoil(self) -> None:
        """Have nobody use what is kept of this data: it is not what is made of it. All of it goes."""
        self.backend.spoil()
        if self.disk is not None:
            self.disk.spoil()
        self.leave()
        self.clear()

    def clear(self) -> None:
        """Have all that is kept of this data go."""
        for first, words in blocks(self.backend):
            there = np.flatnonzero(words).tolist()
            for at in range(0, len(there), BLOCK):
                some = [Entry(first + each, int(words[each])) for each in there[at : at + BLOCK]]
                self._erase(self.backend.swap(some, (), self.terms(), lost=True).removed)

    def word(self, sample: int) -> int:
        """The table's word for a sample."""
        return self.backend.word(sample)

    def read(self, entry: Entry) -> tuple[bytes, memoryview] | None:
        """Layout and body of an entry, in memory of its own. What is not there or not whole is forgotten, and None.

        None, too, for an augmented one that this job made, or one with its seed, whatever was said of it.
        """
        if not W.form_of(entry.word) or self._left:
            return None
        below = W.on_disk(entry.word)
        source = self.disk if below else self.backend
        content = None if source is None else source.read(entry)
        found = None if content is None else E.unseal(self.key(entry), content)
        if found is None:
            if not (below and self.backend.slow):  # a disk may be another host's
                self.lost(entry)
            return None
        # Its own, or with random numbers that it draws itself, in this epoch or in another.
        maker, own = found.maker, self._maker
        is_own = maker >> 32 == own >> 32 or maker & 0xFFFFFFFF == own & 0xFFFFFFFF
        return None if is_own and W.form_of(entry.word) == W.AUGMENTED else (found.layout, found.body)

    def lost(self, entry: Entry) -> None:
        """Remove an entry that is not there, or not what it should be, so that nobody is served it."""
        if not self.backend.barred:
            self._erase(self.backend.swap([entry], (), self.terms(), lost=True).removed)

    def _erase(self, entries: Sequence[Entry]) -> None:
        self.backend.erase([entry for entry in entries if not W.on_disk(entry.word)])
        if self.disk is not None:
            self.disk.erase([entry for entry in entries if W.on_disk(entry.word)])

    def keep(self, sample: int, form: int, described: Described) -> bool:
        """Put an entry into the cache, if it is worth what must go for it."""
        entry = self.hold(sample, form, described)
        self.settle()
        return entry is not None and self.word(sample) == entry.word

    def hold(self, sample: int, form: int, described: Described) -> Entry | None:
        """Put an entry into the cache as ``keep`` does, but it may be found only after ``settle``: several then
        cost one swap. None: it is not kept.
        """
        backend = self.backend
        length = E.length(described)
        size = backend.footprint(length)
        if self._left or backend.barred or size > min(W.MOST, self._limit) or self.word(sample):
            return None
        self.peers.look()
        victims = self._room_for(sample, form, size)
        below = victims is None
        if below and (self.disk is None or form == W.AUGMENTED):
            return None
        entry = Entry(sample, W.word(form, self.disk.footprint(length) if below and self.disk else size, disk=below))
        # Noted before anybody can find it: this job is never served what it made itself.
        if form == W.AUGMENTED and not backend.claim(self.unit.job, [entry])[0]:
            return None
        if len(self._scratch) < length:
            self._scratch = np.empty(length, np.uint8)
        target = self.disk if below and self.disk else backend
        aside = target.aside(entry, E.seal(self.key(entry), self._maker, described, self._scratch))
        if aside is None:
            return None
        self._held.append((entry, aside))
        self._count(entry, 1)
        for victim in victims or ():
            self._victims.going.append(victim)
            self._count(victim, -1)
        if len(self._held) >= HELD:
            self.settle()
        return entry

    def settle(self) -> None:
        """Let what is held be found, in the place of what goes for it.

        It is made known before it can be found: who looks in between finds nothing, and whoever dies leaves words that
        the next readers take back.
        """
        if not self._held:
            return
        # Over a network what was found a moment ago has to do.
        if self.is_left or (not self.backend.slow and self.backend.spoilt()) or not self._holds():
            self.leave()
            return
        # Put away one by one, from the end of a list of its own: what an interrupt leaves of it is dropped.
        held, self._held = self._held[::-1], []
        victims, self._victims.going = self._victims.going, []
        try:
            swapped = self.backend.swap(victims, [entry for entry, _ in reversed(held)], self.terms())
            self._erase(swapped.removed)
            if len(swapped.removed) < len(victims) or len(swapped.added) < len(held):
                self._room = None  # others change it too
            while held:
                entry, aside = held.pop()
                if entry not in swapped.added:
                    aside.drop()
                # Who read the new word before the entry had its name took it out again: then nothing leads to the file.
                elif not aside.settle() or self.word(entry.sample) != entry.word:
                    self._erase([entry])
                    self.lost(entry)
        finally:
            for _, aside in held:
                aside.drop()

    def _count(self, entry: Entry, times: int) -> None:
        """Count an entry in what is remembered of the room, too: once more, or once less."""
        if self._room is None:
            return
        until, room = self._room
        held = list(room.held)
        held[3 if W.on_disk(entry.word) else W.form_of(entry.word) - 1] += times * W.size_of(entry.word)
        self._room = until, room._replace(held=(held[0], held[1], held[2], held[3]))

    def _room_for(self, sample: int, form: int, size: int) -> list[Entry] | None:
        """The entries that have to go for a newcomer; None: it is not worth it, or nothing was found."""
        # From hints, without a lock: the swap looks again, and refuses what does not fit after all.
        room, terms = self.room(), self.terms()
        if _fits(room, form, size, terms):
            return []
        own, held = sum(room.held[:3]), room.held[form - 1]
        worth = self._victims.worth(sample)
        if held + size > terms.budget[form - 1]:
            return self._victims.choose((form,), held + size - terms.budget[form - 1], worth)
        lacking = own + room.others + size - terms.limit
        if self._take_from_others(own + size, lacking):
            self._room = None
            return []
        over = [each for each in W.FORMS if room.held[each - 1] > terms.budget[each - 1]]
        return self._victims.choose(over or W.FORMS, lacking, worth)

    def may_take(self, room: RoomUse) -> bool:
        """True if other datasets may have to give way to this one."""
        return time.monotonic() >= self._asked and 2 * sum(room.held[:3]) < self._limit < 64 * room.others

    def _take_from_others(self, own: int, lacking: int) -> bool:
        """Have datasets give way that nobody uses, or that have more than their share while this one has less."""
        if time.monotonic() < self._asked:
            return False
        others = self.backend.siblings()
        try:
            alive = [each for each in others if each.reports()]
            # What nobody uses goes first, all of it: it may be the same data before its code was changed.
            for each in others:
                if each not in alive:
                    each.remove()
                    return True
            if alive and own <= self._limit // (1 + len(alive)):
                largest = max(alive, key=lambda each: sum(each.room().held[:3]))
                if self._shrink(largest, lacking):
                    return True
        finally:
            for each in others:
                each.close()
        self._asked = time.monotonic() + PAUSE
        return False

    def _shrink(self, other: Backend, lacking: int) -> bool:
        terms, freed = self.terms(), 0
        for _ in range(LOOKS):
            first = int(self._rng.integers(max(1, other.samples - BLOCK + 1)))
            words = other.block(first, min(BLOCK, other.samples - first)) if other.samples else np.empty(0, np.uint64)
            held = self._rng.permutation(np.flatnonzero(words))
            chosen: list[Entry] = []
            for at in held.tolist():
                if freed >= lacking:
                    break
                chosen.append(Entry(first + at, int(words[at])))
                freed += W.size_of(chosen[-1].word)
            removed = other.swap(chosen, (), terms).removed
            other.erase(removed)
            if freed >= lacking:
                return True
        return False

    def shed(self, count: int) -> None:
        """Give up to ``count`` entries up of forms that hold more than their share, after the division has moved."""
        room, terms = self.room(), self.terms()
        over = [form for form in W.FORMS if room.held[form - 1] > terms.budget[form - 1]]
        if over:
            chosen = [entry for _, entry in sorted(self._victims.look(over, NEVER), key=lambda each: each[0])]
            self._erase(self.backend.swap(chosen[:count], (), terms).removed)
            self._room = None

    def adopt(self) -> None:
        """A disk may outlive the table of what it holds: take in what is there, if the table is new."""
        # A table in which something was ever kept knows its disk already.
        if self.disk is None or self.backend.room().kept:
            return
        for entry in self.disk.listed():
            sound = W.form_of(entry.word) != W.AUGMENTED and 0 <= entry.sample < self.backend.samples
            if not sound or not self.backend.swap([], [entry], self.terms()).added:
                self.disk.erase([entry])

    def measure(self, sums: Sums) -> bool:
        """Add what was measured; False: try again later."""
        return not self.backend.barred and self.backend.measure(sums)

    def close(self) -> None:
        """Idempotent. What is kept stays; what is held is not kept."""
        self._drop()
        self.backend.close()
        if self.disk is not None:
            self.disk.close()

    def _drop(self) -> None:
        while self._held:
            self._held.pop()[1].drop()
        self._victims.going = []


def _half(text: str) -> int:
    """A number of 32 bits. Where two are the same by chance, a hit becomes a miss."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little")


def _fits(room: RoomUse, form: int, size: int, terms: CacheTerms) -> bool:
    fits = room.held[form - 1] + size <= terms.budget[form - 1]
    return fits and sum(room.held[:3]) + room.others + size <= terms.limit
