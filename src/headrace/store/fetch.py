"""``headrace.fetch``: samples by id, in one call."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

from headrace.store.base import Lost, Store
from headrace.store.client import Client, Fetching, Sample


def fetch(
    store: str | Store,
    keys: Iterable[str],
    *,
    decode: Callable[[Any], Any] | None = None,
    fetching: Fetching | None = None,
) -> "OneTime":
    """The samples with these keys, to iterate over with ``for`` or with ``async for``.

    They come in order of arrival, as bytes, with up to 64 requests at once; ``decode`` turns bytes into samples in
    threads, ``Fetching(...)`` says the rest. Connections are made for this one iteration and ended with it: code that
    asks again and again keeps a ``headrace.store.Client``.
    """
    return OneTime(Client(store, decode=decode, fetching=fetching), keys)


class OneTime:
    """An iteration over samples by id that connects when it begins and disconnects when it ends, in whatever way."""

    def __init__(self, client: Client, keys: Iterable[str]) -> None:
        self._client = client
        self._keys = keys

    def __iter__(self) -> Iterator[Sample | Lost]:
        with self._client:
            yield from self._client.fetch(self._keys)

    async def __aiter__(self) -> AsyncIterator[Sample | Lost]:
        async with self._client:
            async for sample in self._client.fetch(self._keys):
                yield sample
