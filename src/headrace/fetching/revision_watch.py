"""The check that rows are of the revision that a cache keeps them under: made after they were read."""

import asyncio
import time

from headrace.core.errors import StoreError
from headrace.store.catalogues.provenance import WatchedSession

GATHER_SECONDS = 0.002
SHARE = 4
"""Rows that arrive within a part of the time a check takes share the next one."""


class RevisionWatch:
    """Asks a store in which state it is, once for all rows that have arrived since it was last asked."""

    def __init__(self, session: WatchedSession) -> None:
        self._session = session
        self._next: asyncio.Task[bool] | None = None
        self._took = 0.0

    async def holds(self, revision: str) -> bool:
        """True if the store is of that revision after this was called, or cannot say in a round trip."""
        if self._next is None:
            self._next = asyncio.create_task(self._asked(revision))
        return await asyncio.shield(self._next)  # others wait for it, too

    async def _asked(self, revision: str) -> bool:
        await asyncio.sleep(max(GATHER_SECONDS, self._took / SHARE))
        self._next = None  # a row that comes from now on has to be asked about again
        began = time.monotonic()
        try:
            return await self._session.revision() in {None, revision}
        except StoreError:
            return False  # nobody knows
        finally:
            self._took = time.monotonic() - began
