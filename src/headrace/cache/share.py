"""A rank's share in a cache: a ledger that says what it is served and what is kept, and a tier that holds the bytes."""

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

from headrace.cache.book import Answer, Book, Entry, Serving
from headrace.cache.codec import Encoded
from headrace.cache.tier import Key, Reading, Tier
from headrace.cache.words import Array

PAUSE = 10.0
"""Seconds between two sweeps, at least."""


class Share:
    """Used by one thread of one process."""

    def __init__(self, tier: Tier, book: Book, scopes: tuple[str, str, str]) -> None:
        """``scopes``: the fingerprints of encoded, decoded and augmented entries. The tier stays the caller's."""
        self._tier, self.book, self._scopes, self._swept = tier, book, scopes, -PAUSE
        tier.delete(book.adopt((key, tier.footprint(size)) for key, size in tier.listed()))

    def footprint(self, size: int) -> int:
        """Bytes of the room that an entry of ``size`` bytes takes."""
        return self._tier.footprint(size)

    def key(self, sample: int, form: int) -> Key:
        """Where an entry lies in the tier."""
        return Key(self._scopes[form - 1], sample, form)

    def _delete(self, entries: Sequence[Entry]) -> None:
        if entries:
            self._tier.delete([self.key(*entry) for entry in entries])

    def begin(self, epoch: int, *, members: Array | None = None, done: Iterable[int] = ()) -> None:
        """An epoch of the samples ``members`` (None: all), of which ``done`` were delivered before."""
        self._delete(self.book.begin(epoch, members=members, done=done))

    def request(self, asked: Array, *, exchange: bool = True) -> Answer:
        """As many samples as were asked for, none of them served before in this epoch; what is dropped is deleted.

        Without ``exchange`` they are those that were asked for.
        """
        answer = self.book.request(asked, exchange=exchange)
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

    def reading(self) -> Reading:
        """Of the tier."""
        return self._tier.reading()

    def lost(self, sample: int, form: int) -> None:
        """An entry is not there, or is corrupt: let nobody be served it."""
        self.book.lost(sample, form)
        self._tier.delete([self.key(sample, form)])

    def bury(self) -> None:
        """Let nothing wait for processes of this rank that were killed while they kept something."""
        self._delete(self.book.bury(_lives))

    def keep(self, sample: int, form: int, entry: Encoded, *, served: bool = True) -> bool:
        """Put an entry into the cache, if it is worth what must go for it."""
        grant = self.book.reserve(sample, form, self.footprint(entry.size))
        self._delete(grant.evicted)
        if not grant.granted:
            return False
        key = self.key(sample, form)
        written = settled = False
        try:
            written = self._written(key, entry)
        finally:
            if written:
                settled = self.book.settle(sample, served=served)
            else:
                self.book.cancel(sample)
        if written and not settled:
            self._tier.delete([key])
        return settled

    def _written(self, key: Key, entry: Encoded) -> bool:
        """The ledger has room: if the tier has not, something is there that nobody knows."""
        if self._tier.put(key, entry.size, entry.write):
            return True
        if time.monotonic() - self._swept < PAUSE:
            return False
        self._swept = time.monotonic()
        useless = self.book.useless(self._tier.listed())
        self._tier.delete(useless)
        return bool(useless) and self._tier.put(key, entry.size, entry.write)

    def close(self) -> None:
        """Leave; idempotent. What is cached stays."""
        self._delete(self.book.leave())


def _lives(process: int) -> bool:
    with suppress(PermissionError):  # somebody else's by now, but there is one
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
    return True
