import random
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace import store
from headrace.core.errors import MissingKey, StoreError, StoreRefused, StoreUnavailable
from headrace.store import LabelKind, Record, Schema
from headrace.store.sqlite import database
from headrace.testing.stores import StoreConformance, WritableConformance, fill, sample_records


class TestSqlite(StoreConformance, WritableConformance):
    @pytest.fixture(autouse=True)
    def given(self, tmp_path):
        self.records = sample_records()
        self.store = store.open_writable(f"sqlite:///{tmp_path}/a.db")
        fill(self.store, self.records)
        yield
        self.store.close()


class TestBlobLabels(StoreConformance, WritableConformance):
    labels = LabelKind.BLOB

    @pytest.fixture(autouse=True)
    def given(self, tmp_path):
        self.records = sample_records(labels=self.labels)
        self.store = store.open_writable(f"sqlite:///{tmp_path}/a.db")
        fill(self.store, self.records, self.labels)
        yield
        self.store.close()


class TestNoLabels(TestBlobLabels):
    labels = LabelKind.NONE


@pytest.fixture
def made(tmp_path):
    made = store.open_writable(f"sqlite:///{tmp_path}/a.db")
    fill(made, sample_records())
    yield made
    made.close()


def test_a_thread_never_gets_what_another_one_asked_for(made):
    """Python's module has one prepared statement per query, whichever thread asks."""
    records = {record.key: bytes(record.payload) for record in sample_records()}

    def wrong(seed):
        keys = random.Random(seed).choices(sorted(records), k=1000)
        return [key for key in keys if bytes(made.get(key).payload) != records[key]]

    with ThreadPoolExecutor(8) as pool:
        assert not [key for found in pool.map(wrong, range(8)) for key in found]


WRITER = """
import sys
from headrace.store import Record, open_writable
with open_writable(sys.argv[1]).writer() as writer:
    for number in range(int(sys.argv[2]), int(sys.argv[3])):
        writer.put([Record(f"w{number}", b"x" * 1000, 1, {})])
"""


class TestWriting:
    def test_several_processes_may_write_to_one_file(self, made):
        command = [sys.executable, "-c", WRITER, made.name]
        writers = [subprocess.Popen([*command, str(first), str(first + 30)]) for first in (0, 20)]
        assert [process.wait() for process in writers] == [0, 0]
        assert made.info().rows == 20 + 50

    def test_a_batch_is_written_whole_or_not_at_all(self, made):
        bad = [Record("new", b"x", 1, {}), Record("bad", b"x", None, {})]
        with made.writer() as writer, pytest.raises(StoreError, match="bad"):
            writer.put(bad)
        assert "new" not in made.keys()  # noqa: SIM118  (not a dict)
        assert made.info().rows == 20

    def test_a_reader_sees_whole_batches_while_another_writes(self, made):
        with made.writer() as writer:
            writer._connection.execute("BEGIN IMMEDIATE")
            writer._connection.execute("INSERT INTO samples (key, label, data) VALUES ('half', 1, x'00')")
            assert made.info().rows == 20
            with pytest.raises(store.base.StoreError):
                made.get("half")
            writer._connection.execute("ROLLBACK")

    def test_a_lock_that_is_not_let_go_of_may_pass(self, made, monkeypatch):
        monkeypatch.setattr(database, "BUSY_S", 0.01)
        with made.writer() as first, made.writer() as second:
            first._connection.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable, match="locked"):
                second.put(sample_records(1))
            first._connection.execute("ROLLBACK")

    def test_a_database_of_somebody_else_s_is_left_alone(self, tmp_path):
        path = tmp_path / "theirs.db"
        theirs = sqlite3.connect(path)
        theirs.execute("CREATE TABLE t (x)")
        theirs.commit()
        theirs.close()
        before = path.read_bytes()
        opened = store.open_writable(f"sqlite:///{path}")
        for use in (lambda: opened.create(Schema()), opened.keys, lambda: opened.writer().__enter__()):
            with pytest.raises(StoreRefused, match=r"somebody else's|no headrace store"):
                use()
        assert path.read_bytes() == before

    def test_an_integer_too_large_is_refused(self, made):
        with made.writer() as writer, pytest.raises(StoreError, match="larger than SQLite can hold"):
            writer.put([Record("k", b"", 2**63, {})])


class TestReading:
    @pytest.mark.parametrize("content", [b"", b"not a database at all" * 100])
    def test_a_file_that_is_no_store_is_refused(self, tmp_path, content):
        path = tmp_path / "x.db"
        path.write_bytes(content)
        with pytest.raises(StoreRefused, match=r"x\.db"):
            store.open_store(f"sqlite:///{path}").keys()

    def test_a_missing_file_is_not_created(self, tmp_path):
        with pytest.raises(StoreRefused, match="there is no file"):
            store.open_store(f"sqlite:///{tmp_path}/x.db").get("k")
        assert not list(tmp_path.iterdir())

    def test_three_slashes_for_an_absolute_path_are_explained(self, made, tmp_path):
        with pytest.raises(StoreRefused, match="four slashes"):
            store.open_store(f"sqlite://{tmp_path}/a.db").keys()

    def test_a_relative_path_belongs_to_the_folder_it_was_opened_in(self, made, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        opened = store.open_store("sqlite:///a.db")
        monkeypatch.chdir("/")
        assert len(opened.keys()) == 20
        opened.close()

    def test_immutable_takes_no_locks_and_leaves_no_files(self, made, tmp_path):
        made.close()
        before = sorted(path.name for path in tmp_path.iterdir())
        opened = store.open_store(f"sqlite:///{tmp_path}/a.db?immutable=1")
        assert len(opened.keys()) == 20
        assert sorted(path.name for path in tmp_path.iterdir()) == before == ["a.db"]
        opened.close()
        with pytest.raises(StoreError, match="immutable"):
            opened.create(Schema())

    def test_metadata_is_read_without_payloads(self, made):
        with made._reading() as connection:
            plan = connection.execute("EXPLAIN QUERY PLAN SELECT key, label FROM metadata ORDER BY key").fetchall()
        assert not any("samples" in str(row) for row in plan)


def test_a_key_that_is_no_text_is_not_there(made):
    with pytest.raises(MissingKey, match="no row with the key"):
        made.get("\ud800")


def test_a_store_that_another_process_makes_meanwhile_is_no_strangers(tmp_path, monkeypatch):
    url, ours, asked = f"sqlite:///{tmp_path}/a.db", database.ours, []

    def before(connection):
        found = ours(connection)
        if not asked:
            asked.append(found)
            fill(store.open_writable(url), sample_records(2))
        return found

    monkeypatch.setattr(database, "ours", before)
    fill(store.open_writable(url), sample_records())
    assert asked == [False]
    assert store.open_store(url).info().rows == len(sample_records())
