"""Split files: what was written is read, whoever wrote it cannot run anything, mistakes are named."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from headrace.core.errors import SplitError
from headrace.store.splits.division import split
from headrace.store.splits.file import chosen, read

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
    assert (found.names, found.every, found.labels) == (made.names, made.every, made.labels)
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
    assert (name, len(splits.keys(name))) == ("train", 60)
    with pytest.raises(SplitError, match=r"splits\.parquet: there is no split 'valid'; there are train, test, fold0"):
        chosen(f"{path}:valid")
    with pytest.raises(SplitError, match=r"no split 'fold3\.val'"):
        chosen(f"{path}:fold3.val")
    with pytest.raises(SplitError, match=r"which split\? there are train, test; write .*splits\.parquet:train"):
        chosen(str(path))


def test_what_is_no_split_file_is_refused(tmp_path):
    with pytest.raises(SplitError, match="no such file"):
        chosen(f"{tmp_path}/none.parquet:train")
    (tmp_path / "text").write_text("train,test")
    with pytest.raises(SplitError, match="this is no split file"):
        read(tmp_path / "text")
    pa.parquet.write_table(pa.table({"key": ["a"]}), tmp_path / "other.parquet")
    with pytest.raises(SplitError, match="a Parquet file, but no split file"):
        read(tmp_path / "other.parquet")
    facts = {"headrace.split": json.dumps({"version": 1, "names": ["train"]})}
    pa.parquet.write_table(pa.table({"key": ["a"], "split": ["x"]}).replace_schema_metadata(facts), tmp_path / "odd")
    with pytest.raises(SplitError, match="columns are not what they should be"):
        read(tmp_path / "odd")
    later = {"headrace.split": json.dumps({"version": 9, "names": ["train"]})}
    pa.parquet.write_table(pa.table({"key": ["a"]}).replace_schema_metadata(later), tmp_path / "later")
    with pytest.raises(SplitError, match="has version 9"):
        read(tmp_path / "later")


def test_it_is_written_whole_or_not_at_all(path, tmp_path):
    with pytest.raises(SplitError, match="cannot be written"):
        read(path).save(tmp_path / "no such folder" / "splits.parquet")
    assert [entry.name for entry in tmp_path.iterdir()] == ["splits.parquet"]
