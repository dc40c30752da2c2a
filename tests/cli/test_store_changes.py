"""headrace store rm, prune and export, as people type them."""

import io
import json
import os
import shlex
import shutil

import numpy as np
import pytest

from headrace.cli.__main__ import main
from headrace.core.errors import IngestError
from headrace.store import Kind, LabelKind, Record, Schema, open_store, open_writable
from headrace.store.catalogues.origin import Origin
from headrace.store.catalogues.pruning import pruning
from headrace.store.ingest import ReadOptions, ingest
from headrace.store.ingest.derived_keys import digest
from headrace.testing.stores import fill, sample_records
from tests.store.ingest.support import class_folders, contents, manifest, picture


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/store.db"


def run(capsys, *arguments, code=0):
    capsys.readouterr()
    got = main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    assert got == code, printed.err + printed.out
    return printed.err if code == 2 else printed.out


def revision(url):
    store = open_store(url)
    try:
        return store.provenance().revision
    finally:
        store.close()


class TestRemoving:
    @pytest.fixture
    def filled(self, tmp_path, url):
        for number in range(12):
            (tmp_path / f"{number}.png").write_bytes(picture(number))
        rows = [{"path": f"{n}.png", "key": f"k{n:02d}", "patient": f"P{n // 4}", "label": n % 2} for n in range(12)]
        ingest(str(manifest(tmp_path / "m.csv", rows)), url)
        return url

    def test_keys(self, filled, capsys):
        before = revision(filled)
        out = run(capsys, "store", "rm", filled, "k03", "k05", "--yes")
        assert "2 rows removed" in out
        assert len(contents(filled)) == 10
        assert "k03" not in contents(filled)
        assert revision(filled) != before
        out = run(capsys, "store", "rm", filled, "k03", "k04", "--yes", "--json", code=1)
        assert json.loads(out)["missing"] == ["k03"]
        assert json.loads(out)["removed"] == 1

    def test_where(self, filled, capsys, tmp_path):
        out = run(capsys, "store", "rm", filled, "--where", "patient = 'P1'", "--dry-run")
        assert "4 rows would be removed" in out
        assert len(contents(filled)) == 12
        payload = contents(filled)["k04"][0]
        assert payload in (tmp_path / "store.db").read_bytes()
        run(capsys, "store", "rm", filled, "--where", "patient = 'P1'", "--yes")
        assert set(contents(filled)) == {f"k{n:02d}" for n in (*range(4), *range(8, 12))}
        assert payload not in (tmp_path / "store.db").read_bytes()  # a patient's picture is gone for good
        assert "0 rows removed" in run(capsys, "store", "rm", filled, "--where", "patient = 'nobody'", "--yes")

    def test_a_key_in_a_file_is_a_whole_line(self, url, capsys, tmp_path):
        fill(
            open_writable(url), [record._replace(key=key) for record, key in zip(sample_records(2), "ab", strict=False)]
        )
        (tmp_path / "keys").write_text("a\u2028b\n")
        run(capsys, "store", "rm", url, "--keys-from", tmp_path / "keys", "--yes", code=1)
        assert sorted(contents(url)) == ["a", "b"]

    def test_keys_from_a_file(self, filled, capsys, tmp_path):
        (tmp_path / "keys").write_text("k00\nk11\n")
        run(capsys, "store", "rm", filled, "--keys-from", tmp_path / "keys", "--yes")
        assert len(contents(filled)) == 10

    def test_it_asks(self, filled, capsys, monkeypatch):
        monkeypatch.setattr("sys.stdin", io.StringIO(""))
        assert "There is nobody to ask: --yes" in run(capsys, "store", "rm", filled, "k00", code=2)
        for answer, rows in (("n\n", 12), ("\n", 12), ("y\n", 11)):
            asked = io.StringIO(answer)
            asked.isatty = lambda: True
            monkeypatch.setattr("sys.stdin", asked)
            run(capsys, "store", "rm", filled, "k00", code=0 if answer == "y\n" else 2)
            assert len(contents(filled)) == rows

    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            ([], "which rows?"),
            (["k00", "--where", "label = 1"], "which rows?"),
            (["--where", "label ="], "where: "),
            (["--where", "weight = 1"], "where: "),
            (["--keys-from", "/no/such/file"], "cannot be read"),
        ],
    )
    def test_a_mistake_is_one_line(self, filled, capsys, arguments, complaint):
        err = run(capsys, "store", "rm", filled, *arguments, "--yes", code=2)
        assert complaint in err.splitlines()[0]

    def test_a_store_that_is_only_read_says_so(self, tmp_path, capsys):
        class_folders(tmp_path / "in", 3)
        err = run(capsys, "store", "rm", f"file://{tmp_path}/in", "cat/000.png", "--yes", code=2)
        assert "cannot be removed" in err
        assert (tmp_path / "in" / "cat" / "000.png").exists()


class TestPruning:
    @pytest.fixture
    def filled(self, tmp_path, url):
        class_folders(tmp_path / "in", 9)
        ingest(str(tmp_path / "in"), url)
        return url

    def test_files_that_are_gone(self, filled, tmp_path, capsys):
        assert "0 rows removed" in run(capsys, "store", "prune", filled, "--yes")
        (tmp_path / "in" / "cat" / "003.png").unlink()
        out = run(capsys, "store", "prune", filled, "--dry-run")
        assert "in/cat/003.png (gone)" in out
        assert "1 rows would be removed" in out
        run(capsys, "store", "prune", filled, "--yes")
        assert "cat/003.png" not in {m["path"] for _, _, m in contents(filled).values()}
        assert len(contents(filled)) == 8

    def test_files_that_were_replaced(self, filled, tmp_path, capsys):
        (tmp_path / "in" / "cat" / "000.png").write_bytes(picture(99))
        ingest(str(tmp_path / "in"), filled)
        assert len(contents(filled)) == 10
        out = json.loads(run(capsys, "store", "prune", filled, "--yes", "--json"))
        assert [(row["place"], row["why"]) for row in out["chosen"]] == [("in/cat/000.png", "replaced")]
        assert {p for p, _, m in contents(filled).values() if m["path"] == "cat/000.png"} == {picture(99)}

    def test_what_a_manifest_names_no_more(self, tmp_path, url, capsys):
        rows = [{"path": f"{number}.png", "label": number} for number in range(6)]
        for number in range(6):
            (tmp_path / f"{number}.png").write_bytes(picture(number))
        path = manifest(tmp_path / "m.csv", rows)
        ingest(str(path), url)
        class_folders(tmp_path / "other", 3)
        manifest(path, rows[:4])
        ingest(str(tmp_path / "other"), url)
        run(capsys, "store", "prune", url, path, "--yes")
        left = {m["path"] for _, _, m in contents(url).values()}
        assert left == {*(f"{number}.png" for number in range(4)), "cat/000.png", "dog/001.png", "owl/002.png"}

    def test_a_disk_that_is_not_mounted_costs_nothing(self, filled, tmp_path, capsys):
        shutil.rmtree(tmp_path / "in")
        for folder in (False, True):
            if folder:
                (tmp_path / "in").mkdir()
            assert "is a disk not mounted" in run(capsys, "store", "prune", filled, "--yes", code=2)
        assert len(contents(filled)) == 9

    def test_another_source_is_a_mistake(self, filled, tmp_path, capsys):
        class_folders(tmp_path / "strange", 3)
        assert "no row came from" in run(capsys, "store", "prune", filled, tmp_path / "strange", "--yes", code=2)

    def test_rows_of_unknown_origin_stay(self, url, capsys):
        fill(open_writable(url), sample_records())
        assert "20 rows have no file that is known" in run(capsys, "store", "prune", url, "--yes")
        assert len(contents(url)) == 20

    def test_which_rows_lost_what_they_were_made_of(self, tmp_path):
        def origin(place, content=b"old", source="s", root=str(tmp_path)):
            return Origin(source, root, place, digest([content]), "", "run")

        rows = [
            ("1", origin("a")),
            ("2", origin("b")),
            ("3", origin("a", b"new")),
            ("4", origin("x\0row")),
            ("5", origin("t", b"", "tar", None)),
        ]
        with pytest.raises(IngestError, match="none of the 4 files"):
            pruning(7, rows)
        (tmp_path / "x").touch()
        for now, replaced in ((b"old", "3"), (b"other", None), (b"new", "1")):
            (tmp_path / "a").write_bytes(now)
            found = pruning(7, rows)
            assert found.keys == {"2": "gone", **({replaced: "replaced"} if replaced else {})}
            assert found.unknown == 3
        found = pruning(7, rows, {"s": {"a"}})
        assert found.keys == {"1": "replaced", "2": "unnamed", "4": "unnamed"}

    def test_rows_whose_files_cannot_be_read_stay(self, tmp_path):
        def origin(place, content):
            return Origin("s", str(tmp_path), place, content, "", "run")

        (tmp_path / "a").mkdir()
        too_long = "n" * 300
        found = pruning(3, [("1", origin("a", b"1")), ("2", origin("a", b"2")), ("3", origin(too_long, b"3"))])
        assert (found.keys, found.unknown) == ({}, 3)


ODD_PATHS = [
    "ok/1.png", "../out.png", "/abs.png", "labels/x.png", "ok/1.png/deeper.png", "ok", f"ok/{'n' * 300}",
    "samples/00000000.png", "deep/er/1", "deep/er",
]  # fmt: skip


def odd_records(labels):
    """Texts that look like numbers, missing values, paths that lead out, through files, or nowhere."""
    label = {LabelKind.INTEGER: lambda n: n % 3, LabelKind.BLOB: lambda n: picture(n, mode="L"), LabelKind.NONE: None}
    for n in range(30):
        metadata = {"code": f"{n}", "age": n if n % 4 else None, "dose": float(n), "ok": n % 2 == 0}
        metadata |= {"note": f'a, "b"\n{n}', "path": ODD_PATHS[n % len(ODD_PATHS)]}
        payload = [picture(n), np.lib.format.magic(1, 0) + b"x", b"text", b""][n % 4]
        made = label[labels]
        yield Record(f"k/{n}é.x", payload, None if made is None else made(n), metadata)


@pytest.mark.parametrize("labels", list(LabelKind))
@pytest.mark.parametrize("form", ["folder", "tars"])
def test_what_is_exported_can_be_ingested_again(tmp_path, url, capsys, labels, form):
    kinds = {"code": Kind.TEXT, "age": Kind.INTEGER, "dose": Kind.NUMBER, "ok": Kind.TRUTH, "note": Kind.TEXT}
    store = open_writable(url)
    store.create(Schema(labels, {**kinds, "path": Kind.TEXT}))
    with store.writer() as writer:
        writer.put(list(odd_records(labels)))
    more = ["--tars", "--shard-size", "4K"] if form == "tars" else []
    out = json.loads(run(capsys, "store", "export", url, tmp_path / "out", *more, "--json"))
    assert out["samples"] == 30
    if form == "tars":
        assert len(list((tmp_path / "out").iterdir())) > 3
    outside = {path.name for path in tmp_path.iterdir()}
    assert outside == {"store.db", "out"}
    other = f"sqlite:///{tmp_path}/again.db"
    words = [other if word == "STORE" else word for word in shlex.split(out["ingest"])]
    run(capsys, *words[1:], "--check", "none")

    def known(url):
        return {
            key: (payload, label, {**metadata, "path": None})
            for key, (payload, label, metadata) in contents(url).items()
        }

    assert known(other) == known(url)


class TestExporting:
    def test_paths_and_classes_are_kept(self, tmp_path, url, capsys):
        made = class_folders(tmp_path / "in", 9)
        ingest(str(tmp_path / "in"), url, ReadOptions(key="path"))
        run(capsys, "store", "export", url, tmp_path / "out", "--where", "class != 'owl'")
        assert {str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*.png")} == {
            path for path in made if not path.startswith("owl")
        }
        run(capsys, "store", "export", url, tmp_path / "all")
        ingest(str(tmp_path / "all" / "manifest.csv"), f"sqlite:///{tmp_path}/again.db")
        assert contents(f"sqlite:///{tmp_path}/again.db") == contents(url)

    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            (["{folder}"], "is there already"),
            (["{folder}/x", "--shard-size", "1G"], "--shard-size is about tars"),
            (["{folder}/x", "--tars", "--shard-size", "much"], "--shard-size takes a positive number of bytes"),
            (["/dev/null/x"], "cannot be written"),
        ],
    )
    def test_a_mistake_is_one_line(self, tmp_path, url, capsys, arguments, complaint):
        fill(open_writable(url), sample_records(3))
        (tmp_path / "folder").mkdir()
        arguments = [argument.format(folder=tmp_path / "folder") for argument in arguments]
        err = run(capsys, "store", "export", url, *arguments, code=2)
        assert complaint in err
        assert len(err.splitlines()) == 1

    def test_what_did_not_come_to_its_end_has_no_manifest(self, tmp_path, url, capsys):
        store = open_writable(url)
        fill(store, sample_records(5))
        with store.writer() as writer:
            writer._connection.execute("DELETE FROM samples WHERE id = 4")
        run(capsys, "store", "export", url, tmp_path / "out", code=2)
        assert not (tmp_path / "out" / "manifest.csv").exists()
        assert os.listdir(tmp_path / "out")  # noqa: PTH208
