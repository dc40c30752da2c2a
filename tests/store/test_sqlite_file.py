"""The file itself: complete when writing has ended, whoever ended it, and telling which store it is in which state."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys

import pytest

from headrace import store
from headrace.core.errors import StoreRefused
from headrace.store import Identified, Provenance, Record
from headrace.testing.stores import fill, in_child, sample_records


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.db"


def opened(path):
    return store.open_writable(f"sqlite:///{path}")


def put(path, *keys):
    with opened(path).writer() as writer:
        writer.put([Record(key, b"x" * 100, 1, {}) for key in keys])


def provenance(path):
    made = opened(path)
    assert isinstance(made, Identified)
    try:
        return made.provenance()
    finally:
        made.close()


def rows_of_a_copy(path):
    """What is in the file alone, without what may lie beside it."""
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    made = opened(copy)
    try:
        return made.info().rows
    finally:
        made.close()
        for each in path.parent.glob("copy.db*"):
            each.unlink()


def beside(path):
    return sorted(each.name for each in path.parent.iterdir() if each != path)


class TestComplete:
    def test_after_writing(self, path):
        fill(opened(path), sample_records())
        assert rows_of_a_copy(path) == 20
        assert beside(path) == []

    def test_while_somebody_has_it_open_to_read(self, path):
        fill(opened(path), sample_records())
        reader = opened(path)
        assert len(reader.keys()) == 20
        put(path, "new")
        assert reader.info().rows == 21
        assert rows_of_a_copy(path) == 21
        reader.close()

    def test_after_a_failure(self, path):
        fill(opened(path), sample_records())
        with pytest.raises(KeyboardInterrupt), opened(path).writer() as writer:
            writer.put([Record("new", b"x", 1, {})])
            raise KeyboardInterrupt
        assert rows_of_a_copy(path) == 21

    def test_reading_leaves_nothing_beside_it(self, path):
        fill(opened(path), sample_records())
        reader = opened(path)
        assert reader.get(sample_records()[1].key).label == 1
        reader.close()
        assert beside(path) == []

    def test_what_a_killed_writer_left_is_read_and_settled(self, path):
        fill(opened(path), sample_records())
        program = (
            "import os, signal, sys\n"
            "from headrace.store import Record, open_writable\n"
            "with open_writable(sys.argv[1]).writer() as writer:\n"
            "    writer.put([Record('killed', b'x', 1, {})])\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        done = subprocess.run([sys.executable, "-c", program, f"sqlite:///{path}"], check=False)
        assert done.returncode == -signal.SIGKILL
        assert rows_of_a_copy(path) == 20  # the row lies in the log
        reader = opened(path)
        assert reader.info().rows == 21
        reader.close()
        assert opened(path).settle()
        assert rows_of_a_copy(path) == 21
        assert beside(path) == []

    def test_it_is_told_where_a_reader_keeps_it_from_being_complete(self, path, monkeypatch):
        monkeypatch.setattr("headrace.store.sqlite.database.SETTLE_S", 0.01)
        fill(opened(path), sample_records())
        busy = sqlite3.connect(path, isolation_level=None)
        with opened(path).writer() as writer:
            writer.put([Record("one", b"x", 1, {})])
            busy.execute("BEGIN")
            busy.execute("SELECT count(*) FROM metadata").fetchone()
            writer.put([Record("two", b"x", 1, {})])
        assert not opened(path).settle()
        busy.close()
        assert opened(path).settle()
        assert rows_of_a_copy(path) == 22


class TestLeftBehind:
    """What writers that were killed may leave."""

    KILLED = (
        "import os, signal, sys\n"
        "from headrace.store import Record, open_writable\n"
        "with open_writable(sys.argv[1]).writer() as writer:\n"
        "    writer.put([Record('killed', b'x', 1, {})])\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )

    def killed(self, path):
        fill(opened(path), sample_records())
        subprocess.run([sys.executable, "-c", self.KILLED, f"sqlite:///{path}"], check=False)
        assert path.with_name("a.db-wal").stat().st_size > 0

    def test_immutable_does_not_hide_rows_in_a_log(self, path):
        self.killed(path)
        with pytest.raises(StoreRefused, match="leave immutable= out"):
            store.open_store(f"sqlite:///{path}?immutable=1").keys()
        assert opened(path).settle()
        reader = store.open_store(f"sqlite:///{path}?immutable=1")
        assert len(reader.keys()) == 21
        reader.close()

    def test_a_log_in_a_folder_that_nobody_may_write_to_is_told(self, path):
        self.killed(path)
        path.with_name("a.db-shm").unlink()
        for folder in path.parents:
            if folder.name.startswith(("pytest-", "popen-")):
                folder.chmod(0o755)
        path.parent.chmod(0o555)

        def check():
            if os.getuid() == 0:
                os.setuid(65534)
            with pytest.raises(StoreRefused, match="its newest rows lie in"):
                opened(path).keys()

        try:
            in_child(check)
        finally:
            path.parent.chmod(0o755)

    def test_half_a_transaction_is_undone_by_whoever_reads_next(self, path):
        """A file is switched to and from its log by a transaction of the other kind."""
        fill(opened(path), sample_records())
        program = (
            "import os, sqlite3, sys\n"
            "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
            "connection.execute('PRAGMA cache_size = 1')\n"
            "connection.execute('BEGIN')\n"
            'connection.execute("UPDATE samples SET data = zeroblob(40000)")\n'
            "connection.execute('DELETE FROM metadata')\n"
            "os._exit(1)\n"
        )
        subprocess.run([sys.executable, "-c", program, str(path)], check=False)
        assert beside(path) == ["a.db-journal"]
        reader = opened(path)
        assert len(reader.keys()) == 20
        assert bytes(reader.get(sample_records()[1].key).payload) == bytes(sample_records()[1].payload)
        reader.close()


def test_damage_that_sqlite_names_in_no_text_is_told(path):
    fill(opened(path), sample_records(3))
    raw = path.read_bytes()
    assert raw.count(b"CREATE TABLE samples (id INTEGER") == 1
    path.write_bytes(raw.replace(b"CREATE TABLE samples (id INTEGER", b"CREATE TABLE samples \xee(id INTEGER"[:32]))
    made = opened(path)
    for attempt in (made.keys, made.info, made.provenance, lambda: made.get("a"), lambda: list(made.remove(["a"]))):
        with pytest.raises(StoreRefused, match="damaged"):
            attempt()


class TestProvenance:
    def test_it_stays_while_nothing_is_written(self, path):
        fill(opened(path), sample_records())
        first = provenance(path)
        assert first == provenance(path)
        opened(path).create(store.Schema())
        with opened(path).writer() as writer:
            writer.put([])
            assert writer.present(["x"]) == set()
        assert first == provenance(path)

    def test_it_changes_with_every_change_of_rows(self, path):
        fill(opened(path), sample_records())
        seen = [provenance(path)]
        for key in ("a", "b", "a"):
            put(path, key)
            seen.append(provenance(path))
        assert len({each.revision for each in seen}) == 4
        assert len({each.identity for each in seen}) == 1

    def test_a_transaction_that_failed_is_no_change(self, path):
        fill(opened(path), sample_records())
        first = provenance(path)
        with opened(path).writer() as writer, pytest.raises(store.base.StoreError):
            writer.put([Record("new", b"x", None, {})])
        assert provenance(path) == first

    def test_copies_that_are_changed_apart_differ(self, path):
        fill(opened(path), sample_records())
        copy = path.with_name("b.db")
        shutil.copy(path, copy)
        assert provenance(copy) == provenance(path)
        put(path, "same")
        put(copy, "same")
        assert provenance(copy).identity == provenance(path).identity
        assert provenance(copy).revision != provenance(path).revision

    def test_two_stores_are_two(self, path):
        fill(opened(path), sample_records())
        fill(opened(path.with_name("b.db")), sample_records())
        assert provenance(path).identity != provenance(path.with_name("b.db")).identity

    def test_a_file_of_an_older_release_gets_one_when_it_is_written_to(self, path):
        fill(opened(path), sample_records())
        with sqlite3.connect(path) as older:
            older.execute("DELETE FROM about WHERE name != 'labels'")
        older.close()
        first = provenance(path)
        assert first == provenance(path)
        assert first.identity == f"file:{path}"
        os.utime(path, ns=(1, 1))
        assert provenance(path).revision != first.revision
        put(path, "new")
        written = provenance(path)
        assert written.identity not in ("", first.identity)
        assert provenance(path) == written == Provenance(written.identity, written.revision)
