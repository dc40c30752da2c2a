"""Toxiproxy: a proxy that delays, throttles, swallows and cuts connections when it is told to."""

import json
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError

from tests.services import HOME, locked
from tests.services.process import Running, free_port, get, spawn, tool

VERSION = "v2.12.0"


def fetch() -> Path:
    """The program, built by Go on first use."""
    folder = HOME / "bin" / f"toxiproxy-{VERSION}"
    with locked("toxiproxy"):
        if not (folder / "server").exists():
            go, beside = tool("go"), folder.with_suffix(".part")
            package = f"github.com/Shopify/toxiproxy/v2/cmd/server@{VERSION}"
            get([go, "install", package], seconds=400, env={"GOBIN": str(beside)})
            folder.mkdir(parents=True, exist_ok=True)
            (beside / "server").rename(folder / "server")
            beside.rmdir()
    return folder / "server"


def start() -> Running:
    program, port = fetch(), free_port(18474)
    log = HOME / "data" / "toxiproxy" / "out.log"
    command = [program, "-host", "127.0.0.1", "-port", str(port)]
    running = spawn(
        "toxiproxy",
        command,
        ports={"api": port},
        log=log,
        env={"LOG_LEVEL": "error"},
    )
    running.wait_until(lambda: _answers(port), 120.0)
    return running


@dataclass(frozen=True)
class Proxy:
    """One listener before one server."""

    api: int
    name: str
    port: int
    host: str = "127.0.0.1"

    @classmethod
    def make(cls, api: int, name: str, upstream: str, host: str = "127.0.0.1") -> "Proxy":
        port = free_port(18500, [host])
        _call(
            api, "POST", "/proxies", {"name": name, "listen": f"{host}:{port}", "upstream": upstream, "enabled": True}
        )
        return cls(api, name, port, host)

    def toxic(self, kind: str, *, stream: str = "downstream", **attributes: int) -> None:
        """Adds a toxic: latency, bandwidth, timeout, reset_peer, ..."""
        toxic = {"name": f"{kind}-{stream}", "type": kind, "stream": stream, "attributes": attributes}
        _call(self.api, "POST", f"/proxies/{self.name}/toxics", toxic)

    def cure(self) -> None:
        """Takes all toxics away, and lets connections in again."""
        for toxic in _call(self.api, "GET", f"/proxies/{self.name}/toxics"):
            _call(self.api, "DELETE", f"/proxies/{self.name}/toxics/{toxic['name']}")
        self.enable(on=True)

    def enable(self, *, on: bool) -> None:
        """Off cuts every connection and refuses new ones."""
        _call(self.api, "POST", f"/proxies/{self.name}", {"enabled": on})

    def remove(self) -> None:
        _call(self.api, "DELETE", f"/proxies/{self.name}")


def _answers(port: int) -> bool:
    try:
        _call(port, "GET", "/version")
    except (URLError, OSError):
        return False
    return True


def _call(api: int, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{api}{path}", data, {"User-Agent": "tests"}, method=method)
    with urllib.request.urlopen(request, timeout=10) as answer:
        text = answer.read()
    return json.loads(text) if text else None
