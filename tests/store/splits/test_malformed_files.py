"""Split files that were damaged, or made by somebody else: an error of one line, or the right data."""

import json
import os
import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from headrace.core.errors import SplitError
from headrace.store import parquet
from headrace.store.splits.assignment import split
from headrace.store.splits.result import Splits
from headrace.store.splits.split_file import FACTS, chosen, read
from tests.malformed import ODD, bounded, check_line, damaged, edited

KEYS = [f"k{i}" for i in range(60)]

# Four hundred in every run, and ten thousand others in a long one.
few = pytest.mark.parametrize("seeds", [range(400)], ids=["few"])
many = pytest.mark.parametrize("seeds", [range(n, n + 1000) for n in range(400, 10_400, 1000)], ids=str)


@cache
def whole(ending: str) -> tuple[Splits, bytes]:
    frame = {"key": KEYS, "label": [i % 4 for i in range(60)]}
    made = split(frame, {"train": 0.8, "test": 0.2}, stratify="label", folds=3, seed=7)
    path = Path(f"whole.{ending}")
    made.save(path, force=True)
    return made, path.read_bytes()


def check_one(seed: int, folder: Path) -> bool:
    """Whether it was believed."""
    rng = random.Random(seed)
    ending = rng.choice(["parquet", "parquet", "json"])
    made, content = whole(ending)
    path = folder / f"splits.{ending}"
    way = rng.choice(["damaged", "damaged", "edited"])
    if way == "damaged":
        path.write_bytes(damaged(rng, content))
    elif ending == "json":
        path.write_text(text_of(rng, edited(rng, json.loads(content))), "utf-8", "surrogatepass")
    else:
        write_odd(rng, path)
    try:
        splits, name = chosen(f"{path}:{rng.choice(['train', 'test', 'fold1.val', 'train+test', 'x'])}")
        keys = splits.keys(name)
        splits.concerns()
        repr(splits)
    except SplitError as error:
        check_line(error)
        return False
    if way == "damaged":
        assert set(keys) <= set(KEYS)
        assert np.array_equal(splits.parts, made.parts)
    return True


def write_odd(rng: random.Random, path: Path) -> None:
    """A Parquet file that is whole, with other columns, types and facts than ours."""
    table = pa.parquet.read_table(pa.BufferReader(whole("parquet")[1]))
    facts = json.loads(table.schema.metadata[FACTS.encode()])
    if rng.random() < 0.5:
        facts = edited(rng, facts)
    columns: dict[str, Any] = {name: table.column(name) for name in table.column_names}
    for _ in range(rng.randrange(3)):
        name = rng.choice(list(columns))
        rows = len(columns[name])
        columns[name] = rng.choice(
            [
                lambda rows=rows: pa.nulls(rows),
                lambda rows=rows: pa.array([rng.choice([0, 1, -5, 2**62]) for _ in range(rows)]),
                lambda rows=rows: pa.array([rng.random() for _ in range(rows)]),
                lambda rows=rows: pa.array([["train"]] * rows),
                lambda rows=rows: pa.array([{"a": 1}] * rows),
                lambda rows=rows: pa.array([b"\xff\xfe"] * rows),
                lambda rows=rows: pa.array(["train"] * rows),
                lambda rows=rows: pa.array([rng.choice(["train", "test", "", None]) for _ in range(rows)]),
                lambda rows=rows: pa.array(range(rows), pa.timestamp("ns")),
            ]
        )()
    if rng.random() < 0.2:
        del columns[rng.choice(list(columns))]
    pa.parquet.write_table(pa.table(columns).replace_schema_metadata({FACTS: text_of(rng, facts)}), path)


def text_of(rng: random.Random, value: Any) -> str:
    try:
        return json.dumps(value)
    except RecursionError:
        return rng.choice(["", "[" * 100_000, '{"a":' * 100_000, "null", "1e999"])


def check(seeds: range, folder: Path) -> None:
    with bounded():
        assert sum(check_one(seed, folder) for seed in seeds) < len(seeds) // 2


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    whole.cache_clear()


@few
def test_malformed(seeds, tmp_path):
    check(seeds, tmp_path)


@many
@pytest.mark.soak
def test_many_malformed(seeds, tmp_path):
    check(seeds, tmp_path)


def test_a_small_file_does_not_become_a_large_table(monkeypatch):
    """Rows that are one value are a few bytes in Parquet, however many."""
    _, content = whole("parquet")
    facts = {FACTS: pa.parquet.read_schema(pa.BufferReader(content)).metadata[FACTS.encode()]}
    rows = 1_000_000
    same = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["train"]))
    pa.parquet.write_table(pa.table({"key": same, "split": same}).replace_schema_metadata(facts), "many.parquet")
    long = pa.array(["x" * (8 << 20)])
    pa.parquet.write_table(
        pa.table({"key": long, "split": pa.array(["train"])}).replace_schema_metadata(facts),
        "long.parquet",
        compression="zstd",
        use_dictionary=False,
        write_statistics=False,
    )
    del same, long
    monkeypatch.setattr(parquet, "ROOM", 1 << 20)
    with bounded():
        for name, complaint in (("many", "has a value twice"), ("long", "MiB of memory")):
            assert Path(f"{name}.parquet").stat().st_size < 1 << 20
            with pytest.raises(SplitError, match=complaint):
                read(f"{name}.parquet")


@pytest.mark.parametrize("odd", [value for value in ODD if value != "\udcff"], ids=repr)
def test_json_that_is_something_else(odd, tmp_path):
    (tmp_path / "s.json").write_text(json.dumps(odd))
    with pytest.raises(SplitError, match="no split file"):
        read(tmp_path / "s.json")


def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "s.parquet")
    for name in ("s.parquet", "."):
        with pytest.raises(SplitError, match="is no file"):
            read(tmp_path / name)


def test_a_split_that_is_named_twice_is_not_an_empty_one(tmp_path):
    columns = {"key": ["a"], "split": ["train"], "fold": [None], "label": [None]}
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"headrace.split": {"version": 1, "names": ["train", "val", "train"]}, **columns}))
    with pytest.raises(SplitError, match="names a split twice"):
        read(path)
