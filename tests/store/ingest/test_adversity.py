"""Full disks, read-only folders, two ingests at once, interrupts, odd names and huge rows."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.cli.__main__ import main
from headrace.core.errors import StoreError, StoreRefused
from headrace.store import Record, open_store, open_writable
from headrace.store.ingest import ReadOptions, ingest
from headrace.store.sqlite.database import Database
from headrace.store.sqlite.sqlite_store import SqliteStore
from headrace.testing.stores import fill, in_child, sample_records
from tests.store.ingest.support import ROOT, class_folders, contents, manifest, picture

NOBODY = 65534


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/store.db"


def alone(tmp_path):
    """What a copy of the file has, without what may lie beside it."""
    (tmp_path / "alone").mkdir()
    shutil.copy(tmp_path / "store.db", tmp_path / "alone")
    return contents(f"sqlite:///{tmp_path}/alone/store.db")


def test_a_full_disk_is_one_line_and_loses_nothing_that_was_stored(tmp_path, url, capsys, monkeypatch):
    class_folders(tmp_path / "first", 5)
    ingest(str(tmp_path / "first"), url)
    (tmp_path / "more").mkdir()
    for number in range(200):
        (tmp_path / "more" / f"{number}.bin").write_bytes(os.urandom(20_000))
    rows = [{"path": f"{number}.bin", "label": 0} for number in range(200)]
    source = manifest(tmp_path / "more" / "m.csv", rows)
    writing = Database.writing

    def full(database):
        connection = writing(database)
        connection.execute("PRAGMA max_page_count = 60")
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(Database, "writing", full)
        assert main(["ingest", str(source), url]) == 2
    err = capsys.readouterr().err
    assert "full" in err
    assert len(err.splitlines()) == 1
    assert len(alone(tmp_path)) >= 5
    again = ingest(str(source), url)
    assert again.written + again.present == 200
    assert len(contents(url)) == 205


def test_a_folder_that_nobody_may_write_to(tmp_path, url):
    fill(open_writable(url), sample_records())
    class_folders(tmp_path / "in", 3)
    reader = sqlite3.connect(tmp_path / "store.db")  # as if it had been left with a log in its header
    reader.execute("PRAGMA journal_mode = WAL")
    reader.close()
    os.chmod(tmp_path, 0o555)  # noqa: PTH101
    for folder in tmp_path.parents:
        if folder.name.startswith(("pytest-", "popen-")):
            os.chmod(folder, 0o755)  # noqa: PTH101

    def check():
        if os.getuid() == 0:
            os.setuid(NOBODY)
        store = open_store(url)
        assert store.info().rows == 20
        assert len(store.keys()) == 20
        store.close()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "store.db"]
        with pytest.raises(StoreError, match=r"store\.db"):
            ingest(str(tmp_path / "in"), url)

    try:
        in_child(check)
    finally:
        os.chmod(tmp_path, 0o755)  # noqa: PTH101


def test_two_ingests_at_once_do_not_overwrite_each_other(tmp_path, url):
    """Each has its own content for the same keys: one of them has each key, and the other one says so."""
    sources = []
    for part in range(2):
        folder = tmp_path / f"part{part}"
        folder.mkdir()
        rows = []
        for number in range(150):
            (folder / f"{number}.bin").write_bytes(b"%d %d" % (part, number))
            rows.append({"path": f"{number}.bin", "key": f"k{number}", "label": part})
        sources.append(str(manifest(folder / "m.csv", rows)))
    open_writable(url)
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(lambda source: ingest(source, url), sources))
    assert sum(outcome.written for outcome in outcomes) == 150
    assert sum(outcome.differing.get("label", 0) for outcome in outcomes) == 150
    for payload, label, _ in contents(url).values():
        assert payload.startswith(b"%d " % label)
    assert len(alone(tmp_path)) == 150


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_command_leaves_a_complete_file(tmp_path, url, sent, code):
    program = (
        "import os, signal, sys\n"
        "from headrace.cli.__main__ import main\n"
        "from headrace.store.ingest import ingesting, work\n"
        "ingesting.COPIED = 64\n"
        "ready, seen = work.Ingester._ready, []\n"
        "def counted(ingester, item, loaded):\n"
        "    seen.append(item)\n"
        f"    if len(seen) == 100: os.kill(os.getpid(), {int(sent)})\n"
        "    return ready(ingester, item, loaded)\n"
        "work.Ingester._ready = counted\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    class_folders(tmp_path / "in", 150)
    done = subprocess.run(
        [sys.executable, "-c", program, "ingest", str(tmp_path / "in"), url],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}"}, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert len(alone(tmp_path)) == 64
    assert ingest(str(tmp_path / "in"), url).written == 150 - 64


def test_a_link_to_a_store_is_the_store(tmp_path, url):
    fill(open_writable(url), sample_records())
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "other.db").symlink_to(tmp_path / "store.db")
    linked = open_writable(f"sqlite:///{tmp_path}/links/other.db")
    reader = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    with linked.writer() as writer:
        writer.put([Record("new", b"x", 1, {})])
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM metadata").fetchone()
        writer.put([Record("newer", b"x", 1, {})])
        assert linked._database.log == tmp_path / "store.db-wal"
        assert linked._database.log.stat().st_size
        reader.close()
    assert len(alone(tmp_path)) == 22


def test_a_store_that_is_no_file_is_refused_and_not_waited_for(tmp_path, url):
    os.mkfifo(tmp_path / "store.db")
    for use in (lambda: open_store(url).keys(), lambda: fill(open_writable(url), sample_records())):
        with pytest.raises(StoreRefused, match="is no file"):
            use()


class TestOddRows:
    KEYS = ("é", "e\u0301", "\N{OWL}", "a\0b", "a" * 5000, "../x", "'; DROP TABLE samples; --", " ", "\u202e", "%s")

    def test_any_text_is_a_key(self, tmp_path, url):
        fill(open_writable(url), sample_records(0))
        store = open_writable(url)
        with store.writer() as writer:
            writer.put([Record(key, key.encode(), 1, {}) for key in self.KEYS])
            assert writer.present(self.KEYS) == set(self.KEYS)
            assert set(writer.stored(self.KEYS)) == set(self.KEYS)
        assert set(store.keys()) == set(self.KEYS)
        assert all(store.get(key).payload == key.encode() for key in self.KEYS)
        assert sum(store.remove(self.KEYS)) == len(self.KEYS)
        store.close()

    def test_what_is_no_text_is_a_failure_of_that_row(self, tmp_path, url):
        class_folders(tmp_path / "in", 6)
        with open(os.fsencode(tmp_path / "in" / "cat") + b"/\xff.png", "wb") as file:  # noqa: PTH123
            file.write(picture(1))
        outcome = ingest(str(tmp_path / "in"), url)
        assert outcome.written == 6
        [failure] = outcome.failures
        assert "not UTF-8" in failure.error

    def test_a_row_that_is_too_large_is_a_failure_of_that_row(self, tmp_path, url, monkeypatch):
        writing = Database.writing

        def small(database):
            connection = writing(database)
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 20_000)
            return connection

        monkeypatch.setattr(Database, "writing", small)
        for number, size in enumerate((10, 30_000, 20)):
            (tmp_path / f"{number}.bin").write_bytes(b"x" * size)
        rows = [{"path": f"{number}.bin"} for number in range(3)]
        outcome = ingest(str(manifest(tmp_path / "m.csv", rows)), url)
        assert outcome.written == 2
        assert outcome.failures == (("1.bin", f"{url}: a row is larger than SQLite can hold"),)

    def test_an_integer_that_is_too_large_is_a_failure_of_that_row(self, tmp_path, url):
        (tmp_path / "a.bin").write_bytes(b"x")
        rows = [{"path": "a.bin", "label": 1}, {"path": "a.bin", "label": 10**17}]
        outcome = ingest(str(manifest(tmp_path / "m.csv", rows)), url)
        assert outcome.whole
        rows = [{"path": "a.bin", "grade": 10**30, "label": 1}, {"path": "a.bin", "grade": 2, "label": 1}]
        outcome = ingest(str(manifest(tmp_path / "m.csv", rows)), url, ReadOptions(columns=()))
        assert outcome.whole


def test_classes_that_another_ingest_names_meanwhile_get_other_numbers(tmp_path, url, monkeypatch):
    for name in ("bee", "eel"):
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "a.bin").write_bytes(name.encode())
    name_classes, named = SqliteStore.name_classes, []

    def second(there, numbers):
        if not named:
            named.append(numbers)
            open_writable(url).name_classes({"ant": 0, "dog": 1})
        name_classes(there, numbers)

    monkeypatch.setattr(SqliteStore, "name_classes", second)
    ingest(str(tmp_path / "in"), url)
    assert open_writable(url).class_numbers() == {"ant": 0, "dog": 1, "bee": 2, "eel": 3}
    assert sorted((label, row["class"]) for _, label, row in contents(url).values()) == [(2, "bee"), (3, "eel")]
