"""Keys that a source gives to two samples: found while its items are listed, judged when all of them were."""

from collections.abc import Iterator
from contextlib import suppress

from headrace.store.catalogues.columns import plain
from headrace.store.ingest.comparing import twice
from headrace.store.ingest.derived_keys import digest
from headrace.store.ingest.outcome import IngestFailure, IngestTally
from headrace.store.ingest.sources.item_source import IngestSource, Item


class Once:
    """The items of a source: first those whose key nobody had before them, then what is to become of the others.

    Hashes of keys are kept, and not keys, which may be long.
    """

    def __init__(self, source: IngestSource, *, distinct: bool) -> None:
        """``distinct``: whether keys are known to be different."""
        self._source, self._distinct = source, distinct
        self._firsts: dict[int, int] = {}
        self._again: list[tuple[int, Item]] = []
        self.tally = IngestTally()
        """Of those that need not or cannot be stored."""

    def first(self) -> Iterator[Item]:
        """Items without a key of their own, and the first of each key."""
        for number, item in enumerate(self._source.items()):
            if self._distinct or item.key is None or item.problem is not None:
                yield item
                continue
            first = self._firsts.setdefault(hash(item.key), number)
            if first == number:
                yield item
            else:
                self._again.append((first, item))

    def others(self, *, rewrite: bool) -> Iterator[Item]:
        """The other items, once the first ones are stored: with ``rewrite`` the last item of each key; else none
        that is a second one.

        Two items with one key that differ are a failure that names both, unless the last one counts.
        """
        if not self._again:
            return
        wanted = {first for first, _ in self._again}
        firsts = {number: item for number, item in enumerate(self._source.items()) if number in wanted}
        last: dict[str, Item] = {}
        for number, item in self._again:
            first = firsts[number]
            assert item.key is not None
            if first.key != item.key or rewrite:  # other keys of one hash are not the same
                last.pop(item.key, None)
                last[item.key] = item
                self.tally.replaced += first.key == item.key
                continue
            differences = self._differences(first, item)
            if differences:
                told = twice(item.key, _shown(first), _shown(item), " and ".join(differences))
                self.tally.failures.append(IngestFailure(_shown(item), told))
            else:
                self.tally.repeated += 1
        yield from last.values()

    def _differences(self, first: Item, second: Item) -> list[str]:
        found = ["label"] if first.label != second.label else []
        names = dict.fromkeys([*first.metadata, *second.metadata])
        found += [name for name in names if plain(first.metadata.get(name)) != plain(second.metadata.get(name))]
        if first.place != second.place and self._content(first) != self._content(second):
            found.append("content")
        return found

    def _content(self, item: Item) -> bytes | None:
        """The digest of an item's content; None where it cannot be read: that is told when it is its turn."""
        with suppress(Exception):
            loaded = self._source.load(item)
            return digest(content for content in loaded[:2] if content is not None and not isinstance(content, str))
        return None


def _shown(item: Item) -> str:
    return item.ident.partition("\0")[0]
