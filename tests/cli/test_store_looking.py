"""headrace store ls, head and show, on every kind of store that has rows; what ingest says of folders of shards."""

import json
import struct

import pytest

from headrace.cli.__main__ import main
from headrace.core.errors import SplitError
from headrace.dataset import StoreDataset
from headrace.store.locate import open_store
from headrace.store.sqlite import SqliteStore
from tests.cli.test_store_commands import run
from tests.store.ingest.support import class_folders, manifest, picture
from tests.store.test_shards import write_mds

MDS = [("image", "png", None), ("label", "int", 8), ("who", "str", None)]


@pytest.fixture
def folder(tmp_path):
    rows = []
    for number in range(6):
        (tmp_path / f"{number}.png").write_bytes(picture(number))
        rows.append({"path": f"{number}.png", "label": number % 2, "who": f"P{number // 2}", "key": f"k{number}"})
    manifest(tmp_path / "all.csv", rows)
    return tmp_path


@pytest.fixture(params=["sqlite", "mds", "file", "wds"])
def url(request, folder):
    """A store of six pictures, two of them of the patient P1; the first key of it is known."""
    if request.param == "mds":
        rows = [[picture(n), struct.pack("<q", n % 2), f"P{n // 2}".encode()] for n in range(6)]
        write_mds(folder / "set", MDS, [rows[:4], rows[4:]])
        return f"mds://{folder}/set"
    if request.param == "file":
        class_folders(folder / "in", 6)
        return f"file://{folder}/in"
    assert main(["ingest", str(folder / "all.csv"), f"sqlite:///{folder}/s.db"]) == 0
    if request.param == "wds":
        assert main(["store", "export", f"sqlite:///{folder}/s.db", str(folder / "out"), "--tars"]) == 0
        return f"wds://{folder}/out"
    return f"sqlite:///{folder}/s.db"


def told(capsys, *arguments):
    code, out, err = run(capsys, "store", *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_rows_are_listed_and_shown_whatever_the_store(url, capsys, tmp_path):
    found = told(capsys, "ls", url)
    assert (found["rows"], found["chosen"], len(found["samples"])) == (6, 6, 6)
    first = found["samples"][0]
    one = told(capsys, "show", url, first["key"])
    assert {**one, **first} == one
    assert (one["form"], one["bytes"] > 100) == ("png", True)
    assert [each["form"] for each in told(capsys, "head", url, "-n", "2")["samples"]] == ["png", "png"]
    written = told(capsys, "show", url, first["key"], "-o", tmp_path / "one.png")
    assert written["file"] == str(tmp_path / "one.png")
    with StoreDataset(url, [first["key"]], decode=bytes) as dataset:
        assert (tmp_path / "one.png").read_bytes() == dataset[0][0]
    code, out, _ = run(capsys, "store", "ls", url, "--limit", "1", "--columns", "label")
    assert code == 0
    assert "6 rows, 5 not shown: --limit 0 shows all" in out
    assert first["key"] in out


def test_a_few_rows_are_seen_without_reading_all(url, capsys, monkeypatch):
    store = type(open_store(url))
    reads_parts = not url.startswith("wds")  # whose metadata are files beside the samples
    keys = [each["key"] for each in told(capsys, "ls", url)["samples"]]
    if reads_parts:
        monkeypatch.setattr(store, "columns", lambda self, names=None: pytest.fail("all metadata was read"))
        monkeypatch.setattr(store, "keys", lambda self: pytest.fail("all keys were read"))
    assert [each["key"] for each in told(capsys, "ls", url, "--limit", "5")["samples"]] == keys[:5]
    assert [each["key"] for each in told(capsys, "head", url, "-n", "2")["samples"]] == keys[:2]
    assert told(capsys, "show", url, keys[4])["key"] == keys[4]
    code, _, err = run(capsys, "store", "show", url, "no such key")
    assert (code, "no such key" in err) == (2, True)


def test_a_condition_reads_the_columns_it_names(folder, capsys, monkeypatch):
    url = f"sqlite:///{folder}/s.db"
    main(["ingest", str(folder / "all.csv"), url])
    named, columns = [], SqliteStore.columns
    monkeypatch.setattr(SqliteStore, "columns", lambda self, names: columns(self, named.append(names) or names))
    assert told(capsys, "ls", url, "--where", "WHO = 'P1'", "--limit", "1")["samples"][0]["who"] == "P1"
    assert named == [["who"]]


def test_a_condition_chooses_rows_and_samples(folder, capsys):
    url = f"sqlite:///{folder}/s.db"
    main(["ingest", str(folder / "all.csv"), url])
    assert [each["key"] for each in told(capsys, "ls", url, "--where", "who = 'P1'")["samples"]] == ["k2", "k3"]
    listed = told(capsys, "rm", url, "--dry-run", "--where", "who = 'P1'")
    assert (listed["keys"], listed["removed"]) == (["k2", "k3"], 0)
    _, out, _ = run(capsys, "store", "rm", url, "--dry-run", "k2", "k5")
    assert "2 rows would be removed k2 k5" in out
    assert list(StoreDataset(url, where="who = 'P1'").keys) == ["k2", "k3"]
    assert list(StoreDataset(url, ["k5", "k3", "k1"], where="who >= 'P1'").keys) == ["k5", "k3"]
    with pytest.raises(SplitError, match=r"where=\"who = 'P9'\": no sample is left of sqlite"):
        StoreDataset(url, where="who = 'P9'")


def test_a_picture_is_drawn_where_there_is_a_terminal(folder, capsys, monkeypatch):
    url = f"sqlite:///{folder}/s.db"
    main(["ingest", str(folder / "all.csv"), url])
    assert "▀" not in run(capsys, "store", "show", url, "k0")[1]
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert run(capsys, "store", "show", url, "k0")[1].count("▀") > 50
    monkeypatch.setattr("headrace.store.pictures._opened", lambda payload: 1 / 0)
    assert "the picture cannot be drawn: division by zero" in run(capsys, "store", "show", url, "k0")[1]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["show", "URL", "k9"], "has no row with the key 'k9'"),
        (["show", "URL", "k0", "--label"], "the label of 'k0' is no file"),
        (["show", "URL", "k0", "-o", "FOLDER/all.csv"], "is there already"),
        (["head", "URL", "-n", "0"], "0 is no number of rows"),
        (["ls", "URL", "--limit", "-1"], "-1 is no number of rows"),
        (["ls", "URL", "--columns", "age"], "has no column 'age'; it has key, label"),
        (["ls", "URL", "--where", "age > 3"], "there is no column 'age'"),
    ],
)
def test_mistakes_are_one_line(folder, capsys, arguments, complaint):
    url = f"sqlite:///{folder}/s.db"
    main(["ingest", str(folder / "all.csv"), url])
    words = [word.replace("URL", url).replace("FOLDER", str(folder)) for word in arguments]
    code, _, err = run(capsys, "store", *words)
    assert (code, len(err.splitlines())) == (2, 1)
    assert complaint in err


def test_a_key_may_stand_behind_an_option(folder, capsys):
    url = f"sqlite:///{folder}/s.db"
    main(["ingest", str(folder / "all.csv"), url])
    assert run(capsys, "store", "rm", url, "--yes", "k0", "k1")[0] == 0
    assert told(capsys, "ls", url)["rows"] == 4
    assert run(capsys, "store", "rm", "--yes", url, "k2")[0] == 0
    assert told(capsys, "ls", url)["rows"] == 3


class TestShards:
    def test_a_folder_of_shards_is_no_folder_of_samples(self, tmp_path, capsys):
        write_mds(tmp_path / "set", MDS, [[[b"x", struct.pack("<q", 1), b"P"]]])
        target = f"sqlite:///{tmp_path}/s.db"
        code, _, err = run(capsys, "ingest", tmp_path / "set", target)
        assert code == 2
        assert f"shards of MosaicML Streaming in it: write mds://{tmp_path}/set for the samples" in err
        assert f"file://{tmp_path}/set?labels=none for the files themselves" in err
        assert not (tmp_path / "s.db").exists()
        assert run(capsys, "ingest", f"mds://{tmp_path}/set?data=image", target)[0] == 0

    def test_also_where_they_lie_one_folder_below(self, tmp_path, capsys):
        (tmp_path / "in").mkdir()
        write_mds(tmp_path / "in" / "train", MDS, [[[b"x", struct.pack("<q", 1), b"P"]]])
        _, _, err = run(capsys, "ingest", tmp_path / "in", f"sqlite:///{tmp_path}/s.db")
        assert f"(train): write mds://{tmp_path}/in/train" in err

    def test_of_any_library(self, tmp_path, capsys):
        (tmp_path / "lit").mkdir()
        (tmp_path / "lit" / "index.json").write_text('{"chunks": [], "config": {}}')
        _, _, err = run(capsys, "ingest", tmp_path / "lit", f"sqlite:///{tmp_path}/s.db")
        assert "shards of LitData in it" in err

    def test_an_index_of_another_kind_is_a_file_like_others(self, tmp_path, capsys):
        class_folders(tmp_path / "in", 3)
        (tmp_path / "in" / "index.json").write_text("[]")
        assert run(capsys, "ingest", tmp_path / "in", f"sqlite:///{tmp_path}/s.db")[0] == 0
