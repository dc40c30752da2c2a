"""What several tests of shards are given."""

import urllib.request

import pytest

from headrace import store
from headrace.core.errors import StoreRefused
from tests.services.process import free_port
from tests.store.shards.web import serving


@pytest.fixture(scope="session")
def endpoint():
    """An S3 server with one empty bucket."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", free_port(18850), verbose=False)
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    urllib.request.urlopen(urllib.request.Request(f"{address}/bucket", method="PUT"), timeout=10).close()
    with pytest.raises(StoreRefused):
        store.open_store(f"s3://key:secret@bucket/?endpoint={address}").keys()  # the client's own threads begin
    yield address
    server.stop()


@pytest.fixture(scope="session")
def client():
    """The client has run: what it opens once for the life of a process is no test's leak."""
    with serving() as web, pytest.raises(StoreRefused):
        store.open_store(f"mds+http://{web.address}").keys()


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Nothing is kept in anybody's own folder."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
