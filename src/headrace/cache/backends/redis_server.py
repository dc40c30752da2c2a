"""A Redis server, or a cluster of them, as a cache has it: it may be away, and is tried again after a while.

The only module that knows the driver.
"""

import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from headrace.core.errors import CacheError

log = logging.getLogger("headrace.cache")

FIRST, LONGEST = 2.0, 30.0
"""Seconds during which a server that could not be reached is left alone: the first time, then twice that, at most."""
CONNECT, REPLY = 3.0, 0.5
"""Seconds to wait for a connection when a cache is opened, and for everything else: whoever waits makes no samples."""
_T = TypeVar("_T")


class RedisServer:
    """A cache's connections to it, and the part of its keys that is the cache's own."""

    def __init__(self, url: str, namespace: str) -> None:
        """Connect; ``CacheError`` says what is wrong with the URL, the server or the login."""
        self._driver = _driver()
        known = self._driver.exceptions
        # What a cluster's client raises where none of its servers answers is no error of the driver's own tree.
        self._errors = (known.RedisError, known.RedisClusterException, OSError)
        self.where = _shown(url)
        self.prefix = f"hr:{{{namespace}}}"
        """How all keys begin that lie together on one server."""
        self._down_until, self._pause, self._told = 0.0, 0.0, set[str]()
        try:
            self.client, self.clustered = self._connect(url)
        except (*self._errors, TypeError) as error:  # the last for a wrong option
            msg = f"the cache {self.where} cannot be used: {_said(error)}"
            raise CacheError(msg) from None

    def _connect(self, url: str) -> tuple[Any, bool]:
        retry = self._driver.retry.Retry(self._driver.backoff.NoBackoff(), 0)
        options: dict[str, Any] = {"socket_connect_timeout": REPLY, "socket_timeout": REPLY, "retry": retry}
        first: dict[str, Any] = {"socket_connect_timeout": CONNECT, "socket_timeout": CONNECT, "retry": retry}
        client = self._driver.Redis.from_url(url, **first)
        try:
            cluster = bool(client.info("cluster").get("cluster_enabled"))
        finally:
            client.close()
        if not cluster:
            return self._driver.Redis.from_url(url, **options), False
        until = time.monotonic() + CONNECT
        while True:
            try:  # it asks its servers at once, with the time that there is for a reply
                return self._driver.cluster.RedisCluster.from_url(url, **options), True
            except self._errors:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    @property
    def rests(self) -> bool:
        """True if the server is left alone, having been away a moment ago."""
        return time.monotonic() < self._down_until

    def tried(self, act: Callable[[], _T], otherwise: _T) -> _T:
        """The result of ``act``, or ``otherwise`` where the server refuses this or cannot be reached; unreachable,
        it is then left alone for a while. What is wrong is said once, and again when something else is.
        """
        if self.rests:
            return otherwise
        try:
            found = act()
        except self._errors as error:
            if not isinstance(error, self._driver.exceptions.ResponseError):
                self._pause = min(LONGEST, max(FIRST, 2 * self._pause))
                self._down_until = time.monotonic() + self._pause
            if (said := _said(error)) not in self._told:
                self._told.add(said)
                log.warning("the cache %s: %s; going on without it", self.where, said)
            return otherwise
        except (ValueError, TypeError, UnicodeDecodeError):  # what was there makes no sense
            return otherwise
        self._pause = 0.0
        return found

    def function(self, text: str) -> Callable[..., Any]:
        """A function to run on the server, with ``keys`` and ``args``."""
        found: Callable[..., Any] = self.client.register_script(text)
        return found

    def close(self) -> None:
        """End the connections; idempotent."""
        self.client.close()
        if self.clustered:  # which keeps the connections to its servers, old and new
            known = self.client.nodes_manager
            for node in [*known.nodes_cache.values(), *known.startup_nodes.values()]:
                if node.redis_connection is not None:
                    node.redis_connection.connection_pool.disconnect()


def _driver() -> Any:
    try:
        import redis  # noqa: PLC0415  (optional)
        import redis.backoff  # noqa: PLC0415
        import redis.cluster  # noqa: PLC0415
        import redis.retry  # noqa: PLC0415
    except ImportError:
        msg = "a cache on Redis needs its driver: pip install 'headrace[redis]'"
        raise CacheError(msg) from None
    return redis


def _shown(url: str) -> str:
    """The URL without what is secret."""
    parts = urlsplit(url)
    try:
        port = parts.port or 6379
    except ValueError:  # which would repeat a part of a password that was not written as it must be
        port = 0
    if parts.scheme not in {"redis", "rediss"} or not parts.hostname or not port:
        msg = (
            "the URL of a cache on Redis is redis://[user:password@]host[:port][/db], or rediss:// for TLS; characters "
            "such as / @ : # in a password are written %2F %40 %3A %23"
        )
        raise CacheError(msg)
    return f"{parts.scheme}://{parts.hostname}:{port}"


def _said(error: BaseException) -> str:
    """An error without addresses of the driver's own objects; servers never repeat a password."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
