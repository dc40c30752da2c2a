"""Redis: with a password for one user who may do what a cache needs, plain and TLS ports, and a socket."""

import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from tests.services import HOME, Unavailable, locked
from tests.services.process import Running, free_port, get, spawn, tool
from tests.services.tls import material

USER, PASSWORD = "headrace", "let-me-in"
PREFIX = "hr:"
RULES = "+@read +@write +@connection +@scripting +@transaction -@dangerous +info"
PACKAGES = ["redis-tools", "redis-server", "libjemalloc2", "liblzf1"]


@dataclass(frozen=True)
class Program:
    """The server's executable and what it needs in its environment."""

    path: Path
    env: dict[str, str]


def fetch() -> Program:
    """Debian's: the installed one, else installed by root, else unpacked under ``.services``."""
    with locked("redis-get"):
        found = shutil.which("redis-server")
        if found is None and os.geteuid() == 0:
            apt = tool("apt-get")
            quiet = {"DEBIAN_FRONTEND": "noninteractive"}
            get([apt, "update", "-qq"], seconds=120, env=quiet)
            get([apt, "install", "-y", "-qq", "--no-install-recommends", "redis-server"], seconds=120, env=quiet)
            found = shutil.which("redis-server")
        return Program(Path(found), {}) if found else _unpacked()


def _unpacked() -> Program:
    folder = HOME / "bin" / "redis"
    if not folder.exists():
        apt, dpkg, beside = tool("apt-get"), tool("dpkg"), folder.with_suffix(".part")
        shutil.rmtree(beside, ignore_errors=True)
        (beside / "debs").mkdir(parents=True)
        # apt-get puts packages where it is called.
        shell = f'cd "{beside}/debs" && {apt} download -qq {" ".join(PACKAGES)}'
        get([tool("sh"), "-c", shell], seconds=120)
        for package in (beside / "debs").glob("*.deb"):
            get([dpkg, "-x", package, beside], seconds=60)
        beside.rename(folder)
    libraries = sorted({str(path.parent) for path in folder.rglob("lib*.so*")})
    program = folder / "usr" / "bin" / "redis-server"
    if not program.exists():
        program = folder / "usr" / "bin" / "redis-check-rdb"  # one program under several names
    if not program.exists():
        raise Unavailable("the Redis package holds no redis-server")
    return Program(program, {"LD_LIBRARY_PATH": ":".join(libraries)})


def start() -> Running:
    program, tls, home = fetch(), material(), HOME / "data" / "redis"
    home.mkdir(parents=True, exist_ok=True)
    port = free_port(16379)
    secure = free_port(port + 1)
    acl = home / "users.acl"
    acl.write_text(f"user default off\nuser {USER} on >{PASSWORD} ~{PREFIX}* &{PREFIX}* {RULES}\n")
    acl.chmod(0o600)
    options = {
        "port": port,
        "bind": "127.0.0.1",
        "tls-port": secure,
        "tls-cert-file": tls.server.cert,
        "tls-key-file": tls.server.key,
        "tls-ca-cert-file": tls.ca,
        "tls-auth-clients": "optional",
        "aclfile": acl,
        "unixsocket": home / "redis.sock",
        "save": "",
        "appendonly": "no",
        "dir": home,
        "maxmemory": "2gb",
    }
    arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    ports = {"redis": port, "rediss": secure}
    running = spawn("redis", [program.path, *arguments], ports=ports, log=home / "out.log", env=program.env)
    running.wait_until(lambda: _answers(port), 120.0)
    return running


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as link:
            link.sendall(b"PING\r\n")
            return link.recv(64).startswith(b"-NOAUTH")
    except OSError:
        return False
