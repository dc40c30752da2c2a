"""Samples by id for code that serves: iterate over them, in blocking or in asynchronous code."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Self

from headrace.core.options import Prefetch, Retry
from headrace.store.base import Label, LocalStore, Lost, RemoteStore, Row, Session, Store
from headrace.store.catalogues.forwarded import Forwarded
from headrace.store.locate import open_store
from headrace.store.reading.background import Background, following
from headrace.store.reading.bridges import Threaded
from headrace.store.reading.in_flight import arrivals
from headrace.store.reading.owned import Owned
from headrace.store.reading.window import Window
from headrace.store.reading.wrappers import Retrying


class Sample(NamedTuple):
    """A sample that was asked for: ``data`` is the stored payload, or what ``decode`` made of it."""

    key: str
    data: Any
    label: Label


@dataclass(frozen=True)
class Fetching:
    """Options for fetching samples by id.

    ``in_flight``: requests at once. ``in_order``: as the keys were given, instead of as they arrive. ``lost``: a key
    that gives no row comes as a ``Lost`` with its error, instead of raising it. ``decoders``: threads that decode.
    """

    in_flight: int = 64
    in_order: bool = False
    lost: bool = False
    decoders: int = 2
    retry: Retry = field(default_factory=Retry)

    def __post_init__(self) -> None:
        for name in ("in_flight", "decoders"):
            if getattr(self, name) < 1:
                raise ValueError(f"Fetching({name}=...) takes a positive number, not {getattr(self, name)!r}")


class Client:
    """A store, connected for as long as the client is open; fork-safe, usable from any thread and any event loop.

    Nothing is connected before the first sample is asked for.
    """

    def __init__(
        self,
        store: str | Store,
        *,
        decode: Callable[[Any], Any] | None = None,
        fetching: Fetching | None = None,
    ) -> None:
        found = open_store(store) if isinstance(store, str) else store
        self._fetching = fetching or Fetching()
        remote: RemoteStore = Threaded(found) if isinstance(found, LocalStore) else found
        self._store = Retrying(remote, self._fetching.retry)
        self._decode = decode
        self._held = Owned(self._open, _HeldClient.close)

    def __repr__(self) -> str:
        return f"Client({self._store.name!r})"

    def fetch(self, keys: Iterable[str]) -> "Samples":
        """The samples with these keys: iterate with ``for`` or with ``async for``, once."""
        held = self._held.get()
        return Samples(held.background, self._samples(held, list(keys)))

    def close(self) -> None:
        """Ends the connections. May be called twice; the next ``fetch`` connects again."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    def _open(self) -> "_HeldClient":
        return _HeldClient(Background(), ThreadPoolExecutor(self._fetching.decoders, "headrace-decode"))

    async def _samples(self, held: "_HeldClient", keys: list[str]) -> AsyncGenerator[Sample | Lost, None]:
        window = Window(Prefetch(window=self._fetching.in_flight, ramp=0), 1)
        session = await held.connected(self._store)
        finish = partial(_finished, decode=self._decode, pool=held.pool)
        async with aclosing(arrivals(session, keys, window, in_order=self._fetching.in_order, finish=finish)) as coming:
            async for fetched in coming:
                if isinstance(fetched, Lost) and not self._fetching.lost:
                    raise fetched.error
                yield fetched


async def _finished(row: Row, decode: Callable[[Any], Any] | None, pool: ThreadPoolExecutor) -> Sample:
    if decode is None:
        return Sample(*row)
    try:
        return Sample(row.key, await asyncio.get_running_loop().run_in_executor(pool, decode, row.payload), row.label)
    except Exception as error:
        error.add_note(f"while decoding the sample with the key {row.key!r}")
        raise


class Samples:
    """Iterator of ``fetch``'s samples, for blocking and for asynchronous code."""

    def __init__(self, background: Background, coming: AsyncGenerator[Sample | Lost, None]) -> None:
        self._background = background
        self._coming = coming

    def __iter__(self) -> Iterator[Sample | Lost]:
        return self

    def __next__(self) -> Sample | Lost:
        found = self._background.run(following(self._coming))
        if found is None:
            raise StopIteration
        return found

    def __aiter__(self) -> AsyncIterator[Sample | Lost]:
        return self

    async def __anext__(self) -> Sample | Lost:
        found = await asyncio.wrap_future(self._background.submit(following(self._coming)))
        if found is None:
            raise StopAsyncIteration
        return found

    def close(self) -> None:
        """Cancels what has not come yet. An iteration that ran to its end, or raised, needs none."""
        self._background.run(self._coming.aclose())

    async def aclose(self) -> None:
        await asyncio.wrap_future(self._background.submit(self._coming.aclose()))


@dataclass
class _HeldClient:
    """Resources that a process holds open for a client."""

    background: Background
    pool: ThreadPoolExecutor
    session: Session | None = None
    connecting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def connected(self, store: RemoteStore) -> Session:
        async with self.connecting:
            if self.session is None:
                if isinstance(store, Forwarded):
                    await asyncio.to_thread(store.prepare)
                self.session = await store.connect()
            return self.session

    def close(self) -> None:
        try:
            if self.session is not None:
                self.background.run(self.session.close())
        finally:
            self.background.close()
            self.pool.shutdown()
