"""Certificates: of an authority of our own, of another one, expired, for another host, for a client."""

import datetime as dt
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from tests.services import HOME, locked


@dataclass(frozen=True)
class Pair:
    """Files: a certificate, its key (PKCS#8, as Java's reader wants it), and both with the authority in one."""

    cert: Path
    key: Path
    bundle: Path


@dataclass(frozen=True)
class Material:
    """Everything the tests present to each other. The authority's key is not kept."""

    ca: Path
    other_ca: Path
    server: Pair
    """For 127.0.0.1, .2, .3 and localhost."""
    expired: Pair
    other_host: Pair
    client: Pair
    stranger: Pair
    """A client the authority does not know."""


def material() -> Material:
    """Made once per checkout."""
    folder = HOME / "tls"
    found = Material(
        folder / "ca.pem",
        folder / "other_ca.pem",
        *(
            Pair(folder / f"{name}.crt", folder / f"{name}.key", folder / f"{name}.pem")
            for name in ("server", "expired", "other_host", "client", "stranger")
        ),
    )
    with locked("tls"):
        if not (folder / "done").exists():
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)
            _make(found)
            (folder / "done").touch()
    return found


def _make(files: Material) -> None:
    ca, other = trustme.CA(), trustme.CA()
    files.ca.write_bytes(ca.cert_pem.bytes())
    files.other_ca.write_bytes(other.cert_pem.bytes())
    past = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
    hosts = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "localhost")
    _write(files.server, ca.issue_cert(*hosts), files.ca)
    _write(files.expired, ca.issue_cert(*hosts, not_after=past), files.ca)
    _write(files.other_host, ca.issue_cert("other.example", "192.0.2.1"), files.ca)
    _write(files.client, ca.issue_cert("client@headrace.example"), files.ca)
    _write(files.stranger, other.issue_cert("client@headrace.example"), files.ca)


def _write(pair: Pair, issued: trustme.LeafCert, ca: Path) -> None:
    key = load_pem_private_key(issued.private_key_pem.bytes(), password=None)
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain = b"".join(part.bytes() for part in issued.cert_chain_pems)
    pair.cert.write_bytes(chain)
    pair.key.write_bytes(text)
    pair.bundle.write_bytes(text + chain + ca.read_bytes())
