"""VersityGW: an S3 server over a folder, fast enough that clients are measured and not the server. For benchmarks."""

import os
import urllib.request
from collections.abc import Collection
from pathlib import Path
from urllib.error import URLError

from tests.services import HOME, locked
from tests.services.process import Running, free_port, get, spawn, tool

VERSION = "v1.8.0"
KEY_ID, SECRET = "headrace", "let-me-in"
BUCKET = "bucket"


def fetch() -> Path:
    """The program, built by Go on first use, which takes minutes."""
    folder = HOME / "bin" / f"versitygw-{VERSION}"
    with locked("versitygw-get"):
        if not (folder / "versitygw").exists():
            go, beside = tool("go"), folder.with_suffix(".part")
            get(
                [go, "install", f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"],
                seconds=900,
                env={"GOBIN": str(beside)},
            )
            folder.mkdir(parents=True, exist_ok=True)
            (beside / "versitygw").rename(folder / "versitygw")
            beside.rmdir()
    return folder / "versitygw"


def start(name: str = "versitygw", *, keep_alive: bool = False, cores: Collection[int] | None = None) -> Running:
    """A server over one bucket, which all of these share, without what costs it time and is no part of reading.

    ``cores``: where it runs.
    """
    program, port, home = fetch(), free_port(18900), HOME / "data" / "versitygw"
    (home / "objects" / BUCKET).mkdir(parents=True, exist_ok=True)
    command = [program, "--quiet", "--health", "/health", "--port", f"127.0.0.1:{port}", "--noacl"]
    command += ["--keep-alive"] if keep_alive else []
    command += ["posix", "--nometa", "--io-buffer-size", "131072", home / "objects"]
    secrets = {"ROOT_ACCESS_KEY": KEY_ID, "ROOT_SECRET_KEY": SECRET, "GOGC": "800"}
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before if cores is None else cores)  # which it inherits, and counts
    try:
        running = spawn(name, command, ports={"s3": port}, log=home / f"{name}.log", env=secrets)
    finally:
        os.sched_setaffinity(0, before)
    running.wait_until(lambda: _answers(port), 10.0)
    return running


def url(running: Running, prefix: str) -> str:
    """A store on it."""
    return f"s3://{KEY_ID}:{SECRET}@{BUCKET}/{prefix}?endpoint=http://127.0.0.1:{running.ports['s3']}"


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
            return answer.status == 200
    except (URLError, OSError):
        return False
