"""The only module that knows the client: objects by name, its errors in our words."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from headrace.core.errors import BadStoreUrl, MissingDriver, StoreError, StoreRefused, StoreUnavailable
from headrace.store.owned import Owned
from headrace.store.url import StoreUrl

try:
    import obstore
    from obstore import exceptions
    from obstore.store import S3Store
except ImportError as error:
    raise MissingDriver("s3:// needs the package obstore: pip install 'headrace[s3]'") from error

NOT_THERE = (FileNotFoundError, exceptions.NotFoundError)
OPTIONS = ["endpoint", "region", "password_file", "timeout"]

_used: set[int] = set()
"""Processes in which the client has run: its threads do not come over a fork, and the next call would wait for ever."""


class Bucket:
    """Objects below one prefix. Each process that uses it has a client of its own, whose connections stay open."""

    def __init__(self, url: StoreUrl) -> None:
        url.only(OPTIONS)
        if len(url.hosts) != 1 or url.hosts[0][1] is not None:
            raise BadStoreUrl.at(url.redacted, "write s3://bucket/prefix")
        self._name = url.redacted
        self._url = url
        self._timeout = url.number("timeout", 30)
        self._held = Owned(self._make, _forget)
        endpoint = url.options.get("endpoint")
        if endpoint is not None and not endpoint.startswith(("http://", "https://")):
            raise BadStoreUrl.at(url.redacted, "endpoint= takes http://host:port or https://…")

    async def get(self, path: str) -> tuple[memoryview, dict[str, str]] | None:
        """The bytes and attributes of an object; None where there is none."""
        with self._telling(), suppress(*NOT_THERE):
            found = await obstore.get_async(self._held.get(), path)
            return memoryview(await found.bytes_async()), dict(found.attributes)
        return None

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
        return sorted([entry["path"] for entry in await self._listed(prefix)])

    async def states(self, prefix: str) -> list[str]:
        """The objects below a prefix, sorted, each with its size and what tells one content of it from another."""
        found = await self._listed(prefix)
        return sorted(f"{each['path']} {each['size']} {each['e_tag'] or each['last_modified']}" for each in found)

    async def _listed(self, prefix: str) -> list[Any]:
        with self._telling():
            return [entry async for part in obstore.list(self._held.get(), prefix) for entry in part]

    def close(self) -> None:
        """Lets go of this process's connections."""
        self._held.close()

    def _make(self) -> Any:
        if _used and os.getpid() not in _used:
            raise StoreRefused.at(
                self._name,
                "the S3 client was used before this process was forked, and does not work here; "
                "start processes with 'spawn' or 'forkserver', or read from the store only in them",
            )
        _used.add(os.getpid())
        url, endpoint = self._url, self._url.options.get("endpoint")
        given: dict[str, Any] = {
            "endpoint": endpoint,
            "region": url.options.get("region", "us-east-1" if endpoint else None),
            "access_key_id": url.user,
            "secret_access_key": url.secret(),
        }
        client: Any = {
            "timeout": timedelta(seconds=self._timeout),
            "connect_timeout": timedelta(seconds=5),
            "allow_http": bool(endpoint and endpoint.startswith("http://")),
        }
        with self._telling():
            return S3Store(
                url.hosts[0][0],
                prefix=url.path.strip("/") or None,
                client_options=client,
                # Trying again is done, counted and shown by ``Retrying``.
                retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=self._timeout)},
                **{name: value for name, value in given.items() if value is not None},
            )

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """What the client raises is raised in our words."""
        try:
            yield
        except (FileNotFoundError, exceptions.BaseError) as error:
            raise self._told(error) from error

    def _told(self, error: Exception) -> StoreError:
        said = " ".join(str(error).split("\n\nDebug source")[0].split())[:500]
        if isinstance(error, (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)):
            return StoreRefused.at(self._name, f"{said} (credentials or permission)")
        if isinstance(error, NOT_THERE):
            return StoreRefused.at(self._name, f"there is no such bucket: {said}")
        kind = StoreUnavailable if isinstance(error, exceptions.GenericError) else StoreRefused
        return kind.at(self._name, f"{said}")


def _forget(client: Any) -> None:
    """A client ends its connections when the last reference to it is gone."""
