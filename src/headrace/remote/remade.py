"""Samples made on other hosts, as a worker beside the trainer takes them up."""

from typing import Any

from headrace.cache.entries.codec import Codec, Corrupt
from headrace.caching.plans import codec
from headrace.core.errors import RemoteError
from headrace.fetching.arena import Arena
from headrace.fetching.fetched import FetchedDataset
from headrace.fetching.wire import Arrived
from headrace.ondevice.pixels.bundle import named
from headrace.remote import messages
from headrace.remote.lane_process import packed
from headrace.remote.messages import EntryKind


class Remade(FetchedDataset):
    """``dataset[index]``, of what another host has made of it where there is something.

    What failed there is made here, where it raises as it always would, or does not.
    """

    compares = True
    """The first sample that comes is made here too, and must be the same."""

    def __init__(self, dataset: Any, arena: Arena | None) -> None:
        super().__init__(dataset, arena)
        self._codec: Codec = codec()

    def __call__(self, index: Any) -> Any:
        """The sample. The random numbers of this process are seeded for it."""
        place, self.place = self.place, None
        if place is None or self._arena is None or place.label == EntryKind.FAILED:
            return named(index, self._get(index))
        if self._observer is not None:
            self._observer.brought(place.size, place.retries, place.began, place.took)
        entry = bytearray(self._arena.piece(place.offset, place.size))
        if place.label == EntryKind.UNFIT:
            words = entry.decode("utf-8", "replace")
            raise RemoteError(f"remote=: sample {index!r} cannot be carried from another host: it {words}")
        if self.compares:
            self._compare(index, entry)
        try:
            return named(index, self._codec.rebuild(*messages.read_entry(memoryview(entry))))
        except (Corrupt, ValueError) as error:
            raise RemoteError(
                f"remote=: what came of sample {index!r} from another host makes no sense: {error}"
            ) from error

    def _compare(self, index: Any, entry: bytearray) -> None:
        self.compares = False
        mine = packed(self._codec.describe(self._get(index)))
        if mine != entry:
            raise RemoteError(
                f"remote=: sample {index!r} made on another host is not the one that this host makes, with the same "
                "code, versions and seed. Does the dataset read something that is another there, draw random numbers "
                "from a source of its own, or do the CPUs round differently? headrace.Ray(compare=False) takes samples "
                "as they come"
            )


class Unquestioned(Remade):
    """The same, taken as it comes."""

    compares = False


def settled(place: Arrived | None) -> bool:
    """True if a sample was really made elsewhere."""
    return place is not None and place.label == EntryKind.VALUE
