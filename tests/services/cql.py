"""Statements for a Cassandra server, run by a process of their own, as everything that uses the driver is."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

from headrace.store import disposable
from headrace.store.url import StoreUrl

ROOT = Path(__file__).parents[2]


class Failed(Exception):
    """With what was said about it."""


def execute(url: str, *statements: str, seconds: float = 60.0) -> list[list[object]]:
    """The rows that the last of them gives; none at all logs in and out."""
    told = json.dumps([url, *statements])
    program = [sys.executable, "-m", "tests.services.cql"]
    try:
        done = subprocess.run(
            program, check=False, input=told, capture_output=True, text=True, timeout=seconds, cwd=ROOT
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{statements} took longer than {seconds:g} s") from error
    if done.returncode:
        raise Failed(done.stderr[-2000:])
    found: list[list[object]] = json.loads(done.stdout)
    return found


async def _executed(url: StoreUrl, statements: list[str]) -> list[list[object]]:
    from headrace.store.cassandra.cassandra_driver import Login, connect
    from headrace.store.cassandra.url_options import options

    connection = await connect(options(url)[0], Login(url.user, url.secret()), url.redacted)
    rows: list[list[object]] = []
    for statement in statements:
        rows = [list(row.as_tuple()) for row in (await connection.query(statement)).all()]
    return rows


if __name__ == "__main__":
    disposable.declare()
    try:
        where, *texts = json.loads(sys.stdin.read())
        sys.stdout.write(json.dumps(asyncio.run(_executed(StoreUrl.parse(where), texts)), default=str))
        sys.stdout.flush()
    except Exception as error:  # noqa: BLE001
        os.write(2, str(error).encode())
        os._exit(1)
    os._exit(0)
