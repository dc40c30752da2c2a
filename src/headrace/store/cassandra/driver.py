"""The only module that knows the driver: a cluster from our options, its errors in our words."""

import asyncio
import threading
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from headrace.core.errors import MissingDriver, StoreError, StoreRefused, StoreUnavailable
from headrace.store.cassandra.options import Options, Tls, file_text

try:
    import acsylla
    from acsylla._cython import cyacsylla
except ImportError as error:
    message = "cassandra:// needs the package acsylla: pip install 'headrace[cassandra]'"
    raise MissingDriver(message) from error

errors = acsylla.errors

_creating = threading.Lock()

VERIFY = {"certificate": 1, "address": 1 | 2, "name": 1 | 4}
"""The C++ driver's bits: a certificate we trust, for this address, for this name. The Python enumeration of acsylla 1.2
gives PEER_IDENTITY the value of PEER_CERT, which compares no address with anything."""

TRANSIENT = (
    errors.CassErrorLibNoHostsAvailable,
    errors.CassErrorLibNoStreams,
    errors.CassErrorLibRequestQueueFull,
    errors.CassErrorLibRequestTimedOut,
    errors.CassErrorLibUnableToConnect,
    errors.CassErrorLibWriteError,
    errors.CassErrorServerIsBootstrapping,
    errors.CassErrorServerOverloaded,
    errors.CassErrorServerReadFailure,
    errors.CassErrorServerReadTimeout,
    errors.CassErrorServerServerError,
    errors.CassErrorServerTruncateError,
    errors.CassErrorServerUnavailable,
    errors.CassErrorServerUnprepared,
    errors.CassErrorServerWriteFailure,
    errors.CassErrorServerWriteTimeout,
    errors.CassErrorSslClosed,
)
NO_REPLICAS = "Cannot achieve consistency level"
"""In the refusal of a login whose role cannot be looked up while nodes are down: the password may well be right."""


@dataclass(frozen=True)
class Login:
    """A user and a password, kept out of every representation."""

    user: str | None
    password: str | None

    def __repr__(self) -> str:
        return "Login(***)"


class Connection:
    """A driver's session, with what it leaves behind.

    acsylla wakes the event loop through pairs of sockets, one pair per cluster and purpose, and leaves them to the
    garbage collector after the loop has ended: a loop that connects again and again would run out of descriptors.
    They are closed here, once the session is, because nobody writes to them any more.
    """

    def __init__(self, session: Any, wakeups: list[Any]) -> None:
        self.query = session.query
        self.create_prepared = session.create_prepared
        self.execute = session.execute
        self.metrics = session.metrics
        self._session = session
        self._wakeups = wakeups

    async def close(self) -> None:
        """Ends all connections after what is in flight. May be called twice."""
        await self._session.close()
        _close(self._wakeups)


SETTLE_SECONDS = 0.1
"""For the threads of a session that could not be opened."""


async def connect(reach: Options, login: Login, store: str) -> Connection:
    """Connects. The keyspace is not chosen: statements name it."""
    settings: dict[str, Any] = {} if reach.tls is None else _tls(reach.tls, store)
    if login.user is not None:
        settings |= {"username": login.user, "password": login.password or ""}
    if reach.dc is not None:
        settings["load_balance_dc_aware"] = reach.dc
    if reach.consistency is not None:
        settings["consistency"] = acsylla.Consistency[reach.consistency]
    wakeups: list[Any] = []
    try:
        cluster = _create_cluster(
            wakeups,
            list(reach.hosts),
            port=reach.port,
            connect_timeout=min(5.0, float(reach.timeout)),
            request_timeout=float(reach.timeout),
            log_level="disabled",
            num_threads_io=reach.io_threads,
            core_connections_per_host=reach.connections,
            queue_size_io=65536,
            # A server that comes back is used again within a second, not within a minute.
            exponential_reconnect_base_delay_ms=100,
            exponential_reconnect_max_delay_ms=1000,
            heartbeat_interval_sec=5,
            idle_timeout_sec=15,
            token_aware_routing=True,
            use_schema=False,  # statements name what they need: no use for a list of all tables and columns
            application_name="headrace",
            **settings,
        )
        return Connection(await cluster.create_session(), wakeups)
    except BaseException as error:
        if isinstance(error, errors.CassException):
            # The session goes with the error, and waits for its threads while it holds the interpreter lock, which one
            # of them may still want: they are given a moment to end by themselves.
            await asyncio.sleep(SETTLE_SECONDS)
            _close(wakeups)
            raise told(error, store) from error
        _close(wakeups)
        raise


def told(error: Exception, store: str, key: str | None = None) -> StoreError:
    """A driver's error in our words."""
    passing = isinstance(error, TRANSIENT) or NO_REPLICAS in str(error)
    kind = StoreUnavailable if passing else StoreRefused
    at = "" if key is None else f", key {key!r}"
    name = type(error).__name__.removeprefix("CassError").removeprefix("CassException")
    return kind(f"{store}{at}: {str(error) or 'no reason given'} ({name})", server=store, key=key)


def _create_cluster(wakeups: list[Any], *arguments: Any, **settings: Any) -> Any:
    """A cluster, and in ``wakeups`` the pairs of sockets made for it."""
    with _creating:
        make = cyacsylla._wakeup_socketpair  # noqa: SLF001  (the only place where the pairs can be had)

        def kept() -> Any:
            wakeups.append(make())
            return wakeups[-1]

        cyacsylla._wakeup_socketpair = kept  # noqa: SLF001
        try:
            return acsylla.create_cluster(*arguments, **settings)
        finally:
            cyacsylla._wakeup_socketpair = make  # noqa: SLF001


def _close(wakeups: list[Any]) -> None:
    loop = asyncio.get_running_loop()
    while wakeups:
        reader, writer = wakeups.pop()
        loop.remove_reader(reader)
        reader.close()
        writer.close()


def _tls(tls: Tls, store: str) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "ssl_enabled": True,
        "ssl_trusted_cert": file_text(tls.ca, "ca=", store),
        "ssl_verify_flags": SimpleNamespace(value=VERIFY[tls.verify]),
    }
    if tls.verify == "name":
        settings["hostname_resolution"] = True
    if tls.cert is not None and tls.key is not None:
        settings["ssl_cert"] = file_text(tls.cert, "cert=", store)
        settings["ssl_private_key"] = file_text(tls.key, "key=", store)
        if tls.key_password_file is not None:
            secret = file_text(tls.key_password_file, "key_password_file=", store)
            settings["ssl_private_key_password"] = secret.partition("\n")[0]
    return settings


Failure = errors.CassException
"""What the driver raises."""
NotThere = errors.CassErrorServerInvalidQuery
"""A statement that names what the server does not know, or does not know yet."""
LOCAL_QUORUM = acsylla.Consistency.LOCAL_QUORUM
SURER = {None: LOCAL_QUORUM, "LOCAL_ONE": LOCAL_QUORUM, "ONE": acsylla.Consistency.QUORUM}
"""By the consistency of a URL where one replica answers for all: what to ask at if that one has no such row."""
