"""The contents of a folder or a bucket, told from the names of its objects: so that an error says how to read it."""

import json
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

ENOUGH = 1000
"""Names that are looked at."""
LARGEST = 1 << 20
"""Bytes of an ``index.json`` that are looked at."""
_PACKED = (".zstd", ".br", ".gz", ".bz2", ".snappy")


def format_of(names: Sequence[str]) -> str | None:
    """The format of shards of which some of these are the names, and the others belong to them; else None."""
    kinds = {_kind(name) for name in names}
    if kinds in ({"tar"}, {"tar", "index"}):
        return "wds"
    if kinds in ({"mds"}, {"mds", "index"}):
        return "mds"
    if kinds == {"chunk", "index"}:
        return "litdata"
    return "parquet" if kinds == {"parquet"} else None


def format_told(index: bytes) -> str | None:
    """The format that an ``index.json`` belongs to."""
    try:
        found: Any = json.loads(index)
    except (ValueError, RecursionError):
        return "mds" if b'"format": "mds"' in index else "litdata" if b'"chunk_bytes"' in index else None
    if not isinstance(found, dict):
        return None
    return "mds" if "shards" in found else "litdata" if "chunks" in found else None


def told(names: Sequence[str], index: bytes | None, url: str) -> str:
    """Advice on how the objects are read. ``url``: without what they are. ``index``: the content of ``index.json``,
    if any.
    """
    what = format_told(index) if index is not None else None
    folder = ""
    if what is None:
        top = [name for name in names if "/" not in name]
        what = format_of([name for name in top if _kind(name) in {"tar", "parquet", "mds"}])
    if what is None and names:
        folders = {name.rpartition("/")[0] for name in names if _kind(name) != "other"}
        folder = min(folders, default="")
        inside = [name for name in names if name.rpartition("/")[0] == folder]
        what = format_of([name for name in inside if _kind(name) != "other"]) or "files"
    if what is None:
        return ""
    scheme, _, rest = url.partition("://")
    place, mark, options = rest.partition("?")
    where = f"{place.rstrip('/')}/{folder}" if folder and what != "files" else place
    kinds = {"mds": "MDS shards", "wds": "WebDataset tars", "parquet": "Parquet files", "litdata": "LitData chunks"}
    return (
        f"what lies there are {kinds.get(what, 'plain objects')}: {what}+{scheme}://{where}{mark}{options} reads them"
    )


def _kind(name: str) -> str:
    path = PurePosixPath(name)
    if path.name in {"index.json", "headrace-schema.json"}:
        return "index"
    while path.suffix in _PACKED:
        path = path.with_suffix("")
    return {".tar": "tar", ".mds": "mds", ".parquet": "parquet", ".bin": "chunk"}.get(path.suffix, "other")
