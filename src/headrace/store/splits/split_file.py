"""Split files: columns key, split, fold and label, and a JSON text that says how it was made.

Parquet, which any tool reads; or one JSON object where the name ends in ``.json``, which needs nothing installed.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.errors import SplitError
from headrace.store import parquet
from headrace.store.files import replacing
from headrace.store.splits.earlier import changes
from headrace.store.splits.frame import Ints
from headrace.store.splits.result import Splits
from headrace.store.splits.split_report import concerns

FACTS = "headrace.split"
VERSION = 1
MOST_JSON = 1 << 30
"""Bytes of a file that is read at once."""

_NO_COLUMNS = "its columns are not what they should be"


def write(splits: Splits, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Raises ``SplitError`` where the file cannot be written, or is there and ``force`` does not say to replace it."""
    where = Path(path)
    if where.exists() and not force:
        raise SplitError(f"{where}: is there already{_against(where, splits)}; --force (force=True) replaces it")
    rows = len(splits.every)
    fold = [None] * rows if splits.folds is None else [None if fold < 0 else fold for fold in splits.folds.tolist()]
    label = splits.labels or [None] * rows
    named = [splits.names[part] for part in splits.parts.tolist()]
    facts = {
        "version": VERSION,
        "names": list(splits.names),
        **splits.facts,
        "digest": _digest(splits.every, named, fold),
    }
    try:
        if where.suffix == ".json":
            whole = {FACTS: facts, "key": splits.every, "split": named, "fold": fold, "label": label}
            with replacing(where) as beside:
                beside.write_text(json.dumps(whole), "utf-8")
        else:
            coded = (splits.parts, list(splits.names))
            columns = {"key": splits.every, "split": coded, "fold": parquet.Integers(fold), "label": label}
            parquet.write(where, columns, {FACTS: json.dumps(facts)})
    except OSError as error:
        raise SplitError(f"{path}: cannot be written ({error.strerror or error})") from error
    except UnicodeEncodeError as error:
        told = f"{path}: {error.object!r:.80} names a file that is not UTF-8, which Parquet cannot hold"
        raise SplitError(f"{told}; write a file that ends in .json") from error


def _against(path: Path, splits: Splits) -> str:
    """The changes that replacing a file would bring, in words: a training may be going by it."""
    try:
        found = changes(read(path), splits)
    except SplitError:
        return ""
    if not found.both:
        return ", of other samples"
    kept = "; --keep (keep=) leaves every sample where it is" if found.moved else ""
    return f": {found.told()}{kept}"


def _digest(keys: list[str], parts: list[Any], folds: list[Any]) -> str:
    """The digest of which sample is where: what was damaged, or cut off and still has its form, is noticed by it."""
    text = json.dumps([keys, parts, folds], separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def read(path: str | os.PathLike[str]) -> Splits:
    """The splits in a file, without labels. Nothing in it is ever run. Raises ``SplitError`` where it is none."""
    where = Path(path)
    try:
        if not where.is_file():
            raise SplitError(f"{where}: there is no such file" if not where.exists() else f"{where}: is no file")
        facts, columns = _from_json(where) if where.suffix == ".json" else _from_parquet(where)
        return _splits(facts, columns)
    except (OSError, ValueError, parquet.NotParquet, RecursionError) as error:
        if isinstance(error, SplitError):
            raise
        raise SplitError(f"{where}: this is no split file ({' '.join(str(error).split())[:200]})") from error


class _NoSplitFile(ValueError):
    """The reason why a file is no split file."""


def _from_parquet(path: Path) -> tuple[dict[str, Any], Mapping[str, list[Any]]]:
    facts = _facts(path, parquet.facts(path).get(FACTS))
    return facts, parquet.read(path, ("key", "split", "fold"), unique="key")


def _from_json(path: Path) -> tuple[dict[str, Any], Mapping[str, list[Any]]]:
    if path.stat().st_size > MOST_JSON:
        raise _NoSplitFile(f"it has more than {MOST_JSON >> 20} MiB: use Parquet")
    whole = json.loads(path.read_bytes())
    if not isinstance(whole, dict):
        raise _NoSplitFile("it is no JSON object")
    columns = {name: whole.get(name) for name in ("key", "split", "fold")}
    if not all(isinstance(values, list) for values in columns.values()):
        raise _NoSplitFile(_NO_COLUMNS)
    return _facts(path, json.dumps(whole.get(FACTS))), columns  # type: ignore[return-value]  # lists, all of them


def _facts(path: Path, text: str | None) -> dict[str, Any]:
    try:
        facts = json.loads(text or "")
        version, names = facts["version"], facts["names"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise SplitError(f"{path}: this is no split file; `headrace split` makes them") from None
    if type(version) is not int or version != VERSION:
        said = repr(version) if type(version) is int else "nothing"
        raise SplitError(f"{path}: this split file has version {said:.20}, and this headrace reads {VERSION}")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise _NoSplitFile("it does not name its splits")
    if len(set(names)) < len(names):
        raise _NoSplitFile("it names a split twice")
    try:
        concerns(facts)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, IndexError):
        raise _NoSplitFile("what it says of itself cannot be read") from None
    return dict(facts)


def _splits(facts: dict[str, Any], columns: Mapping[str, list[Any]]) -> Splits:
    names = tuple(facts["names"])
    number = {name: part for part, name in enumerate(names)}
    keys, parts = columns.get("key"), columns.get("split")
    if keys is None or parts is None:
        raise _NoSplitFile(_NO_COLUMNS)
    folds = columns.get("fold", [None] * len(keys))
    if not len(keys) == len(parts) == len(folds):
        raise _NoSplitFile(_NO_COLUMNS)
    if not all(isinstance(key, str) for key in keys) or len(set(keys)) < len(keys):
        raise _NoSplitFile("its keys are no texts, or one is there twice")
    if not all(isinstance(part, str) and part in number for part in parts):
        raise _NoSplitFile("it has samples in splits that it does not name")
    numbered = _folds(folds, facts.get("folds"))
    if "digest" in facts and facts["digest"] != _digest(keys, parts, folds):
        raise _NoSplitFile("it is not as it was written: damaged, or edited")
    return Splits(
        names=names,
        every=keys,
        parts=np.fromiter(map(number.__getitem__, parts), np.int64, len(parts)),
        folds=numbered,
        labels=None,
        origin=None,
        facts={name: value for name, value in facts.items() if name not in {"version", "names", "digest"}},
    )


def _folds(folds: list[Any], number: Any) -> Ints | None:
    if number is None and not any(fold is not None for fold in folds):
        return None
    within = type(number) is int and all(fold is None or (type(fold) is int and 0 <= fold < number) for fold in folds)
    if not within:
        raise _NoSplitFile("it has samples in folds that it does not name")
    return np.array([-1 if fold is None else fold for fold in folds], np.int64)


def chosen(address: str) -> tuple[Splits, str]:
    """The splits and the name in ``splits.parquet:train``. Raises ``SplitError``, which says what there is."""
    path, colon, name = address.rpartition(":")
    if not colon or not path:
        splits = read(address)
        there = f"there are {', '.join(splits.names)}; write {address}:{splits.names[0]}"
        raise SplitError(f"{address}: which split? {there}")
    splits = read(path)
    try:
        splits.keys(name)
    except SplitError as error:
        raise SplitError(f"{path}: {error}") from None
    return splits, name
