"""headrace ingest, split and store info as people type them: tables, JSON, exit codes, one line for a mistake."""

import json
import re
import shlex
import sys

import pyarrow as pa
import pyarrow.parquet
import pytest

from headrace.cli.__main__ import main
from headrace.core.errors import SplitError
from headrace.dataset import StoreDataset
from headrace.store.splits.split_file import chosen, read
from tests.store.ingest.support import class_folders, contents, manifest, picture


@pytest.fixture
def store(tmp_path):
    rows = []
    for number in range(60):
        (tmp_path / f"{number}.png").write_bytes(picture(number % 50))
        label = "cat" if number % 3 else "dog"
        rows.append({"path": f"{number}.png", "label": label, "patient": f"P{number // 4}", "age": number})
    url = f"sqlite:///{tmp_path}/store.db"
    assert main(["ingest", str(manifest(tmp_path / "all.csv", rows)), url]) == 0
    return url


def run(capsys, *arguments):
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return code, " ".join(printed.out.split()), printed.err


class TestIngest:
    def test_says_what_it_did(self, tmp_path, capsys):
        class_folders(tmp_path / "in", 9)
        url = f"sqlite:///{tmp_path}/s.db"
        code, out, _ = run(capsys, "ingest", tmp_path / "in", url)
        assert code == 0
        assert "9 samples written" in out
        code, out, _ = run(capsys, "ingest", tmp_path / "in", url, "--json")
        assert (code, json.loads(out)["present"], json.loads(out)["failed"]) == (0, 9, [])

    def test_failures_are_listed_and_counted_in_the_exit_code(self, tmp_path, capsys):
        class_folders(tmp_path / "in", 3)
        for number in range(25):
            (tmp_path / "in" / "cat" / f"bad{number:02d}.png").write_bytes(b"?")
        code, out, _ = run(capsys, "ingest", tmp_path / "in", f"sqlite:///{tmp_path}/s.db", "--encode", "jpg")
        assert code == 1
        assert "3 samples written" in out
        assert "25 failed" in out
        assert "in/cat/bad00.png: it is called .png and is no picture" in out
        assert "and 5 more; --json lists them all" in out
        code, out, _ = run(capsys, "ingest", tmp_path / "in", f"sqlite:///{tmp_path}/s.db", "--encode", "jpg", "--json")
        assert (code, len(json.loads(out)["failed"])) == (1, 25)

    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            (["{in}", "nonsense"], "names no store"),
            (["{in}", "file:///tmp/x"], "can only be read"),
            (["/no/such/folder", "{url}"], "there is no such folder or file"),
            (["{in}", "{url}", "--resize", "big"], "neither a number of pixels nor WIDTHxHEIGHT"),
            (["{in}", "{url}", "--encode", "doc"], "'doc' is not among jpeg, png"),
            (["{in}", "{url}", "--types", "age=float"], "'float' is not integer, number, text or truth"),
            (["{in}", "{url}", "--workers", "-1"], "-1 is no number of processes"),
            (["{in}", "{url}", "--workers", "2", "--spark", "local"], "with Spark its cluster does the work"),
            (["{in}", "{url}", "--spark-conf", "a=b"], "--spark-conf needs --spark"),
            (["{in}", "{url}", "--label-files", "mask"], "label-files is not for stores"),
            (["sqlite:///{in}/none.db", "{url}"], "there is no file"),
            (["{in}", "sqlite:////dev/null/s.db"], "/dev/null cannot be made: File exists"),
            (["n" * 300, "{url}"], "nnn: File name too long"),
        ],
    )
    def test_a_mistake_is_one_line(self, tmp_path, capsys, arguments, complaint):
        class_folders(tmp_path / "in", 3)
        places = {"in": tmp_path / "in", "url": f"sqlite:///{tmp_path}/s.db"}
        code, _, err = run(capsys, "ingest", *(argument.format(**places) for argument in arguments))
        assert code == 2
        assert err.startswith("headrace ingest: ")
        assert complaint in err
        assert len(err.splitlines()) == 1

    def test_passwords_are_not_repeated(self, tmp_path, capsys):
        class_folders(tmp_path / "in", 3)
        for url in ("cassandra://me:hunter2@127.0.0.1:1/keys/table?connect_timeout=1", "nope://me:hunter2@host/x"):
            code, out, err = run(capsys, "ingest", tmp_path / "in", url)
            assert code == 2
            assert "hunter2" not in out + err
            code, out, err = run(capsys, "store", "info", url)
            assert "hunter2" not in out + err


class TestInfo:
    def test_table(self, store, capsys):
        code, out, _ = run(capsys, "store", "info", store)
        assert code == 0
        assert "samples 60" in out
        assert "path (text), patient (text), age (integer), class (text)" in out
        assert "cat 40 66.7%" in out

    def test_json(self, store, capsys):
        _, out, _ = run(capsys, "store", "info", store, "--json")
        data = json.loads(out)
        assert (data["samples"], data["labels"], data["classes"]) == (60, "integer", {"cat": 40, "dog": 20})
        assert data["columns"]["age"] == "integer"
        assert data["payload_bytes"] == sum(len(payload) for payload, _, _ in contents(store).values())

    def test_mistakes(self, tmp_path, capsys):
        code, _, err = run(capsys, "store", "info", f"sqlite:///{tmp_path}/none.db")
        assert (code, len(err.splitlines())) == (2, 1)
        assert "there is no file" in err


class TestSplit:
    @pytest.mark.parametrize(("installed", "named"), [(True, "splits.parquet"), (False, "splits.json")])
    def test_a_base_install_writes_what_it_can_read(self, store, tmp_path, capsys, monkeypatch, installed, named):
        monkeypatch.chdir(tmp_path)
        if not installed:
            monkeypatch.setitem(sys.modules, "pyarrow", None)
        code, out, _ = run(capsys, "split", store, "--fractions", "train=0.5,test=0.5", "--json")
        assert (code, json.loads(out)["file"]) == (0, named)
        splits, name = chosen(f"{named}:train")
        assert len(splits.keys(name)) == json.loads(out)["counts"]["splits"]["train"]["rows"]

    def test_file_and_table(self, store, tmp_path, capsys):
        file = tmp_path / "splits.parquet"
        code, out, _ = run(
            *(capsys, "split", store, "--fractions", "train=0.5,test=0.5", "--group-by", "patient"),
            *("--stratify", "class", "--where", "age < 40", "--folds", 2, "--seed", 7, "-o", file),
        )
        assert code == 0
        assert "train 20 50.00% 50.00% 5" in out
        assert "40 samples in" in out
        table = pa.parquet.read_table(file)
        facts = json.loads(table.schema.metadata[b"headrace.split"])
        assert (facts["store"], facts["where"], facts["seed"]) == (store, "age < 40", 7)
        assert set(table.column("key").to_pylist()) < set(contents(store))
        assert set(table.column("label").to_pylist()) == {0, 1}

    def test_json(self, store, tmp_path, capsys):
        _, out, _ = run(
            *(capsys, "split", store, "--fractions", "train=0.5, test=0.5", "--stratify", " class "),
            *("--balance", "train=uniform", "-o", tmp_path / "s.parquet", "--json"),
        )
        counts = json.loads(out)["counts"]["splits"]
        assert counts["train"]["classes"] == {"cat": 10, "dog": 10}
        assert counts["test"]["classes"] == {"cat": 20, "dog": 10}
        _, out, _ = run(
            *(capsys, "split", store, "--fractions", "all=1", "--stratify", "label", "--balance", "cat=1,dog=2"),
            *("-o", tmp_path / "t.json", "--json"),
        )
        assert json.loads(out)["counts"]["splits"]["all"]["classes"] == {"cat": 10, "dog": 20}

    def test_a_file_that_is_there_is_not_replaced(self, store, tmp_path, capsys):
        file = tmp_path / "s.parquet"
        assert run(capsys, "split", store, "--fractions", "train=0.5,test=0.5", "-o", file)[0] == 0
        before = file.read_bytes()
        code, _, err = run(capsys, "split", store, "--fractions", "a=0.5,b=0.5", "-o", file)
        assert (code, len(err.splitlines())) == (2, 1)
        assert "is there already" in err
        assert "--force" in err
        assert file.read_bytes() == before
        assert run(capsys, "split", store, "--fractions", "a=0.5,b=0.5", "-o", file, "--force")[0] == 0
        assert file.read_bytes() != before

    def test_when_the_store_has_changed_samples_stay_where_they_were(self, store, tmp_path, capsys):
        old, new = tmp_path / "old.json", tmp_path / "new.json"
        assert (
            run(capsys, "split", store, "--fractions", "train=0.8,test=0.2", "--group-by", "patient", "-o", old)[0] == 0
        )
        splits = read(old)
        assert run(capsys, "store", "rm", store, "--yes", splits.keys("train")[0])[0] == 0
        with pytest.raises(SplitError, match=r"1 of \d+ keys are not in sqlite") as caught:
            StoreDataset(store, split=f"{old}:train")
        said = re.search("`headrace (.*)`", str(caught.value))[1].replace("NEW", str(new))
        code, out, _ = run(capsys, *shlex.split(said))
        assert code == 0
        assert "59 samples are where they were, 0 are new, 1 went" in out
        assert splits.keys("train")[0] in out
        assert read(new).keys("test") == splits.keys("test")
        assert read(new).keys("train") == splits.keys("train")[1:]
        assert len(StoreDataset(store, split=f"{new}:train")) == len(splits.keys("train")) - 1
        code, _, err = run(capsys, "split", store, "--fractions", "train=0.5,test=0.5", "--seed", "3", "-o", new)
        assert code == 2
        assert re.search(r"\d+ of 59 samples would change sides \(.*--keep .*--force", err)

    def test_what_came_out_otherwise_is_said(self, store, tmp_path, capsys):
        arguments = [
            *("split", store, "--fractions", "train=0.88,test=0.02", "--group-by", "patient"),
            *("--where", "patient = 'P0' OR patient = 'P1'", "-o", tmp_path / "s.parquet"),
        ]
        code, _, err = run(capsys, *arguments)
        assert (code, len(err.splitlines())) == (2, 1)
        assert "test is empty" in err
        assert "--allow-empty" in err
        assert not (tmp_path / "s.parquet").exists()
        _, out, _ = run(capsys, *arguments, "--allow-empty")
        assert "test is empty" in out
        assert "fractions add up to 0.9" in out

    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            (["--fractions", "train"], "is not NAME=VALUE"),
            (["--fractions", "train=much"], "'much' is no number"),
            (["--fractions", "train=0.5,train=0.5"], "there twice"),
            (["--fractions", "train=0.9,test=0.9"], "add up to 1.8"),
            ([], "into what?"),
            (["--folds", "3", "--where", "age >"], "where: 'age >': incomplete input"),
            (["--folds", "3", "--where", "weight > 3"], "where: 'weight > 3': there is no column 'weight'"),
            (["--folds", "3", "--group-by", "nobody"], "no column 'nobody'"),
            (["--folds", "3", "--balance", "uniform"], "needs stratify"),
            (["--folds", "3", "-o", "/no/such/folder/s.parquet"], "cannot be written"),
        ],
    )
    def test_a_mistake_is_told_in_words(self, store, capsys, arguments, complaint):
        code, _, err = run(capsys, "split", store, *arguments)
        assert code == 2
        assert complaint in err
