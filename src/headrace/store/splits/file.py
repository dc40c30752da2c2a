"""Split files: Parquet with the columns key and split (and fold, label), and a JSON text that says how it was made."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.errors import SplitError
from headrace.store import parquet
from headrace.store.splits.result import Splits

FACTS = "headrace.split"
VERSION = 1


def write(splits: Splits, path: str | os.PathLike[str]) -> None:
    """Raises ``SplitError`` where the file cannot be written."""
    columns: dict[str, Any] = {"key": splits.every, "split": (splits.parts, list(splits.names))}
    if splits.folds is not None:
        columns["fold"] = [None if fold < 0 else fold for fold in splits.folds.tolist()]
    if splits.labels is not None:
        columns["label"] = splits.labels
    facts = json.dumps({"version": VERSION, "names": list(splits.names), **splits.facts})
    try:
        parquet.write(Path(path), columns, {FACTS: facts})
    except OSError as error:
        raise SplitError(f"{path}: cannot be written ({error.strerror or error})") from error


def read(path: str | os.PathLike[str]) -> Splits:
    """The splits in a file. Nothing in it is ever run. Raises ``SplitError`` where it is no split file."""
    where = Path(path)
    try:
        facts = _facts(where, parquet.facts(where).get(FACTS))
        columns = parquet.read(where)
    except FileNotFoundError as error:
        raise SplitError(f"{where}: there is no such file") from error
    except (OSError, parquet.NotParquet) as error:
        raise SplitError(f"{where}: this is no split file ({error})") from error
    names = tuple(facts["names"])
    number = {name: part for part, name in enumerate(names)}
    keys, parts, folds = columns.get("key"), columns.get("split"), columns.get("fold")
    if keys is None or parts is None or not set(parts) <= set(names) or not all(isinstance(key, str) for key in keys):
        raise SplitError(f"{where}: this is no split file (its columns are not what they should be)")
    return Splits(
        names=names,
        every=keys,
        parts=np.fromiter(map(number.__getitem__, parts), np.int64, len(parts)),
        folds=None if folds is None else np.array([-1 if fold is None else fold for fold in folds], np.int64),
        labels=columns.get("label"),
        origin=None,
        facts={name: value for name, value in facts.items() if name not in {"version", "names"}},
    )


def _facts(path: Path, text: str | None) -> dict[str, Any]:
    try:
        facts = json.loads(text or "")
        version, names = facts["version"], facts["names"]
    except (ValueError, TypeError, KeyError):
        raise SplitError(f"{path}: this is a Parquet file, but no split file; `headrace split` makes them") from None
    if version != VERSION or not isinstance(names, list):
        raise SplitError(f"{path}: this split file has version {version}, and this headrace reads {VERSION}")
    return dict(facts)


def chosen(address: str) -> tuple[Splits, str]:
    """The splits and the name in ``splits.parquet:train``. Raises ``SplitError``, which says what there is."""
    path, colon, name = address.rpartition(":")
    if not colon or not path:
        splits = read(address)
        raise SplitError(f"{address}: which split? {_example(address, splits)}")
    splits = read(path)
    try:
        splits.keys(name)
    except SplitError as error:
        raise SplitError(f"{path}: {error}") from None
    return splits, name


def _example(path: str, splits: Splits) -> str:
    return f"there are {', '.join(splits.names)}; write {path}:{splits.names[0]}"
