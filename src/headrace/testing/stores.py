"""Conformance suites for stores, as tests: derive from a suite and give it a store.

    class TestMyStore(StoreConformance):
        @pytest.fixture(autouse=True)
        def given(self, tmp_path):
            self.records = sample_records()
            self.store = ...   # holds exactly these records

pytest finds the ``test_`` methods; nothing here needs it.
"""

import asyncio
import os
import pickle
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import numpy as np

from headrace.core.errors import MissingKey, StoreError
from headrace.store.base import (
    Columns,
    Fetched,
    Kind,
    Label,
    LabelKind,
    LocalStore,
    Lost,
    PartialCatalogue,
    Record,
    RemoteStore,
    Row,
    Schema,
    Store,
    WritableStore,
)
from headrace.store.catalogues.columns import plain
from headrace.store.catalogues.origin import RemovingStore
from headrace.store.catalogues.provenance import Identified, WatchedSession
from headrace.store.reading.bridges import blocking

SCHEMA = Schema(
    LabelKind.INTEGER,
    {"class": Kind.TEXT, "Patient id": Kind.TEXT, "age": Kind.INTEGER, "dose": Kind.NUMBER, "ok": Kind.TRUTH},
)


def sample_records(count: int = 20, labels: LabelKind = LabelKind.INTEGER) -> list[Record]:
    """Rows with payloads of all sizes, every kind of metadata, and some of it missing."""
    records = []
    for number in range(count):
        by_kind: dict[LabelKind, Label] = {LabelKind.INTEGER: number % 3, LabelKind.BLOB: bytes([number, 0, 255])}
        metadata = {"class": ["cat", "dog", "élan"][number % 3], "Patient id": f"p'{number // 4}"}
        more = {"age": number, "dose": number / 4, "ok": number % 2 == 0} if number % 5 else {}
        payload = bytes([number % 256]) * (0 if number == 3 else 10 ** (number % 6))
        records.append(
            Record(f"00000000-0000-4000-8000-{number:012x}", payload, by_kind.get(labels), {**metadata, **more})
        )
    return records


class Given:
    """Input of a suite: a store that holds ``records``, ``columns_kept`` of their metadata included."""

    store: Store
    records: Sequence[Record]
    labels = LabelKind.INTEGER
    columns_kept: Sequence[str] = tuple(SCHEMA.columns)

    def _missing(self) -> str:
        return "ffffffff-ffff-4fff-8fff-ffffffffffff"

    def _fetched(self, keys: Sequence[str]) -> list[Fetched]:
        with reader(self.store) as local:
            return list(local.get_many(keys))

    def _rows(self, keys: Sequence[str]) -> dict[str, tuple[bytes, Label]]:
        rows = [fetched for fetched in self._fetched(keys) if isinstance(fetched, Row)]
        return {row.key: (bytes(row.payload), row.label) for row in rows}


class StoreConformance(Given):
    """Tests for any store. Nothing is written, so that one store serves all of these tests."""

    def test_keys_are_all_there_once_and_sorted(self) -> None:
        assert self.store.keys() == sorted(record.key for record in self.records)

    def test_rows_are_those_that_were_put(self) -> None:
        expected = {record.key: (bytes(record.payload), record.label) for record in self.records}
        assert self._rows(list(expected)) == expected

    def test_a_key_asked_for_twice_comes_twice(self) -> None:
        key = self.records[0].key
        assert [fetched.key for fetched in self._fetched([key, key])] == [key, key]

    def test_a_missing_key_is_named_with_its_store(self) -> None:
        with reader(self.store) as local, raises(MissingKey) as caught:
            local.get(self._missing())
        error = caught[0]
        assert isinstance(error, MissingKey)
        assert error.key == self._missing()
        assert error.server == self.store.name
        assert self._missing() in str(error)
        assert self.store.name in str(error)

    def test_a_missing_key_does_not_keep_the_others_back(self) -> None:
        keys = [self.records[0].key, self._missing(), self.records[1].key]
        found = {fetched.key: fetched for fetched in self._fetched(keys)}
        assert set(found) == set(keys)
        lost = found[self._missing()]
        assert isinstance(lost, Lost)
        assert isinstance(lost.error, MissingKey)

    def test_metadata_comes_as_columns_in_the_order_of_the_keys(self) -> None:
        columns = self.store.columns()
        records = sorted(self.records, key=lambda record: record.key)
        assert columns["key"].tolist() == [record.key for record in records]
        assert {len(array) for array in columns.values()} == {len(records)}
        if self.labels is LabelKind.INTEGER:
            assert columns["label"].tolist() == [record.label for record in records]
            assert columns["label"].dtype == np.int64
        else:
            assert "label" not in columns
        for name in self.columns_kept:
            for value, record in zip(columns[name].tolist(), records, strict=True):
                expected = record.metadata.get(name)
                assert value == expected or (expected is None and (value is None or np.isnan(value))), name

    def test_columns_can_be_chosen(self) -> None:
        assert list(self.store.columns([])) == ["key"]
        for name in self.columns_kept:
            assert list(self.store.columns([name])) == ["key", name]

    def test_a_column_that_is_not_there_is_an_error_with_those_that_are(self) -> None:
        with raises(StoreError) as caught:
            self.store.columns(["no such column"])
        assert "no such column" in str(caught[0])
        assert "key" in str(caught[0])

    def test_info_counts(self) -> None:
        info = self.store.info()
        assert info.url == self.store.name
        assert info.rows == len(self.records)
        assert info.payload_bytes in (None, sum(len(record.payload) for record in self.records))
        assert info.labels is self.labels
        assert set(self.columns_kept) <= set(info.columns)
        if self.labels is LabelKind.INTEGER:
            assert sum(info.classes.values()) == len(self.records)

    def test_a_few_rows_are_told_as_all_are(self) -> None:
        if not isinstance(self.store, PartialCatalogue):
            return
        every = _by_key(self.store.columns())
        keys = [self.records[1].key, self.records[0].key]
        assert _by_key(self.store.facts([*keys, self._missing(), keys[0]])) == {key: every[key] for key in keys}
        for most in (0, 3, len(every) + 1):
            begun = self.store.beginning(most)
            found = _by_key(begun.columns)
            assert list(begun.columns) == list(self.store.columns())
            assert begun.rows in (None, len(every))
            assert len(found) == min(most, len(every))
            assert found.items() <= every.items()

    def test_it_says_which_store_it_is(self) -> None:
        assert isinstance(self.store, Identified), "a cache asks for provenance()"
        first = self.store.provenance()
        assert first.identity
        assert first.revision
        assert pickle.loads(pickle.dumps(self.store)).provenance() == first  # noqa: S301  (pickled here)

    def test_a_copy_reads_by_itself(self) -> None:
        with reader(self.store) as local:
            local.get(self.records[0].key)
            copy = pickle.loads(pickle.dumps(self.store))  # noqa: S301  (our own bytes)
            assert repr(copy) == repr(self.store)
            with reader(copy) as other:
                assert other.get(self.records[1].key).label == self.records[1].label

    def test_a_forked_child_reads_by_itself(self) -> None:
        key = self.records[1].key
        with reader(self.store) as local:
            expected = bytes(local.get(key).payload)
            in_child(lambda: _same(bytes(local.get(key).payload), expected))
            assert bytes(local.get(key).payload) == expected

    def test_closing_twice_is_closing_once_and_the_next_use_opens_again(self) -> None:
        with reader(self.store) as local:
            local.get(self.records[0].key)
            local.close()
            local.close()
            assert local.get(self.records[0].key).key == self.records[0].key

    def test_threads_may_read_together(self) -> None:
        with reader(self.store) as local, ThreadPoolExecutor(4) as pool:
            rows = list(pool.map(local.get, [record.key for record in self.records]))
        assert [bytes(row.payload) for row in rows] == [bytes(record.payload) for record in self.records]

    def test_many_requests_may_be_in_flight_and_one_be_cancelled(self) -> None:
        if isinstance(self.store, RemoteStore):
            asyncio.run(self._cancelled(self.store))

    async def _cancelled(self, store: RemoteStore) -> None:
        session = await store.connect()
        try:
            first, *others = [asyncio.create_task(session.get(record.key)) for record in self.records]
            await asyncio.sleep(0)
            first.cancel()
            rows = await asyncio.gather(*others)
            assert [row.key for row in rows] == [record.key for record in self.records[1:]]
            again = await session.get(self.records[0].key)
            assert bytes(again.payload) == bytes(self.records[0].payload)
        finally:
            await session.close()
            await session.close()


class WritableConformance(Given):
    """Tests for a store that takes rows. ``store`` was filled by ``fill(store, records)``, anew for each of these
    tests.
    """

    def test_writing_twice_changes_nothing(self) -> None:
        before = self.store.info()
        fill(self.store, self.records, self.labels)
        assert self.store.info() == before
        expected = {record.key: (bytes(record.payload), record.label) for record in self.records}
        assert self._rows(list(expected)) == expected

    def test_a_row_can_be_replaced(self) -> None:
        old = self.records[0]
        fill(self.store, [old._replace(payload=b"new")], self.labels)
        assert self._rows([old.key]) == {old.key: (b"new", old.label)}
        assert self.store.info().rows == len(self.records)
        if isinstance(self.store, PartialCatalogue) and "bytes" in self.store.facts([]):
            assert self.store.facts([old.key])["bytes"].tolist() == [3]

    def test_every_write_is_another_revision(self) -> None:
        assert isinstance(self.store, Identified)
        states = [self.store.provenance()]
        for payload in (b"another", b"a third"):
            fill(self.store, [self.records[0]._replace(payload=payload)], self.labels)
            states.append(self.store.provenance())
        assert len({state.identity for state in states}) == 1
        assert len({state.revision for state in states}) == 3
        if isinstance(self.store, RemoteStore):
            assert asyncio.run(_said(self.store)) in {None, states[-1].revision}

    def test_rows_can_be_removed(self) -> None:
        if not isinstance(self.store, RemovingStore):
            return
        gone, *left = (record.key for record in self.records)
        assert sum(self.store.remove([gone, self._missing()])) == 1
        assert self.store.keys() == sorted(left)
        assert isinstance(self._fetched([gone])[0], Lost)
        if isinstance(self.store, PartialCatalogue):
            assert self.store.facts([gone, left[0]])["key"].tolist() == [left[0]]
            assert sorted(self.store.beginning(len(self.records)).columns["key"].tolist()) == sorted(left)
        assert sum(self.store.remove([gone])) == 0
        fill(self.store, self.records, self.labels)
        assert self.store.keys() == sorted([gone, *left])
        assert gone in self._rows([gone])

    def test_present_tells_what_is_there(self) -> None:
        keys = [record.key for record in self.records]
        assert isinstance(self.store, WritableStore)
        with self.store.writer() as writer:
            assert writer.present([*keys, self._missing()]) == set(keys)
            assert writer.present([]) == set()

    def test_columns_can_be_added(self) -> None:
        assert isinstance(self.store, WritableStore)
        self.store.create(Schema(self.labels, {"weight": Kind.NUMBER}))
        assert np.isnan(self.store.columns(["weight"])["weight"].astype(float)).all()

    def test_other_labels_are_refused(self) -> None:
        assert isinstance(self.store, WritableStore)
        other = LabelKind.BLOB if self.labels is LabelKind.INTEGER else LabelKind.INTEGER
        with raises(StoreError):
            self.store.create(Schema(other))
        with self.store.writer() as writer, raises(StoreError):
            writer.put([self.records[0]._replace(label=1 if other is LabelKind.INTEGER else b"x")])

    def test_a_column_nobody_named_is_refused(self) -> None:
        assert isinstance(self.store, WritableStore)
        with self.store.writer() as writer, raises(StoreError) as caught:
            writer.put([self.records[0]._replace(metadata={"surprise": 1})])
        assert "surprise" in str(caught[0])

    def test_a_value_of_another_kind_is_refused_and_harms_nothing(self) -> None:
        assert isinstance(self.store, WritableStore)
        before = self.store.info()
        kinds = {"a": Kind.INTEGER, "b": Kind.NUMBER, "c": Kind.TEXT, "d": Kind.TRUTH}
        whole: list[Any] = [np.int64(1), 1.5, "1", 1 << 63]
        others: dict[str, list[Any]] = {"a": whole, "b": [np.float32(1), "1"], "c": [1, b"1"], "d": [np.True_, 2]}
        self.store.create(Schema(self.labels, kinds))
        with self.store.writer() as writer:
            for name, value in ((name, value) for name, values in others.items() for value in values):
                with raises(StoreError) as caught:
                    writer.put([self.records[0]._replace(key="other", metadata={name: value})])
                assert repr(name) in str(caught[0])
            with raises(StoreError):
                writer.put([self.records[0]._replace(key=b"other")])  # type: ignore[arg-type]
        assert self.store.info().rows == before.rows
        assert "other" not in self.store.columns()["key"].tolist()

    def test_a_column_cannot_have_a_name_that_is_taken(self) -> None:
        assert isinstance(self.store, WritableStore)
        for columns in ({"label": Kind.TEXT}, {"a": Kind.TEXT, "A": Kind.TEXT}, {"class": Kind.NUMBER}):
            with raises(StoreError):
                self.store.create(Schema(self.labels, columns))


def fill(store: Store, records: Sequence[Record], labels: LabelKind = LabelKind.INTEGER) -> None:
    """Creates what the records need, and puts them."""
    assert isinstance(store, WritableStore)
    store.create(Schema(labels, SCHEMA.columns))
    with store.writer() as writer:
        writer.put(records)


def _by_key(columns: Columns) -> dict[str, tuple[Any, ...]]:
    """The rows, each a value per column."""
    lists = [[plain(value) for value in array.tolist()] for array in columns.values()]
    return {row[0]: row for row in zip(*lists, strict=True)}


def reader(store: Store) -> "closing[LocalStore]":
    """The store, as blocking code reads it; closed at the end."""
    return closing(blocking(store))


async def _said(store: RemoteStore) -> str | None:
    """The revision as a session says it, if it can."""
    session = await store.connect()
    try:
        return await session.revision() if isinstance(session, WatchedSession) else None
    finally:
        await session.close()


@contextmanager
def raises(kind: type[BaseException]) -> Iterator[list[BaseException]]:
    """Asserts that the block raises such an error, and keeps it."""
    caught: list[BaseException] = []
    try:
        yield caught
    except kind as error:
        caught.append(error)
    assert caught, f"nothing raised {kind.__name__}"


def in_child(check: Callable[[], None]) -> None:
    """Runs it in a forked process, and asserts that it raised nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that a process with threads is forked is the point
        pid = os.fork()
    if pid == 0:
        try:
            check()
            os._exit(0)
        except BaseException:  # noqa: BLE001  (a child that returned would run the rest of the tests)
            traceback.print_exc()
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0, "the child failed; its traceback is on stderr"


def _same(found: object, expected: object) -> None:
    assert found == expected
