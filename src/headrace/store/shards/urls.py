"""Stores over shards, from URLs that say what they are and where: ``mds+s3://…``, ``wds+https://…``, ``mds:///…``."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from headrace.core.errors import BadStoreUrl
from headrace.store.base import Store
from headrace.store.shards.formats import Format
from headrace.store.shards.local_shards import LocalShards
from headrace.store.shards.places.brace_lists import is_list
from headrace.store.shards.places.folder_place import FolderPlace
from headrace.store.url import StoreUrl


class KnownFormat(NamedTuple):
    """A format, and the module that reads it."""

    made: str
    options: tuple[str, ...]
    suffixes: tuple[str, ...] = ()
    """Endings of paths that name shards, and not the folder that they are in."""


FORMATS: Mapping[str, KnownFormat] = {
    "mds": KnownFormat("mosaic.mds:MdsFormat", ("data", "label", "split", "streams")),
    "litdata": KnownFormat("lightning.litdata:LitDataFormat", ("data", "label", "block")),
    "files": KnownFormat("plain_objects:FilesFormat", ("labels", "extensions")),
    "parquet": KnownFormat("tables.parquet_shards:ParquetFormat", ("data", "label"), (".parquet",)),
    "wds": KnownFormat("tar_shards.webdataset:TarFormat", ("data", "label", "index"), (".tar", ".json")),
}
PLACES = ("s3", "gs", "az", "https", "http", "file")


def open_shards(url: StoreUrl) -> Store:
    """The store. Nothing is read yet. Raises ``BadStoreUrl`` or ``MissingDriver``."""
    _, where, known = place_of(url)
    folder, names = parted(url.path, known.suffixes)
    if where == "file":
        url.only(known.options)
        if url.hosts or url.user or not url.path.strip("/"):
            raise BadStoreUrl(f"{url.redacted}: write {url.scheme}:///folder")
        return LocalShards(url, _format(known, url, names), FolderPlace(Path(folder)))
    from headrace.store.objects.object_driver import Bucket  # noqa: PLC0415  (an extra)
    from headrace.store.shards.places.bucket_place import BucketPlace  # noqa: PLC0415
    from headrace.store.shards.places.kept_indices import KeptIndices, usual_place  # noqa: PLC0415
    from headrace.store.shards.remote_shards import RemoteShards  # noqa: PLC0415

    bucket = Bucket(url, where, known.options, folder)
    index = url.options.get("index")
    kept = None if index == "none" else KeptIndices(Path(index) if index else usual_place(), bucket.identity)
    return RemoteShards(url, _format(known, url, names), BucketPlace(bucket, url.redacted, kept))


def place_of(url: StoreUrl) -> tuple[str, str, KnownFormat]:
    """The name of the shards' format, the place where they are, and the format that reads them."""
    what, _, where = url.scheme.partition("+")
    if where and where not in PLACES:
        raise BadStoreUrl.at(url.redacted, f"shards are read from {', '.join(PLACES)}, and not from {where!r}")
    return what, where or "file", FORMATS[what]


def _format(known: KnownFormat, url: StoreUrl, names: str) -> Format:
    module, _, name = known.made.partition(":")
    made = getattr(importlib.import_module(f"headrace.store.shards.{module}"), name)
    found: Format = made(url, names) if known.suffixes else made(url)
    return found


def parted(path: str, suffixes: tuple[str, ...]) -> tuple[str, str]:
    """The folder, and what in it is meant; nothing where that is all of it."""
    if not suffixes or not (path.endswith(suffixes) or is_list(path)):
        return path, ""
    parts = path.split("/")
    first = next((number for number, part in enumerate(parts) if is_list(part)), len(parts) - 1)
    first = min(first, len(parts) - 1)
    return "/".join(parts[:first]) or "/", "/".join(parts[first:])
