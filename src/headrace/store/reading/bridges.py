"""Bridges from one kind of store to the other: remote ones for blocking code, local ones for an event loop."""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from headrace.core.errors import ClientForked
from headrace.core.options import Prefetch
from headrace.store.base import Fetched, LocalStore, RemoteStore, Row, Session, Store
from headrace.store.catalogues.forwarded import Forwarded
from headrace.store.catalogues.provenance import WatchedSession
from headrace.store.reading.background import Background, following
from headrace.store.reading.in_flight import arrivals
from headrace.store.reading.owned import Owned
from headrace.store.reading.window import Window


class Blocking(Forwarded, LocalStore):
    """A remote store read by blocking calls, ``get_many`` with up to ``in_flight`` requests at once.

    Each process that reads has a session of its own, in a thread of its own, until ``close``.
    """

    _store: RemoteStore

    def __init__(self, store: RemoteStore, in_flight: int = 64) -> None:
        self._store = store
        self._in_flight = in_flight
        self._held = Owned(self._open, _HeldConnection.close)

    def get(self, key: str) -> Row:
        held = self._held.get()
        return held.background.run(held.session.get(key))

    def revision(self) -> str | None:
        """The store's revision, asked in this process's session; None where that cannot say it. See
        ``WatchedSession``.
        """
        held = self._held.get()
        return held.background.run(held.session.revision()) if isinstance(held.session, WatchedSession) else None

    def get_many(self, keys: Sequence[str]) -> Iterator[Fetched]:
        held = self._held.get()
        coming = arrivals(held.session, keys, Window(Prefetch(window=self._in_flight, ramp=0), 1))
        try:
            while (fetched := held.background.run(following(coming))) is not None:
                yield fetched
        finally:
            held.background.run(coming.aclose())

    def close(self) -> None:
        self._held.close()
        super().close()

    def _open(self) -> "_HeldConnection":
        background = Background()
        try:
            return _HeldConnection(background, self._connected(background))
        except BaseException:
            background.close()
            raise

    def _connected(self, background: Background) -> Session:
        """A session, in a process of its own where the store's client does not work in this one."""
        try:
            self.prepare()
            return background.run(self._store.connect())
        except ClientForked:
            from headrace.store.driver_process.driven_store import served  # noqa: PLC0415  (seldom needed)

            return background.run(served(self._store))


def blocking(store: Store) -> LocalStore:
    """The store as blocking code reads it: itself, where it is local."""
    return store if isinstance(store, LocalStore) else Blocking(store)


@dataclass(frozen=True)
class _HeldConnection:
    background: Background
    session: Session

    def close(self) -> None:
        try:
            self.background.run(self.session.close())
        finally:
            self.background.close()


class Threaded(Forwarded, RemoteStore):
    """A local store for an event loop: blocking reads in ``threads`` threads."""

    _store: LocalStore

    def __init__(self, store: LocalStore, threads: int = 4) -> None:
        self._store = store
        self._threads = threads

    async def connect(self) -> Session:
        return _ThreadedSession(self._store, self._threads)


class _ThreadedSession:
    def __init__(self, store: LocalStore, threads: int) -> None:
        self._store = store
        self._pool = ThreadPoolExecutor(threads, "headrace-read")

    async def get(self, key: str) -> Row:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._store.get, key)

    def connections(self) -> int:
        return 0

    async def close(self) -> None:
        self._pool.shutdown()  # first: its threads read from the store
        self._store.close()
