"""Remote stores around remote stores: observed, limited, tried again. Each adds one thing and passes the rest on.

The useful order, innermost first: ``Observed`` sees every attempt, ``Limited`` counts attempts in flight and not those
that pause, ``Retrying`` makes new ones.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import TypeGuard, cast

from headrace.core.errors import StoreError
from headrace.core.options import Retry
from headrace.store.base import RemoteStore, Row, Session
from headrace.store.catalogues.forwarded import Forwarded
from headrace.store.catalogues.provenance import WatchedSession
from headrace.store.reading.events import Attempted, Connected, Observer
from headrace.store.reading.neighbours import NeighbourSession
from headrace.store.reading.perseverance import Perseverance


class Wrapper(Forwarded, RemoteStore):
    """A remote store around another one: what its sessions add is said by ``connect``."""

    _store: RemoteStore

    def __init__(self, store: RemoteStore) -> None:
        self._store = store


class WrappedSession:
    """Another session, passed on but for its rows."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def within(self) -> Session:
        """The session that is passed on."""
        return self._session

    async def revision(self) -> str | None:
        """See ``WatchedSession``; None where the session within cannot say."""
        return await self._session.revision() if isinstance(self._session, WatchedSession) else None

    def connections(self) -> int:
        return self._session.connections()

    def hedges(self) -> int:
        return cast(NeighbourSession, self._session).hedges()

    async def close(self) -> None:
        await self._session.close()


def says_revision(session: Session) -> TypeGuard[WatchedSession]:
    """True if the session within all others can say in which state its store is."""
    while isinstance(session, WrappedSession):
        session = session.within
    return isinstance(session, WatchedSession)


class Observed(Wrapper):
    """Tells ``observer`` of every connection and every attempt."""

    def __init__(self, store: RemoteStore, observer: Observer) -> None:
        super().__init__(store)
        self._observer = observer

    async def connect(self) -> Session:
        began = time.monotonic_ns()
        session = await self._store.connect()
        self._observer(Connected(began, time.monotonic_ns(), session.connections()))
        return _ObservedSession(session, self._observer)


class _ObservedSession(WrappedSession):
    def __init__(self, session: Session, observer: Observer) -> None:
        super().__init__(session)
        self._observer = observer

    async def get(self, key: str) -> Row:
        began = time.monotonic_ns()
        try:
            row = await self._session.get(key)
        except StoreError as error:
            self._observer(Attempted(key, began, time.monotonic_ns(), 0, error))
            raise
        self._observer(Attempted(key, began, time.monotonic_ns(), len(row.payload), None))
        return row

    async def around(self, key: str, before: int, after: int) -> Sequence[Row | None]:
        began = time.monotonic_ns()
        try:
            rows = await cast(NeighbourSession, self._session).around(key, before, after)
        except StoreError as error:
            self._observer(Attempted(key, began, time.monotonic_ns(), 0, error))
            raise
        sizes = [len(row.payload) for row in rows if row is not None]
        self._observer(Attempted(key, began, time.monotonic_ns(), sum(sizes), None, len(sizes)))
        return rows


class Limited(Wrapper):
    """A store with at most ``in_flight`` requests at once in each session; the others wait their turn."""

    def __init__(self, store: RemoteStore, in_flight: int) -> None:
        super().__init__(store)
        if in_flight < 1:
            raise ValueError(f"Limited(in_flight=...) takes a positive number of requests, not {in_flight!r}")
        self._in_flight = in_flight

    async def connect(self) -> Session:
        return _LimitedSession(await self._store.connect(), self._in_flight)


class _LimitedSession(WrappedSession):
    def __init__(self, session: Session, in_flight: int) -> None:
        super().__init__(session)
        self._turns = asyncio.Semaphore(in_flight)

    async def get(self, key: str) -> Row:
        async with self._turns:
            return await self._session.get(key)


class Retrying(Wrapper):
    """Makes requests again that failed for a passing reason. Reads are idempotent, so that is always safe.

    An attempt that takes longer than ``retry.patience`` has failed: whatever the driver does, nothing hangs.
    """

    def __init__(self, store: RemoteStore, retry: Retry | None = None, observer: Observer | None = None) -> None:
        super().__init__(store)
        self._retry, self._observer = retry or Retry(), observer

    async def connect(self) -> Session:
        policy = Perseverance(self.name, self._retry, self._observer)
        return _RetryingSession(await policy.run(None, self._store.connect), policy)


class _RetryingSession(WrappedSession):
    def __init__(self, session: Session, policy: Perseverance) -> None:
        super().__init__(session)
        self._policy = policy

    async def get(self, key: str) -> Row:
        return await self._policy.run(key, lambda: self._session.get(key))

    async def revision(self) -> str | None:
        return await self._policy.run(None, super().revision)

    async def around(self, key: str, before: int, after: int) -> Sequence[Row | None]:
        return await self._policy.run(key, lambda: cast(NeighbourSession, self._session).around(key, before, after))
