"""The only module that knows the driver: a cluster from our options, its errors in our words."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from headrace.core.errors import MissingDriver, StoreError, StoreRefused, StoreUnavailable
from headrace.store import disposable
from headrace.store.cassandra.url_options import Options, Tls, file_text

try:
    import acsylla
    from acsylla._cython import cyacsylla
except ImportError as error:
    raise MissingDriver("cassandra:// needs the package acsylla: pip install 'headrace[cassandra]'") from error

errors = acsylla.errors

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


_kept: list[Any] = []
"""Sessions, whatever became of them, until the process ends: to free one waits for its threads with the interpreter's
lock held, for ever if it is still connected, and those of one that could not connect may use it after it is gone."""
CLOSE_SECONDS = 5.0
CONNECT_STEPS = 3
"""So many times the time limit of a request may pass before there is a connection."""


class Connection:
    """A driver's session."""

    def __init__(self, session: Any) -> None:
        self.query = session.query
        self.create_prepared = session.create_prepared
        self.execute = session.execute
        self.metrics = session.metrics
        self._session = session

    async def close(self) -> None:
        """Ends all connections after what is in flight, if that is soon. May be called twice."""
        with suppress(errors.CassException, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._session.close()


async def connect(reach: Options, login: Login, store: str) -> Connection:
    """Connects, in a process that may be killed. The keyspace is not chosen: statements name it."""
    assert disposable.here(), "the driver may stop or crash the process it runs in"
    settings: dict[str, Any] = {} if reach.tls is None else _tls(reach.tls, store)
    if login.user is not None:
        settings |= {"username": login.user, "password": login.password or ""}
    if reach.dc is not None:
        settings["load_balance_dc_aware"] = reach.dc
    if reach.consistency is not None:
        settings["consistency"] = acsylla.Consistency[reach.consistency]
    patience = CONNECT_STEPS * float(reach.timeout)
    try:
        cluster = acsylla.create_cluster(
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
        session = cyacsylla.Session(cluster, None)
        _kept.append(session)  # before it connects: one that fails to must not be freed either
        async with asyncio.timeout(patience):
            await session._connect()  # noqa: SLF001  (``create_session`` would free one that cannot connect)
    except errors.CassException as error:
        raise told(error, store) from error
    except TimeoutError as error:
        raise StoreUnavailable.at(store, f"no connection within {patience:g} s") from error
    return Connection(session)


def told(error: Exception, store: str, key: str | None = None) -> StoreError:
    """A driver's error in our words."""
    passing = isinstance(error, TRANSIENT) or NO_REPLICAS in str(error)
    kind = StoreUnavailable if passing else StoreRefused
    at = "" if key is None else f", key {key!r}"
    name = type(error).__name__.removeprefix("CassError").removeprefix("CassException")
    return kind(f"{store}{at}: {str(error) or 'no reason given'} ({name})", server=store, key=key)


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
