"""Shards that we write: read again by us, by their own libraries, and whole whatever ends the writer."""

import json
import math
import multiprocessing
import os

import pytest

from headrace import store
from headrace.core.errors import BadStoreUrl, StoreError, StoreRefused
from headrace.store import Kind, LabelKind, Record, Schema
from headrace.store.ingest import ReadOptions, Working, ingest
from headrace.store.shards import spool
from headrace.testing.stores import reader
from tests.store.shards.test_peers import run
from tests.store.shards.test_places import url_of

pytestmark = pytest.mark.service

KINDS = {"age": Kind.INTEGER, "dose": Kind.NUMBER, "site": Kind.TEXT, "ok": Kind.TRUTH}


def records(count=20, first=0, labels=LabelKind.INTEGER):
    made = []
    for number in range(first, first + count):
        told = {"age": number, "dose": number / 4, "site": f"s'{number % 3}é", "ok": number % 2 == 0}
        told = told if number % 5 else {**told, "dose": None, "site": None}
        label = {LabelKind.INTEGER: number % 3, LabelKind.BLOB: bytes([number, 0]), LabelKind.NONE: None}[labels]
        made.append(Record(f"key/{number:03}.x", bytes([number]) * (50 * number), label, told))
    return made


def written(url, several, labels=LabelKind.INTEGER, columns=None):
    made = store.open_writable(url)
    made.create(Schema(labels, KINDS if columns is None else columns))
    with made.writer() as writer:
        for part in several:
            writer.put(part)
    assert made.settle()
    made.close()
    return made


def rows_of(url, key):
    """Payload, label and metadata by the keys that were given."""
    opened = store.open_store(url)
    columns = opened.columns()
    names = {name: column.tolist() for name, column in columns.items()}
    with reader(opened) as local:
        rows = {row.key: row for row in local.get_many(names["key"])}
    return {
        names[key][at]: (bytes(rows[own].payload), rows[own].label, {name: names[name][at] for name in KINDS})
        for at, own in enumerate(names["key"])
    }


def expected_of(several, missing=""):
    return {
        each.key: (each.payload, each.label, {name: told(value, missing) for name, value in each.metadata.items()})
        for each in several
    }


def told(value, missing):
    return missing if value is None else value


def same(found, expected):
    assert found.keys() == expected.keys()
    for key, (payload, label, metadata) in expected.items():
        assert found[key][:2] == (payload, label)
        for name, value in metadata.items():
            other = found[key][2][name]
            both_none = value in ("", None) and (
                other in ("", None) or (isinstance(other, float) and math.isnan(other))
            )
            assert other == value or both_none, (key, name)


PLACES = pytest.mark.parametrize("where", ["file", "s3"])


def place(what, where, tmp_path, endpoint, name="set"):
    if where == "file":
        return f"{what}+file://{tmp_path}/{name}"
    return url_of(what, endpoint, f"written/{tmp_path.name}/{name}", f"&index={tmp_path}/i.sqlite" * (what == "wds"))


@PLACES
@pytest.mark.parametrize("labels", list(LabelKind))
def test_mds_is_read_as_it_was_written(tmp_path, endpoint, where, labels):
    url = place("mds", where, tmp_path, endpoint)
    every = records(labels=labels)
    written(url, [every[:7], every[7:]], labels)
    same(rows_of(url, "__key__"), expected_of(every))


@PLACES
@pytest.mark.parametrize("labels", [LabelKind.INTEGER, LabelKind.NONE])
def test_tars_are_read_as_they_were_written(tmp_path, endpoint, where, labels):
    url = place("wds", where, tmp_path, endpoint)
    every = records(labels=labels)
    written(url, [every[:7], every[7:]], labels)
    same(rows_of(url, "__key__"), expected_of(every, None))


@pytest.mark.parametrize("what", ["mds", "wds"])
class TestWriting:
    def test_shards_are_as_large_as_readers_want_them(self, tmp_path, what, monkeypatch):
        monkeypatch.setattr(spool, "SHARD_BYTES", 5000)
        every = records(30)
        written(f"{what}+file://{tmp_path}/a", [[each] for each in every])
        suffix = {"mds": "*.mds", "wds": "*.tar"}[what]
        sizes = [path.stat().st_size for path in sorted((tmp_path / "a").glob(suffix))]
        assert 3 < len(sizes) < 20
        assert all(size >= 5000 for size in sizes[:-1])
        assert not list((tmp_path / "a" / "headrace-parts").iterdir())

    def test_more_can_be_added_and_nothing_is_there_twice(self, tmp_path, what):
        url = f"{what}+file://{tmp_path}/a"
        written(url, [records(5)])
        made = store.open_writable(url)
        made.create(Schema(columns=KINDS))
        with made.writer() as writer:
            keys = [each.key for each in records(8)]
            assert writer.present(keys) == set(keys[:5])
            writer.put(records(3, 5))
            assert writer.present(keys) == set(keys)
            with pytest.raises(StoreRefused, match="cannot be replaced"):
                writer.put(records(1, 6))
        made.settle()
        made.settle()
        assert len(store.open_store(url).keys()) == 8

    def test_a_process_that_is_killed_loses_nothing_it_had_put(self, tmp_path, what):
        url = f"{what}+file://{tmp_path}/a"
        made = store.open_writable(url)
        made.create(Schema(columns=KINDS))
        process = multiprocessing.get_context("spawn").Process(target=put_and_die, args=(url,))
        process.start()
        process.join()
        assert process.exitcode == 9
        with made.writer() as writer:
            assert len(writer.present([each.key for each in records(8)])) == 6
        made.settle()
        assert len(store.open_store(url).keys()) == 6

    def test_settling_that_was_broken_off_is_done_again(self, tmp_path, what, monkeypatch):
        url = f"{what}+file://{tmp_path}/a"
        made = store.open_writable(url)
        made.create(Schema(columns=KINDS))
        with made.writer() as writer:
            writer.put(records(6))
        target = type(made._target)
        delete = target.delete
        monkeypatch.setattr(target, "delete", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            made.settle()
        monkeypatch.setattr(target, "delete", delete)
        made.settle()
        assert len(store.open_store(url).keys()) == 6

    def test_other_columns_labels_and_shards_of_others_are_refused(self, tmp_path, what):
        url = f"{what}+file://{tmp_path}/a"
        made = written(url, [records(2)])
        for schema in (Schema(LabelKind.BLOB, KINDS), Schema(columns={**KINDS, "more": Kind.TEXT})):
            with pytest.raises(StoreError):
                made.create(schema)
        (tmp_path / "a" / "headrace-schema.json").unlink()
        with pytest.raises(StoreRefused, match="that others wrote"):
            made.create(Schema())

    def test_what_is_read_only_is_not_written(self, tmp_path, what):
        for url in (
            f"{what}+http://localhost/x",
            f"parquet+file://{tmp_path}",
            f"wds+file://{tmp_path}/a-{{0..1}}.tar",
        ):
            with pytest.raises(BadStoreUrl, match="can only be read"):
                store.open_writable(url)

    def test_an_ingest_and_one_back(self, tmp_path, what):
        for number in range(9):
            folder = tmp_path / "photos" / "abc"[number % 3]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number}.bin").write_bytes(bytes([number]) * 100)
        url = f"{what}+file://{tmp_path}/a"
        for present in (0, 9):
            outcome = ingest(str(tmp_path / "photos"), url, ReadOptions(), None, Working())
            assert (outcome.written, outcome.present, outcome.failures) == (9 - present, present, ())
        back = f"sqlite:///{tmp_path}/back.db"
        assert ingest(url, back, ReadOptions()).written == 9
        with reader(store.open_store(back)) as made:
            columns = made.columns()
            found = {
                bytes(made.get(key).payload)[0]: label
                for key, label in zip(columns["key"], columns["label"], strict=True)
            }
        assert found == {number: number % 3 for number in range(9)}


def put_and_die(url):
    made = store.open_writable(url)
    with made.writer() as writer:
        writer.put(records(4))
        writer.put(records(2, 4))
        os._exit(9)


def test_mds_has_no_missing_integers_and_says_so(tmp_path):
    made = store.open_writable(f"mds+file://{tmp_path}/a")
    made.create(Schema(columns=KINDS))
    with made.writer() as writer, pytest.raises(StoreError, match=r"'age' has no value, .*\(key 'x'\)"):
        writer.put([Record("x", b"", 1, {})])


def test_their_own_libraries_read_them_bit_for_bit(tmp_path):
    every = records(30)
    written(f"mds+file://{tmp_path}/mds", [every[:11], every[11:]])
    written(f"wds+file://{tmp_path}/wds", [every[:11], every[11:]])
    found = json.loads(run("peers_read.py", tmp_path).splitlines()[-1])
    for number, (each, mds, tar) in enumerate(zip(every, found["mds"], found["wds"], strict=True)):
        assert bytes.fromhex(mds.pop("data")) == bytes.fromhex(tar["data"]) == each.payload
        dose = each.metadata["dose"]
        assert (mds["__key__"], mds["label"], mds["age"], mds["ok"]) == (each.key, number % 3, number, number % 2 == 0)
        assert mds["site"] == (each.metadata["site"] or "")
        assert mds["dose"] == dose or (dose is None and math.isnan(mds["dose"]))
        assert tar["label"] == number % 3
        given = {name: value for name, value in each.metadata.items() if value is not None}
        assert tar["json"] == {**given, "__key__": each.key}
