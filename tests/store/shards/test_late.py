"""An answer that does not come is asked for again, and costs nobody more than that."""

import asyncio
import threading

import pytest

from headrace import StoreError, store
from headrace.store.reading import hedge
from tests.store.shards.test_places import mds_of
from tests.store.shards.web import serving

pytestmark = pytest.mark.service


@pytest.fixture(scope="module", autouse=True)
def client():
    """Its own threads begin, and stay."""
    with serving() as empty, pytest.raises(StoreError):
        store.open_store(f"mds+http://{empty.address}/nothing").keys()


def test_a_request_that_is_late_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(hedge, "FIRST_S", 0.01)
    records, asked, second = mds_of(tmp_path / "a"), [], threading.Event()

    def late(span):
        """The first answer is withheld until the request was made again."""
        asked.append(span)
        if len(asked) == 1:
            assert second.wait(60)
        second.set()

    async def scenario(opened):
        session = await opened.connect()
        try:
            for _ in range(20):  # what is asked for twice is a small part of what was answered
                for record in records:
                    await session.get(record.key)
            web.before = late
            before = session.hedges()
            row = await session.get(records[1].key)
            assert session.hedges() == before + 1
            return row
        finally:
            await session.close()

    with serving() as web:
        web.files = {f"set/{path.name}": path.read_bytes() for path in (tmp_path / "a").iterdir()}
        opened = store.open_store(f"mds+http://{web.address}/set")
        row = asyncio.run(scenario(opened))
        opened.close()
    assert bytes(row.payload) == records[1].payload
    assert len(asked) == 2
    assert asked[0] == asked[1]
