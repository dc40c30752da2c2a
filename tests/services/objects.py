"""An S3 server in this process: moto's, which speaks the real protocol over HTTP."""

import contextlib
import urllib.request
from collections.abc import Iterator

from headrace.core.errors import StoreRefused
from headrace.store import open_store
from tests.services.process import free_port

BUCKET = "bucket"


@contextlib.contextmanager
def endpoint() -> Iterator[str]:
    """The address of a server with one empty bucket."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", free_port(18800), verbose=False)
    server.start()
    try:
        address = "http://{}:{}".format(*server.get_host_and_port())
        urllib.request.urlopen(urllib.request.Request(f"{address}/{BUCKET}", method="PUT"), timeout=120).close()
        with contextlib.suppress(StoreRefused):
            open_store(url_of(address, "")).keys()  # the client opens what it keeps for the life of a process
        yield address
    finally:
        server.stop()


def url_of(endpoint: str, prefix: str, login: str = "key:secret@", bucket: str = BUCKET) -> str:
    """A store on it."""
    return f"s3://{login}{bucket}/{prefix}?endpoint={endpoint}"
