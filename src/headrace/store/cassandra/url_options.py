"""Options in a ``cassandra://`` URL, as values."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import BadStoreUrl, StoreRefused
from headrace.store.url import StoreUrl

OPTIONS = [
    *("id_column", "label_column", "data_column", "metadata", "metadata_id_column", "id_type", "replication"),
    *("consistency", "dc", "ca", "cert", "key", "key_password_file", "verify", "password_file"),
    *("connections", "io_threads", "timeout"),
]
CONSISTENCIES = ("ANY", "ONE", "TWO", "THREE", "QUORUM", "ALL", "LOCAL_QUORUM", "EACH_QUORUM", "LOCAL_ONE")
VERIFIED = ("address", "name", "certificate")
ID_TYPES = ("text", "uuid")


@dataclass(frozen=True)
class Tls:
    """Files, and what is compared with the server's certificate: its address, its name, or only who signed it."""

    ca: str
    cert: str | None
    key: str | None
    key_password_file: str | None
    verify: str


@dataclass(frozen=True)
class Tables:
    """Names of the tables with rows and their metadata, and of their columns."""

    keyspace: str
    data: str
    metadata: str
    id_column: str
    label_column: str
    data_column: str
    metadata_id_column: str
    id_type: str
    """Of a table that is to be made."""
    replication: int
    """Of a keyspace that is to be made."""


@dataclass(frozen=True)
class Options:
    """Options for reaching the servers."""

    hosts: tuple[str, ...]
    port: int
    tls: Tls | None
    consistency: str | None
    dc: str | None
    connections: int
    io_threads: int
    timeout: int


def options(url: StoreUrl) -> tuple[Options, Tables]:
    """Raises ``BadStoreUrl`` for anything the store could not honour."""
    url.only(OPTIONS)
    parts = url.path.strip("/").split("/")
    if not url.hosts or len(parts) != 2 or not all(parts):
        raise _bad(url, "write cassandra://host[:port][,host...]/keyspace/table")
    ports = {port for _, port in url.hosts if port is not None}
    if len(ports) > 1:
        raise _bad(url, "all servers of a cluster listen on one port")
    consistency = url.options.get("consistency")
    _one_of(url, "consistency", CONSISTENCIES)
    _one_of(url, "id_type", ID_TYPES)
    keyspace, table = parts
    id_column = url.options.get("id_column", "id")
    tables = Tables(
        keyspace=keyspace,
        data=table,
        metadata=url.options.get("metadata", f"{table}_metadata"),
        id_column=id_column,
        label_column=url.options.get("label_column", "label"),
        data_column=url.options.get("data_column", "data"),
        metadata_id_column=url.options.get("metadata_id_column", id_column),
        id_type=url.options.get("id_type", "text"),
        replication=url.number("replication", 1),
    )
    reach = Options(
        hosts=tuple(host for host, _ in url.hosts),
        port=ports.pop() if ports else 9042,
        tls=_tls(url),
        consistency=consistency,
        dc=url.options.get("dc"),
        connections=url.number("connections", 4),
        io_threads=url.number("io_threads", 2),
        timeout=url.number("timeout", 12),
    )
    return reach, tables


def _tls(url: StoreUrl) -> Tls | None:
    given = {name: url.options.get(name) for name in ("ca", "cert", "key", "key_password_file")}
    _one_of(url, "verify", VERIFIED)
    ca = given["ca"]
    if ca is None:
        if any(given.values()) or "verify" in url.options:
            raise _bad(url, "TLS needs ca=, the file with the certificate of the authority that signed the servers'")
        return None
    if (given["cert"] is None) != (given["key"] is None):
        raise _bad(url, "cert= and key= come together")
    default = "address" if all(_is_address(host) for host, _ in url.hosts) else "name"
    return Tls(ca, given["cert"], given["key"], given["key_password_file"], url.options.get("verify", default))


def file_text(path: str, what: str, store: str) -> str:
    """A small file that the URL names."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StoreRefused.at(store, f"the {what} file cannot be read: {error}") from None


def _one_of(url: StoreUrl, name: str, known: tuple[str, ...]) -> None:
    value = url.options.get(name)
    if value is not None and value not in known:
        raise _bad(url, f"{name}= takes one of {', '.join(known)}, not {value!r}")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _bad(url: StoreUrl, message: str) -> BadStoreUrl:
    return BadStoreUrl.at(url.redacted, f"{message}")
