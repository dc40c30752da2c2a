"""A remote store in memory that answers as a script says: late, never, or with an error."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.core.errors import MissingKey, StoreError
from headrace.store.base import Columns, Info, Kind, LabelKind, Record, RemoteStore, Row, Session
from headrace.store.catalogues.columns import chosen, column, describe
from headrace.store.catalogues.provenance import Provenance, digest_of


@dataclass(frozen=True)
class Step:
    """Fate of a request for a key: a delay, then an error, or a wait without end, or its row."""

    after: float = 0.0
    error: StoreError | None = None
    hang: bool = False


class ScriptedStore(RemoteStore):
    """Rows held in memory. Each request for a key uses up one step of its script; without one it waits ``delay``.

    ``connecting`` is the script of ``connect``. What was asked of it can be read: ``requests``, ``sessions``,
    ``in_flight`` and its ``peak``.
    """

    def __init__(
        self,
        records: Iterable[Record],
        *,
        script: Mapping[str, Sequence[Step]] | None = None,
        connecting: Sequence[Step] = (),
        delay: float = 0.0,
    ) -> None:
        self._records = {record.key: record for record in sorted(records, key=lambda record: record.key)}
        self._script = {key: list(steps) for key, steps in (script or {}).items()}
        self._connecting = list(connecting)
        self._delay = delay
        self.requests: Counter[str] = Counter()
        self.sessions = 0
        self.in_flight = 0
        self.peak = 0

    @property
    def name(self) -> str:
        return "scripted://memory"

    def provenance(self) -> Provenance:
        """The provenance, told by its rows, which do not change."""
        return Provenance(self.name, digest_of(repr(list(self._records.values()))))

    def __repr__(self) -> str:
        return f"ScriptedStore({len(self._records)} rows)"

    async def connect(self) -> Session:
        await _play(self._connecting.pop(0) if self._connecting else Step())
        self.sessions += 1
        return _ScriptedSession(self)

    async def answer(self, key: str) -> Row:
        """Answer a request, as a session makes it."""
        self.requests[key] += 1
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            steps = self._script.get(key)
            await _play(steps.pop(0) if steps else Step(self._delay))
            record = self._records.get(key)
        finally:
            self.in_flight -= 1
        if record is None:
            raise MissingKey(f"{self.name} has no row with the key {key!r}", server=self.name, key=key)
        return Row(record.key, record.payload, record.label)

    def keys(self) -> list[str]:
        return list(self._records)

    def columns(self, names: Sequence[str] | None = None) -> Columns:
        records = list(self._records.values())
        integers = self._labels() is LabelKind.INTEGER
        kinds = {name: _kind([record.metadata.get(name) for record in records]) for name in self._own()}
        kinds = {"key": Kind.TEXT, **({"label": Kind.INTEGER} if integers else {}), "bytes": Kind.INTEGER, **kinds}
        wanted = chosen(names, kinds, self.name)
        values: dict[str, list[Any]] = {name: [r.metadata.get(name) for r in records] for name in kinds}
        values |= {"key": [r.key for r in records], "label": [r.label for r in records]}
        values["bytes"] = [len(r.payload) for r in records]
        return {name: column(values[name], kinds[name]) for name in wanted}

    def info(self) -> Info:
        own = {name: _kind([r.metadata.get(name) for r in self._records.values()]) for name in self._own()}
        return describe(self.name, self.columns(), self._labels(), own)

    def close(self) -> None:
        """Close nothing: nothing is held open between sessions."""

    def _own(self) -> list[str]:
        return list(dict.fromkeys(name for record in self._records.values() for name in record.metadata))

    def _labels(self) -> LabelKind:
        kinds = {type(record.label) for record in self._records.values()}
        return LabelKind.INTEGER if int in kinds else LabelKind.BLOB if bytes in kinds else LabelKind.NONE


class _ScriptedSession:
    def __init__(self, store: ScriptedStore) -> None:
        self._store = store
        self._open = True

    async def get(self, key: str) -> Row:
        return await self._store.answer(key)

    def connections(self) -> int:
        return int(self._open)

    async def close(self) -> None:
        self._open = False


async def _play(step: Step) -> None:
    await asyncio.sleep(step.after)
    if step.hang:
        await asyncio.get_running_loop().create_future()
    if step.error is not None:
        raise step.error


def _kind(values: Iterable[object]) -> Kind:
    known = {type(value) for value in values if value is not None}
    by_type = {bool: Kind.TRUTH, int: Kind.INTEGER, float: Kind.NUMBER}
    return by_type.get(known.pop(), Kind.TEXT) if len(known) == 1 else Kind.TEXT
