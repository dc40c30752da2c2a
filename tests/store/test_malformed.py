"""Malformed manifests and SQLite files: an error of one line, or the right data; nothing else, whatever they hold.

`make test` tries a few hundred of each. `make soak` tries ten thousand of each, in processes of their own with a limit
on their memory, so that a crash is a failure of that case and not of the run.
"""

import multiprocessing
import random
import resource
import shutil
import traceback
from pathlib import Path

import pytest

from headrace.core.errors import HeadraceError
from headrace.store import Record, open_store, open_writable
from headrace.store.ingest.source_options import ReadOptions
from headrace.store.ingest.sources.item_source import open_source
from headrace.testing.stores import fill, sample_records
from tests.store import malformed

FEW, MANY, PART = 250, 10_000, 500
PATIENCE_S = 900.0
"""A case takes milliseconds; a process on a busy machine takes minutes to start."""
MEMORY = 6 << 30
"""Address space of a process that tries cases: torch alone maps gigabytes; a size from a file must not."""


def manifest(folder, kind, seed):
    draw = random.Random(seed)
    content = (
        malformed.parquet_manifest(draw)
        if kind == "parquet"
        else malformed.text_manifest(draw, "\t" if kind == "tsv" else ",")
    )
    path = folder / f"m.{kind}"
    path.write_bytes(malformed.damaged(content, draw) if draw.random() < 0.95 else content)
    for number in range(6):
        (folder / f"{number}.dat").write_bytes(b"x")
    source = open_source(
        str(path), ReadOptions(label=draw.choice([None, "label"]), key=draw.choice([None, "key", "note"]))
    )
    shape = source.shape()
    count = 0
    for item in source.items():
        count += 1
        assert isinstance(item.ident, str)
        assert item.label is None or isinstance(item.label, (int, str))
        assert item.key is None or isinstance(item.key, str)
        if item.problem is not None:
            assert item.problem
            assert "\n" not in item.problem
            continue
        try:
            loaded = source.load(item)
        except (OSError, ValueError):
            continue  # a path that leads nowhere, or outside: a failure of that item
        assert loaded.content == b"x" or loaded.content == path.read_bytes()
    assert count == shape.count


def database(folder, kind, seed):
    draw = random.Random(seed)
    path = folder / "a.db"
    records = {record.key: record for record in sample_records()}
    if draw.random() < 0.5:
        malformed.changed_database(path, draw)
    else:
        path.write_bytes(malformed.damaged(path.read_bytes(), draw))
    store = open_store(f"sqlite:///{path}")
    attempts = [
        store.provenance,
        store.info,
        store.keys,
        store.columns,
        store.class_numbers,
        lambda: list(store.origins()),
        *(lambda key=key: checked(store.get(key), records[key]) for key in records),
    ]
    if kind == "writing":
        attempts.insert(0, lambda: written(path))
    try:
        for attempt in attempts:
            try:
                attempt()
            except HeadraceError as error:
                one_line(error)
    finally:
        store.close()


def checked(row, record):
    """Bytes may be others where bits were turned; what they are may not."""
    assert row.key == record.key
    assert isinstance(row.payload, bytes)
    assert isinstance(row.label, int)


def written(path):
    store = open_writable(f"sqlite:///{path}")
    with store.writer() as writer:
        writer.put([Record("new", b"x", 1, {})])
        writer.present(["new"])
        writer.stored(["new", sample_records()[0].key])


def one_line(error):
    text = str(error)
    assert text
    assert "\n" not in text, text


def tried(case, kind, seed, folder):
    folder.mkdir()
    try:
        if case is database:
            shutil.copy(folder.parent / "good.db", folder / "a.db")
        case(folder, kind, seed)
    except HeadraceError as error:
        one_line(error)
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def folder(tmp_path):
    good = open_writable(f"sqlite:///{tmp_path}/good.db")
    fill(good, sample_records())
    good.name_classes({"a": 0, "b": 1})
    good.close()
    return tmp_path


CASES = [(manifest, "csv"), (manifest, "tsv"), (manifest, "parquet"), (database, "reading"), (database, "writing")]
every_case = pytest.mark.parametrize(("case", "kind"), CASES, ids=lambda value: getattr(value, "__name__", value))


@every_case
def test_some_of_each(folder, case, kind):
    for seed in range(FEW if case is manifest else FEW // 2):
        try:
            tried(case, kind, seed, folder / "case")
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def _part(case, kind, first, folder, pipe):
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for seed in range(first, first + PART):
        pipe.send(seed)
        try:
            tried(case, kind, seed, Path(folder) / f"case{first}")
        except BaseException:  # noqa: BLE001  (told to the test)
            pipe.send(f"seed {seed}: {traceback.format_exc()}")
            return
    pipe.send("")


@pytest.mark.soak
@pytest.mark.timeout(3600)
@every_case
def test_ten_thousand_of_each(folder, case, kind):
    context = multiprocessing.get_context("spawn")
    for first in range(0, MANY, PART):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_part, args=(case, kind, first, str(folder), theirs))
        process.start()
        theirs.close()
        last = None
        try:
            while not isinstance(last, str):
                assert ours.poll(PATIENCE_S), f"seed {last} hangs"
                last = ours.recv()
        except EOFError:
            process.join()
            pytest.fail(f"seed {last} ended the process with {process.exitcode}")
        finally:
            process.kill()
            process.join()
            ours.close()
        assert not last, last
