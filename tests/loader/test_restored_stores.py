"""Stores behind a network beside a cache.

One is written to in the last epoch of a job, and comes back from a backup: what was read after the write is served to
nobody. And what the cache had and has lost is read again, by whichever process finds that out.
"""

import asyncio

import pytest

import headrace
from headrace.cache.backends import shm
from headrace.store import Kind, Schema, open_writable
from tests.loader.edited import SAMPLES, Watched
from tests.loader.test_changes import BATCH, Caches, _row, changed, parsed, versions
from tests.names import new_name
from tests.services import objects


class Restored:
    """A store behind a network that is written, saved, written again, and brought back from what was saved."""

    def __init__(self, store):
        self.store = store

    def write(self, version):
        self.store.create(Schema(columns={"v": Kind.INTEGER}))
        with self.store.writer() as writer:
            writer.put([_row(index, version) for index in range(SAMPLES)])


class Scripted(Restored):
    def write(self, version):
        self.store.path.write_text(str(version))

    def save(self):
        self.saved = self.store.path.read_text()

    def restore(self):
        self.store.path.write_text(self.saved)


class Objects(Restored):
    def save(self):
        self.saved = asyncio.run(self._saved())

    async def _saved(self):
        bucket = self.store._bucket
        return {name: await bucket.get(name) for name in await bucket.names("")}

    def restore(self):
        asyncio.run(self._restored())

    async def _restored(self):
        bucket = self.store._bucket
        for name in await bucket.names(""):
            await bucket.delete(name)
        for name, (content, attributes) in self.saved.items():
            await bucket.put(name, content, attributes)


class Tables(Restored):
    def __init__(self, store, server, keyspace):
        super().__init__(store)
        self.server, self.state = server, f"{keyspace}.samples_metadata_state"

    def save(self):
        self.saved = self.store.provenance().revision

    def restore(self):
        self.write(1)
        self.server.execute(f"INSERT INTO {self.state} (name, value) VALUES ('revision', '{self.saved}')")


@pytest.fixture(scope="module")
def endpoint():
    with objects.endpoint() as found:
        yield found


@pytest.fixture
def caches():
    found = Caches("shm", None)
    yield found
    found.clear()


def restored_case(caches, restored, workers, at):
    options = {"cache": caches.new(), "collate_fn": list, "num_workers": workers}
    if workers:
        options |= {"multiprocessing_context": "fork", "prefetch_factor": 1}

    def job(change=lambda: None, at=-1):
        dataset = headrace.StoreDataset(restored.store, decode=parsed)
        with dataset, headrace.DataLoader(dataset, BATCH, **options) as loader:
            return versions(changed(loader, change, at))

    restored.write(1)
    restored.save()
    assert job(lambda: restored.write(2), at)[: BATCH * at] == [1] * min(SAMPLES, BATCH * at)
    restored.restore()
    assert [job() for _ in range(2)] == [[1] * SAMPLES] * 2, at
    restored.write(3)
    assert [job() for _ in range(2)] == [[3] * SAMPLES] * 2, at


@pytest.mark.parametrize("workers", [0, 1])
def test_any_whose_connections_say_in_which_state_it_is(caches, tmp_path, workers):
    restored_case(caches, Scripted(Watched(tmp_path / "version")), workers, 2)


@pytest.mark.service
@pytest.mark.parametrize("workers", [0, 1])
def test_objects(caches, endpoint, workers):
    restored_case(caches, Objects(open_writable(objects.url_of(endpoint, new_name()))), workers, 2)


@pytest.mark.service
@pytest.mark.parametrize("workers", [0, 1])
def test_tables(caches, cassandra_server, workers):
    with cassandra_server.keyspace() as keyspace:
        tables = Tables(open_writable(cassandra_server.url(keyspace)), cassandra_server, keyspace)
        restored_case(caches, tables, workers, 2)


@pytest.mark.service
def test_objects_that_a_cache_has_lost_are_read_by_forked_workers(caches, endpoint):
    """The client has been used in the process that they were forked from."""
    written = Objects(open_writable(objects.url_of(endpoint, new_name())))
    written.write(1)
    cache, dataset = caches.new(), headrace.StoreDataset(written.store, decode=parsed)
    options = {"num_workers": 1, "multiprocessing_context": "fork", "collate_fn": list, "cache": cache}

    def lose():
        for path in shm.path_of(cache.name).glob("*/entries/*/*"):
            path.unlink()

    with dataset, headrace.DataLoader(dataset, BATCH, **options) as loader:
        assert versions(loader) == [1] * SAMPLES
        assert versions(changed(loader, lose, 0)) == [1] * SAMPLES
        assert loader.stats().cache.lost > 0
