"""Killed at any moment and begun again, an ingest ends with the store that an undisturbed one makes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from headrace.core.errors import HeadraceError, StoreError, StoreUnavailable
from headrace.store import open_store
from headrace.store.ingest import Encoding, Working, ingest
from headrace.store.ingest.work import Ingester
from tests.store.ingest.support import ROOT, class_folders, contents


def stored(path):
    """Rows there are by now; a store that is not there yet has none."""
    if not path.exists():
        return 0
    store = open_store(f"sqlite:///{path}")
    try:
        return len(store.keys())
    except HeadraceError:
        return 0
    finally:
        store.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_sigkill_in_the_middle(tmp_path, workers):
    path = tmp_path / "killed.db"
    source = "tests.store.ingest.made:held"
    command = [sys.executable, "-m", "headrace.cli.__main__", "ingest", source]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    running = subprocess.Popen(
        [*command, f"sqlite:///{path}", "--workers", str(workers), "--resize", "8"],
        env={**environment, "HELD_FROM": "200"},
        start_new_session=True,
    )
    others = []
    try:
        while stored(path) < 192:  # three chunks; the fourth is held
            assert running.poll() is None, "it ended before it could be killed"
            time.sleep(0.05)
        others = psutil.Process(running.pid).children(recursive=True)
    finally:
        running.kill()
        running.wait()
    _, left = psutil.wait_procs(others, timeout=240)
    assert not left, "its processes outlive it"
    assert stored(path) == 192

    again, whole = (
        subprocess.run(
            [*command, f"sqlite:///{where}", "--resize", "8", "--json"],
            env=environment,
            check=True,
            capture_output=True,
        )
        for where in (path, tmp_path / "whole.db")
    )
    assert [json.loads(done.stdout)["present"] for done in (again, whole)] == [192, 0]
    assert contents(f"sqlite:///{path}") == contents(f"sqlite:///{tmp_path}/whole.db")


def test_processes_end_with_the_one_that_started_them(tmp_path):
    """Idle ones too."""
    program = (
        "import sys, time; from headrace.store.ingest import ingest, Working\n"
        "def hold(tally, total): print('working', flush=True); time.sleep(600)\n"
        f"ingest('tests.store.ingest.made:arrays?count=3', 'sqlite:///{tmp_path}/s.db', working=Working(workers=3),"
        " progress=hold)"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    running = subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)
    with running:
        assert running.stdout.readline() == "working\n"
        others = psutil.Process(running.pid).children(recursive=True)
        assert len(others) >= 3
        running.kill()
        _, left = psutil.wait_procs(others, timeout=240)
        assert not left


def test_processes_store_what_one_would(tmp_path):
    class_folders(tmp_path / "in", 200)
    for number, workers in enumerate((0, 2)):
        outcome = ingest(
            *(str(tmp_path / "in"), f"sqlite:///{tmp_path}/{number}.db", None, Encoding(resize=8)),
            working=Working(workers=workers),
        )
        assert (outcome.written, outcome.failures) == (200, ())
    assert contents(f"sqlite:///{tmp_path}/0.db") == contents(f"sqlite:///{tmp_path}/1.db")


def test_files_that_are_only_copied_are_read_by_threads(tmp_path, monkeypatch):
    """To start processes took longer than to copy thousands of files."""
    monkeypatch.setattr("headrace.store.ingest.ingesting.by_processes", None)
    made = class_folders(tmp_path / "in", 200)
    (tmp_path / "in" / "cat" / "bad.png").write_bytes(b"no picture")
    outcome = ingest(str(tmp_path / "in"), f"sqlite:///{tmp_path}/s.db", working=Working(workers=4))
    assert (outcome.written, len(outcome.failures)) == (200, 1)
    rows = contents(f"sqlite:///{tmp_path}/s.db").values()
    assert {metadata["path"]: payload for payload, _, metadata in rows} == made


def test_an_item_that_kills_its_process_is_one_failure(tmp_path):
    outcome = ingest("tests.store.ingest.deadly:dataset", f"sqlite:///{tmp_path}/s.db", working=Working(workers=2))
    assert outcome.written == 99
    [(item, error)] = outcome.failures
    assert item.endswith(":42")
    assert error == f"its process died twice (exit code -{signal.SIGKILL.value})"


def test_a_store_that_is_gone_ends_it(tmp_path):
    class_folders(tmp_path / "in", 10)
    (tmp_path / "folder.db").mkdir()
    for workers in (0, 2):
        with pytest.raises(HeadraceError, match=r"folder\.db"):
            ingest(str(tmp_path / "in"), f"sqlite:///{tmp_path}/folder.db", working=Working(workers=workers))


class TestWritesThatFail:
    """What a store behind a network may do."""

    def prepared(self, tmp_path, monkeypatch, put):
        class_folders(tmp_path / "in", 5)
        url = f"sqlite:///{tmp_path}/s.db"
        enter = Ingester.__enter__

        def entered(ingester):
            enter(ingester)
            writer = ingester._writer
            original = writer.add
            writer.add = lambda records: put(original, records)
            return ingester

        monkeypatch.setattr(Ingester, "__enter__", entered)
        return str(tmp_path / "in"), url

    def test_a_store_that_does_not_answer_ends_it(self, tmp_path, monkeypatch):
        def put(original, records):
            raise StoreUnavailable("nobody answers")

        with pytest.raises(StoreUnavailable, match="nobody answers"):
            ingest(*self.prepared(tmp_path, monkeypatch, put))

    def test_the_row_at_fault_is_found(self, tmp_path, monkeypatch):
        def put(original, records):
            if any(record.metadata["path"] == "dog/001.png" for record in records):
                raise StoreError("too large")
            return original(records)

        outcome = ingest(*self.prepared(tmp_path, monkeypatch, put))
        assert (outcome.written, outcome.failures) == (4, (("in/dog/001.png", "too large"),))


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_spark_stores_what_one_process_would(tmp_path):
    """On a cluster of two executors, each a process of its own; in a process of its own, because a JVM stays."""
    class_folders(tmp_path / "in", 150)
    (tmp_path / "in" / "cat" / "bad.png").write_bytes(b"no picture")
    command = [sys.executable, "-m", "headrace.cli.__main__", "ingest", tmp_path / "in"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    spark = ["--spark", "local-cluster[2,1,512]", "--spark-conf", "spark.executor.memory=512m", "--resize", "16"]
    done = subprocess.run(
        [*command, f"sqlite:///{tmp_path}/spark.db", *spark],
        env=environment, check=False, capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr[-3000:]
    assert "150 samples written" in " ".join(done.stdout.split())
    assert "in/cat/bad.png: this is no picture that Pillow knows" in done.stdout
    plain = subprocess.run([*command, f"sqlite:///{tmp_path}/plain.db", "--resize", "16"], env=environment, check=False)
    assert plain.returncode == 1
    assert contents(f"sqlite:///{tmp_path}/spark.db") == contents(f"sqlite:///{tmp_path}/plain.db")
    assert Path(tmp_path / "spark.db").exists()
