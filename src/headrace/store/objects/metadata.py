"""The parts of the metadata: read one after the other, and of each only what is asked for is kept."""

import asyncio
import json
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from typing import Any

from headrace.core.errors import StoreRefused
from headrace.core.options import Retry
from headrace.store.objects.object_driver import Bucket
from headrace.store.reading.perseverance import Perseverance

FOLDER = "metadata"
REMOVED = "data"
"""What a line says of a row that was removed: no column can have that name."""
AT_ONCE = 16
"""Parts that are read ahead."""


def last_number(names: Sequence[str]) -> int:
    """The number of the last part. Parts are numbered by the time of each, or one more than that of the part before
    it where a clock was set back.
    """
    found = names[-1].rpartition("/")[2].partition("-")[0] if names else ""
    return int(found) if found.isdecimal() else 0


async def rows(bucket: Bucket, store: str, *, latest_first: bool = False) -> AsyncGenerator[dict[str, Any]]:
    """Every line of every part, oldest first: of those with one key the last counts. Raises ``StoreRefused``."""
    again = Perseverance(store, Retry(), None)
    names = await again.run(None, lambda: bucket.names(FOLDER))
    if latest_first:
        names.reverse()

    async def part(name: str) -> tuple[memoryview, dict[str, str]] | None:
        return await again.run(None, lambda: bucket.get(name))

    for first in range(0, len(names), AT_ONCE):
        for found in await asyncio.gather(*map(part, names[first : first + AT_ONCE])):
            lines = bytes(found[0]).splitlines() if found is not None else []
            for line in reversed(lines) if latest_first else lines:
                try:
                    row = json.loads(line)
                    if not isinstance(row["key"], str):
                        raise TypeError(f"{row['key']!r:.40} is no key")
                except (ValueError, LookupError, TypeError, RecursionError) as error:
                    raise StoreRefused.at(store, f"a part of the metadata is damaged: {error}") from error
                yield row


async def lists(bucket: Bucket, store: str, names: Sequence[str]) -> dict[str, list[Any]]:
    """The named columns, ``key`` first, in the order of the keys."""
    places: dict[str, int] = {}
    values: dict[str, list[Any]] = {name: [] for name in names if name != "key"}
    count = 0
    async for row in rows(bucket, store):
        key = row["key"]
        if REMOVED in row:
            places.pop(key, None)
            continue
        if key not in places:
            places[key] = count
            count += 1
            for column in values.values():
                column.append(None)
        for name, column in values.items():
            column[places[key]] = row.get(name)
    order = sorted(places.items())
    return {
        "key": [key for key, _ in order],
        **{name: [column[place] for _, place in order] for name, column in values.items()},
    }


async def latest(bucket: Bucket, store: str, keys: Collection[str] | None, most: int) -> list[dict[str, Any]]:
    """The rows of these keys, or any, so many of those that were written last: earlier parts are not read then."""
    found: list[dict[str, Any]] = []
    seen: set[str] = set()
    async with aclosing(rows(bucket, store, latest_first=True)) as lines:
        async for row in lines:
            if row["key"] in seen or (keys is not None and row["key"] not in keys):
                continue
            seen.add(row["key"])
            if REMOVED not in row:
                found.append(row)
            if len(found if keys is None else seen) >= most:
                break
    return found
