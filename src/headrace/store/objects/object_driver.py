"""The only module that knows the client: objects by name, in any kind of bucket, its errors in our words."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from headrace.core.errors import BadStoreUrl, ClientForked, MissingDriver, StoreError, StoreRefused, StoreUnavailable
from headrace.store.reading.owned import Owned
from headrace.store.shards.shard import DamagedShard, Listed, check_small
from headrace.store.url import StoreUrl

try:
    import obstore
    from obstore import exceptions
    from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store
except ImportError as error:
    raise MissingDriver("stores in buckets need the package obstore: pip install 'headrace[s3]'") from error

NOT_THERE = (FileNotFoundError, exceptions.NotFoundError)
OPTIONS: Mapping[str, Sequence[str]] = {
    "s3": ("endpoint", "region", "password_file", "timeout", "anonymous"),
    "gs": ("endpoint", "password_file", "timeout", "anonymous"),
    "az": ("endpoint", "password_file", "timeout", "anonymous"),
    "https": ("timeout",),
    "http": ("timeout",),
}
"""What may stand behind the ``?``, by where the bucket is."""
_OTHER_BYTES = re.compile(r"status code: 416|Content-Range|Requested \d+\.\.\d+, got")
_REFUSED = re.compile(r"status code: 4(?!08|25|29)\d\d|Unable to open service account")
"""What a server will say again: all that is the client's fault, but for what came too late, too early, too often."""
_QUERY = re.compile(r"\?[^\s'\"<>]*")

_used: set[int] = set()
"""Processes in which the client has run: its threads do not come over a fork, and the next call would wait for ever."""


class Bucket:
    """Objects below one prefix. Each process that uses it has a client of its own, whose connections stay open."""

    def __init__(self, url: StoreUrl, where: str = "s3", more: Sequence[str] = (), prefix: str | None = None) -> None:
        """``where``: a key of ``OPTIONS``. ``more``: options of the URL that are somebody else's. ``prefix``: below
        which the objects are, where that is not the whole path.
        """
        url.only([*OPTIONS[where], *more])
        self._web = where in {"https", "http"}
        if len(url.hosts) != 1 or (url.hosts[0][1] is not None and not self._web):
            raise BadStoreUrl.at(
                url.redacted, f"write {url.scheme}://{'host/folder' if self._web else 'bucket/prefix'}"
            )
        if self._web and url.user:
            raise BadStoreUrl.at(url.redacted, "a web server is read without a password")
        if url.options.get("anonymous", "true") != "true":
            raise BadStoreUrl.at(url.redacted, "anonymous= takes only 'true'")
        self._name = url.redacted
        self._url, self._where = url, where
        self._prefix = (url.path if prefix is None else prefix).strip("/")
        self._timeout = url.number("timeout", 30)
        self._held = Owned(self._make, _forget)
        endpoint = url.options.get("endpoint")
        if endpoint is not None and not endpoint.startswith(("http://", "https://")):
            raise BadStoreUrl.at(url.redacted, "endpoint= takes http://host:port or https://…")

    @property
    def identity(self) -> str:
        """The place, without who reads it."""
        url = self._url
        host = ":".join(str(part) for part in url.hosts[0] if part is not None)
        return f"{self._where}:{url.options.get('endpoint', '')}:{host}:{self._prefix}"

    @property
    def lists(self) -> bool:
        """True if such a place can be asked for the names of its objects."""
        return not self._web

    async def get(self, path: str) -> tuple[memoryview, dict[str, str]] | None:
        """The bytes and attributes of an object; None where there is none."""
        with self._telling(), suppress(*NOT_THERE):
            found = await obstore.get_async(self._held.get(), path)
            return memoryview(await found.bytes_async()), dict(found.attributes)
        return None

    async def look(self, path: str) -> Listed | None:
        """Size and state of an object; None where there is none."""
        with self._telling(), suppress(*NOT_THERE):
            return _listed(await obstore.head_async(self._held.get(), path))
        return None

    async def content(self, path: str, most: int) -> tuple[Listed, bytes] | None:
        """State and bytes of a small object; None where there is none. Raises ``DamagedShard`` where it is larger."""
        with self._telling(), suppress(*NOT_THERE):
            found = await obstore.get_async(self._held.get(), path)
            listed = _listed(found.meta)
            check_small(listed, most)
            return listed, bytes(await found.bytes_async())
        return None

    async def read(self, path: str, begin: int, end: int, etag: str) -> memoryview:
        """A piece of an object that is still in the state ``etag``; of any state where that is empty.

        Raises ``DamagedShard`` where it is gone, is another one by now, or has no such piece.
        """
        options: Any = {"range": (begin, end)}
        if etag.startswith('"'):  # a weak one is equal to none, and some servers have only a time
            options["if_match"] = etag
        with self._telling():
            try:
                found = await obstore.get_async(self._held.get(), path, options=options)
                if etag and _listed(found.meta).etag != etag:
                    raise DamagedShard("it was replaced since it was listed")
                if tuple(found.range) != (begin, end):
                    raise DamagedShard(f"its server does not give the bytes from {begin} to {end}")
                content = memoryview(await found.bytes_async())
            except NOT_THERE:
                raise DamagedShard("it is gone") from None
            except exceptions.PreconditionError:
                raise DamagedShard("it was replaced since it was listed") from None
            except exceptions.NotSupportedError:
                raise StoreRefused.at(
                    self._name,
                    f"the server gives {path!r} only whole, and a shard is read in parts (206, Content-Range)",
                ) from None
            except exceptions.GenericError as error:
                if _OTHER_BYTES.search(str(error)):
                    raise DamagedShard(f"its server does not give the bytes from {begin} to {end}") from None
                raise
        if len(content) != end - begin:
            raise StoreUnavailable.at(self._name, f"{path!r}: {len(content)} of {end - begin} bytes came")
        return content

    async def put(self, path: str, payload: bytes | memoryview, attributes: dict[str, str] | None = None) -> None:
        """Writes an object whole, or not at all."""
        with self._telling():
            await obstore.put_async(self._held.get(), path, bytes(payload), attributes=attributes or {})

    async def delete(self, path: str) -> None:
        """Removes an object; one that is not there is removed already."""
        with self._telling(), suppress(*NOT_THERE):
            await obstore.delete_async(self._held.get(), path)

    async def names(self, prefix: str) -> list[str]:
        """The objects below a prefix, sorted."""
        return [found.object for found in await self.listed(prefix)]

    async def states(self, prefix: str) -> list[str]:
        """The objects below a prefix, sorted, each with its size and what tells one content of it from another."""
        return [f"{found.object} {found.size} {found.etag}" for found in await self.listed(prefix)]

    async def listed(self, prefix: str, most: int | None = None) -> list[Listed]:
        """The objects below a prefix, sorted; not many more than ``most`` of them are asked for."""
        found: list[Listed] = []
        with self._telling():
            async for part in obstore.list(self._held.get(), prefix or None):
                found += map(_listed, part)
                if most is not None and len(found) >= most:
                    break
        return sorted(found)

    def close(self) -> None:
        """Lets go of this process's connections."""
        self._held.close()

    def _make(self) -> Any:
        if _used and os.getpid() not in _used:
            raise ClientForked.at(
                self._name,
                "the S3 client was used before this process was forked, and does not work here; "
                "start processes with 'spawn' or 'forkserver', or read from the store only in them",
            )
        _used.add(os.getpid())
        open_at: Callable[[dict[str, Any]], Any] = {
            "s3": self._s3,
            "gs": self._gs,
            "az": self._az,
            "https": self._http,
            "http": self._http,
        }[self._where]
        with self._telling():
            try:
                return open_at(
                    {
                        # Trying again is done, counted and shown by ``Retrying``.
                        "retry_config": {"max_retries": 0, "retry_timeout": timedelta(seconds=self._timeout)},
                    }
                )
            except (ValueError, OSError) as error:  # a key file that is none, an address that makes no sense
                raise StoreRefused.at(self._name, _said(error)) from None

    def _s3(self, common: dict[str, Any]) -> Any:
        # The client takes it from there by itself, as AWS's own tools do, and would refuse to use it.
        set_outside = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        endpoint = self._url.options.get("endpoint") or set_outside
        region = None if {"AWS_REGION", "AWS_DEFAULT_REGION"} & os.environ.keys() else "us-east-1"
        given = {
            "endpoint": endpoint,
            "region": self._url.options.get("region", region if endpoint else None),
            "access_key_id": self._url.user,
            "secret_access_key": self._url.secret(),
        }
        return S3Store(self._url.hosts[0][0], **self._options(endpoint, given), **common)

    def _gs(self, common: dict[str, Any]) -> Any:
        endpoint = self._url.options.get("endpoint")
        given = {"base_url": endpoint, "service_account": self._url.options.get("password_file")}
        return GCSStore(self._url.hosts[0][0], **self._options(endpoint, given), **common)

    def _az(self, common: dict[str, Any]) -> Any:
        endpoint = self._url.options.get("endpoint")
        given = {"endpoint": endpoint, "account_name": self._url.user, "account_key": self._url.secret()}
        return AzureStore(self._url.hosts[0][0], **self._options(endpoint, given), **common)

    def _http(self, common: dict[str, Any]) -> Any:
        bare = StoreUrl(self._where, f"/{self._prefix}", self._url.hosts).full
        return HTTPStore.from_url(bare, client_options=self._client(bare), **common)

    def _options(self, endpoint: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options that any bucket is opened with, and those of its own that were given."""
        own = {name: value for name, value in given.items() if value is not None}
        if "anonymous" in self._url.options:
            own["skip_signature"] = True
        return {"prefix": self._prefix or None, "client_options": self._client(endpoint), **own}

    def _client(self, endpoint: str | None) -> Any:
        return {
            "timeout": timedelta(seconds=self._timeout),
            "connect_timeout": timedelta(seconds=5),
            "allow_http": bool(endpoint and endpoint.startswith("http://")),
        }

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Raise in our words what the client raises."""
        try:
            yield
        except (FileNotFoundError, exceptions.BaseError) as error:
            raise self._told(error) from error

    def _told(self, error: Exception) -> StoreError:
        said = _said(error)
        if isinstance(error, (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)):
            return StoreRefused.at(self._name, f"{said} (credentials or permission)")
        if isinstance(error, NOT_THERE) or "NoSuchBucket" in said:
            return StoreRefused.at(self._name, f"there is no such bucket: {said}")
        passing = isinstance(error, exceptions.GenericError) and not _REFUSED.search(said)
        kind = StoreUnavailable if passing else StoreRefused
        return kind.at(self._name, f"{said}")


def _said(error: Exception) -> str:
    """The error in one line, and without what stands behind a ``?`` in an address: it may be a signature."""
    return _QUERY.sub("", " ".join(str(error).split("\n\nDebug source")[0].split()))[:500]


def _listed(meta: Any) -> Listed:
    return Listed(meta["path"], meta["size"], meta["e_tag"] or f"at {meta['last_modified'].isoformat()}")


def _forget(client: Any) -> None:
    """A client ends its connections when the last reference to it is gone."""
