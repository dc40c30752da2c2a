"""Split files: what was written is read, whoever wrote it cannot run anything, mistakes are named."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from headrace.core.errors import SplitError
from headrace.store.splits.assignment import split
from headrace.store.splits.split_file import chosen, read

FRAME = {
    "key": [f"k{i}" for i in range(100)],
    "label": [i % 4 for i in range(100)],
    "who": [i // 5 for i in range(100)],
}


@pytest.fixture
def path(tmp_path):
    made = split(
        FRAME, {"train": 0.8, "test": 0.2}, group_by="who", stratify="label", folds=3, where="label < 3", seed=7
    )
    made.save(tmp_path / "splits.parquet")
    return tmp_path / "splits.parquet"


def test_it_says_the_same_when_it_is_read(path):
    made = split(
        FRAME, {"train": 0.8, "test": 0.2}, group_by="who", stratify="label", folds=3, where="label < 3", seed=7
    )
    found = read(path)
    assert (found.names, found.every) == (made.names, made.every)
    assert np.array_equal(found.parts, made.parts)
    assert np.array_equal(found.folds, made.folds)
    assert found.facts == json.loads(json.dumps(made.facts))
    assert found.keys("fold1.train+test") == made.keys("fold1.train+test")
    assert repr(found) == repr(made)
    with pytest.raises(SplitError, match="does not know the frame"):
        found.rows("train")


def test_any_tool_can_read_it(path):
    table = pa.parquet.read_table(path)
    assert table.column_names == ["key", "split", "fold", "label"]
    facts = json.loads(table.schema.metadata[b"headrace.split"])
    assert (facts["seed"], facts["where"], facts["fractions"]) == (7, "label < 3", {"train": 0.8, "test": 0.2})
    assert facts["counts"]["splits"]["train"]["rows"] == table.column("split").to_pylist().count("train")
    assert facts["group_by"] == "who"


def test_a_split_is_named_behind_the_file(path):
    splits, name = chosen(f"{path}:train")
    assert (name, len(splits.keys(name))) == ("train", 59)
    with pytest.raises(SplitError, match=r"splits\.parquet: there is no split 'valid'; there are train, test, fold0"):
        chosen(f"{path}:valid")
    with pytest.raises(SplitError, match=r"no split 'fold3\.val'"):
        chosen(f"{path}:fold3.val")
    with pytest.raises(SplitError, match=r"which split\? there are train, test; write .*splits\.parquet:train"):
        chosen(str(path))


def test_what_is_no_split_file_is_refused(path, tmp_path):
    with pytest.raises(SplitError, match="no such file"):
        chosen(f"{tmp_path}/none.parquet:train")
    (tmp_path / "text").write_text("train,test")
    with pytest.raises(SplitError, match="this is no split file"):
        read(tmp_path / "text")
    pa.parquet.write_table(pa.table({"key": ["a"]}), tmp_path / "other.parquet")
    with pytest.raises(SplitError, match="this is no split file; `headrace split` makes them"):
        read(tmp_path / "other.parquet")
    said = json.loads(pa.parquet.read_schema(path).metadata[b"headrace.split"])
    facts = {"headrace.split": json.dumps({name: value for name, value in said.items() if name != "digest"})}
    for columns, complaint in [
        ({"key": ["a"], "split": ["x"]}, "in splits that it does not name"),
        ({"key": ["a", "a"], "split": ["train", "test"]}, "has a value twice"),
        ({"key": [1], "split": ["train"]}, "its keys are no texts"),
        ({"key": ["a"]}, "columns are not what they should be"),
        ({"key": ["a"], "split": ["train"], "fold": [3]}, "in folds that it does not name"),
        ({"key": ["a"], "split": ["train"], "fold": ["0"]}, "in folds that it does not name"),
    ]:
        pa.parquet.write_table(pa.table(columns).replace_schema_metadata(facts), tmp_path / "odd")
        with pytest.raises(SplitError, match=complaint):
            read(tmp_path / "odd")
    few = {"headrace.split": json.dumps({"version": 1, "names": ["train"]})}
    pa.parquet.write_table(pa.table({"key": ["a"], "split": ["train"]}).replace_schema_metadata(few), tmp_path / "few")
    with pytest.raises(SplitError, match="what it says of itself cannot be read"):
        read(tmp_path / "few")
    later = {"headrace.split": json.dumps({"version": 9, "names": ["train"]})}
    pa.parquet.write_table(pa.table({"key": ["a"]}).replace_schema_metadata(later), tmp_path / "later")
    with pytest.raises(SplitError, match="has version 9"):
        read(tmp_path / "later")


def test_it_is_written_whole_or_not_at_all(path, tmp_path):
    with pytest.raises(SplitError, match="cannot be written"):
        read(path).save(tmp_path / "no such folder" / "splits.parquet")
    assert [entry.name for entry in tmp_path.iterdir()] == ["splits.parquet"]


def test_a_file_that_is_there_is_not_replaced(path):
    before = path.read_bytes()
    other = split(FRAME, {"all": 1})
    with pytest.raises(SplitError, match=r"is there already: 75 of 75 samples would change sides .*--force"):
        other.save(path)
    assert path.read_bytes() == before
    other.save(path, force=True)
    assert read(path).names == ("all",)


@pytest.mark.parametrize("ending", ["parquet", "json"])
@pytest.mark.parametrize("name", [None, "label"])
def test_all_columns_are_there_whatever_was_asked_for(tmp_path, ending, name):
    made = split({"key": ["a", "b"], **({} if name is None else {name: [1, 0]})}, {"all": 1})
    path = tmp_path / f"splits.{ending}"
    made.save(path)
    table = json.loads(path.read_text()) if ending == "json" else pa.parquet.read_table(path).to_pydict()
    label = [None, None] if name is None else [1, 0]
    assert {column: table[column] for column in ("key", "split", "fold", "label")} == {
        "key": ["a", "b"],
        "split": ["all", "all"],
        "fold": [None, None],
        "label": label,
    }
    assert (read(path).every, read(path).folds) == (["a", "b"], None)


def test_json_says_the_same_without_pyarrow(path, tmp_path, monkeypatch):
    made = split(FRAME, {"train": 0.8, "test": 0.2}, stratify="label", folds=3, seed=7)
    monkeypatch.setattr("headrace.store.parquet._pyarrow", None)
    made.save(tmp_path / "splits.json")
    found, name = chosen(f"{tmp_path}/splits.json:fold1.train")
    assert found.keys(name) == made.keys(name)
    assert np.array_equal(found.parts, made.parts)
    assert np.array_equal(found.folds, made.folds)
    assert found.facts == json.loads(json.dumps(made.facts))
    assert not list(tmp_path.glob(".splits*"))


def test_keys_that_are_no_text_need_json(tmp_path):
    made = split({"key": ["a\udcff", "b"]}, {"all": 1.0})
    with pytest.raises(SplitError, match=r"names a file that is not UTF-8.*\.json"):
        made.save(tmp_path / "splits.parquet")
    made.save(tmp_path / "splits.json")
    assert read(tmp_path / "splits.json").keys("all") == ["a\udcff", "b"]


def test_a_file_that_was_cut_and_still_has_its_form(path):
    table = pa.parquet.read_table(path)
    for rows in (0, 59):
        pa.parquet.write_table(table.slice(0, rows), path)
        with pytest.raises(SplitError, match="not as it was written: damaged, or edited"):
            read(path)
