"""A store behind a network that does what it is told: answers after a delay, fails, kills its reader, or stops it."""

import asyncio
import os
import signal
from pathlib import Path

import numpy as np

from headrace.core.errors import BadRow, MissingKey, StoreRefused
from headrace.store.base import Info, LabelKind, Row
from headrace.store.reading.neighbours import Lying


class RemoteNumbers:
    """Rows ``0`` to ``rows - 1``: the key's text repeated as payload, its number as label."""

    def __init__(
        self,
        rows=100,
        *,
        delay=0.0,
        slow=(),
        missing=(),
        refuses=False,
        kills=(),
        stops=(),
        marks=None,
        size=50,
        growth=0,
        always_dies=False,
        needs=None,
        together=0,
    ):
        self.rows, self.delay, self.slow, self.missing = rows, delay, dict(slow), set(missing)
        self.always_dies, self.stops, self.needs = always_dies, set(stops), needs
        self.together = together  # a row comes once so many are asked for at the same time
        self.refuses, self.kills, self.marks, self.size, self.growth = refuses, set(kills), marks, size, growth

    name = "numbers://nowhere"

    def keys(self):
        return [str(number) for number in range(self.rows)]

    def columns(self, names=None):
        raise NotImplementedError

    def info(self):
        return Info(self.name, self.rows, None, LabelKind.INTEGER, {}, {})

    def close(self):
        pass

    def _is_there(self):
        return self.needs is None or Path(self.needs).exists()

    async def connect(self):
        if self.refuses or not self._is_there():
            raise StoreRefused(f"{self.name}: wrong password", server=self.name)
        return _Session(self)


class RemoteShards(RemoteNumbers):
    """The same rows, ``per`` in a shard; rows are counted for each request, in a file."""

    def __init__(self, rows=100, *, per=100, log=None, **options):
        super().__init__(rows, **options)
        self.per, self.log = per, log

    def lying(self, keys):
        numbers = np.array([int(key) for key in keys], np.int64)
        counts = np.full(-(-self.rows // self.per), self.per)
        counts[-1] = self.rows - (len(counts) - 1) * self.per
        return Lying(numbers // self.per, numbers % self.per, counts, counts * self.size)

    def requests(self):
        """(key, number of rows) of each request."""
        lines = Path(self.log).read_text().split("\n")[:-1] if Path(self.log).exists() else []
        return [(key, int(count)) for key, count in (line.split() for line in lines)]

    async def connect(self):
        await super().connect()
        return _ShardSession(self)


class _Session:
    def __init__(self, store):
        self.store = store
        self.barrier = asyncio.Barrier(store.together) if store.together else None

    async def get(self, key):
        store, number = self.store, int(key)
        if store.always_dies or (number in store.kills and self._first(number)):
            os.kill(os.getpid(), signal.SIGKILL)
        if number in store.stops and self._first(number):
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.barrier is not None:
            await self.barrier.wait()
        await asyncio.sleep(store.slow.get(number, store.delay))
        if number in store.missing:
            raise MissingKey(f"{store.name} has no row with the key {key!r}", server=store.name, key=key)
        size = store.size + store.growth * number
        return Row(key, (key.encode() * size)[:size], number)

    def _first(self, number):
        """Whether this was never asked for before, in any process."""
        try:
            (Path(self.store.marks) / str(number)).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def connections(self):
        return 1

    async def close(self):
        pass


class _ShardSession(_Session):
    def _noted(self, key, count):
        with Path(self.store.log).open("a") as log:
            log.write(f"{key} {count}\n")

    async def get(self, key):
        self._noted(key, 1)
        return await super().get(key)

    async def around(self, key, before, after):
        first, last, shard = int(key) - before, int(key) + after, int(key) // self.store.per
        if first < shard * self.store.per or last >= min(self.store.rows, (shard + 1) * self.store.per):
            raise BadRow(f"{key} has no such neighbours")
        self._noted(key, last - first + 1)
        return await asyncio.gather(*(self._one(str(number)) for number in range(first, last + 1)))

    def hedges(self):
        return 0

    async def _one(self, key):
        try:
            return (await super().get(key))._replace(key="")
        except MissingKey:
            return None
