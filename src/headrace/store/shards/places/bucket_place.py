"""A bucket of shards: objects, read with many requests at once."""

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from headrace.core.errors import StoreError
from headrace.core.options import Retry
from headrace.store.objects.object_driver import Bucket
from headrace.store.reading.perseverance import Perseverance
from headrace.store.shards.places.kept_indices import KeptIndices
from headrace.store.shards.shard import (
    Below,
    Content,
    DamagedShard,
    Each,
    Look,
    Recall,
    Remember,
    Request,
    Steps,
    Wanted,
)

T = TypeVar("T")

AT_ONCE = 64
"""Requests of a catalogue in flight, and parsers that are run at once."""
GAP = 1 << 16
"""Bytes between two pieces of an object that are read with them, instead of a request of its own."""
LARGEST = 1 << 22
"""Bytes of a request that pieces are put together to."""


class BucketPlace:
    """Objects below a prefix. ``run`` is for one event loop at a time."""

    def __init__(self, bucket: Bucket, name: str, kept: KeptIndices | None) -> None:
        self.bucket, self._name, self._kept = bucket, name, kept

    @property
    def identity(self) -> str:
        return self.bucket.identity

    async def run(self, steps: Steps[T]) -> T:
        """The parser's result. Raises what it raises, ``DamagedShard`` or ``StoreError``. Passing failures are
        tried again.
        """
        return await _Running(self.bucket, Perseverance(self._name, Retry(), None), self._kept).run(steps)

    def close(self) -> None:
        self.bucket.close()


class _Running:
    """A run, whose requests share their turns."""

    def __init__(self, bucket: Bucket, again: Perseverance, kept: KeptIndices | None) -> None:
        self._bucket, self._again, self._kept = bucket, again, kept
        self._turns, self._parsers = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(AT_ONCE // 2)

    async def run(self, steps: Steps[T]) -> T:
        try:
            requests = next(steps)
            while True:
                try:
                    answers = await self._answers(requests)
                except (DamagedShard, StoreError) as error:  # the parser knows what it was reading
                    requests = steps.throw(error)
                else:
                    requests = steps.send(answers)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        finally:
            steps.close()

    async def _answers(self, requests: Sequence[Request]) -> list[Any]:
        """Ranges that lie near each other are one request."""
        merged = together([each for each in requests if isinstance(each, Wanted)])
        others = [each for each in requests if not isinstance(each, Wanted)]
        # Cancelled with the first that fails; all are at an end when it is raised.
        tasks = [asyncio.ensure_future(self._read(each)) for each in merged]
        tasks += [asyncio.ensure_future(self._answer(each)) for each in others]
        try:
            found = await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        contents, rest = found[: len(merged)], iter(found[len(merged) :])
        return [_cut(each, merged, contents) if isinstance(each, Wanted) else next(rest) for each in requests]

    async def _read(self, wanted: Wanted) -> memoryview:
        async with self._turns:
            return await self._again.run(None, lambda: self._bucket.read(*wanted))

    async def _answer(self, request: Request) -> Any:
        if isinstance(request, (Look, Content)):
            ask: Callable[..., Awaitable[Any]] = (
                self._bucket.look if isinstance(request, Look) else self._bucket.content
            )
            async with self._turns:
                return await self._again.run(None, partial(ask, *request))
        if isinstance(request, Below):
            if not self._bucket.lists:
                return None
            return await self._again.run(None, lambda: self._bucket.listed(request.prefix))
        if isinstance(request, Recall):
            return None if self._kept is None else self._kept.get(request.listed) or b""
        if isinstance(request, Remember):
            return None if self._kept is None else self._kept.put(request.listed, request.made)
        assert isinstance(request, Each)
        return await asyncio.gather(*map(self._in_turn, request.steps))

    async def _in_turn(self, steps: Steps[T]) -> T:
        async with self._parsers:
            return await self.run(steps)


def together(wanted: Sequence[Wanted]) -> list[Wanted]:
    """The pieces as fewer and larger requests for the same bytes, and for bytes between them. Pieces of one are
    never cut apart.
    """
    merged: list[Wanted] = []
    for each in sorted(set(wanted)):
        last = merged[-1] if merged else None
        near = (
            last is not None and (each.object, each.etag) == (last.object, last.etag) and each.begin <= last.end + GAP
        )
        if last is not None and near and max(each.end, last.end) - last.begin <= LARGEST:
            merged[-1] = last._replace(end=max(each.end, last.end))
        elif each.end > each.begin:
            merged.append(each)
    return merged


def _cut(wanted: Wanted, merged: Sequence[Wanted], contents: Sequence[memoryview]) -> memoryview:
    """The piece, of the request it became a part of: the last that begins before it."""
    if wanted.begin == wanted.end:
        return memoryview(b"")
    at = bisect_right(merged, (wanted.object, wanted.begin), key=lambda each: (each.object, each.begin)) - 1
    return contents[at][wanted.begin - merged[at].begin : wanted.end - merged[at].begin]
