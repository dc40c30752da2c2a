"""A cache does not take one store for another, nor its rows for what they were before they were written again."""

import os

import pytest

import headrace
from headrace.cache.backends.shm import remove
from headrace.core.errors import CacheError
from headrace.store import Record, Schema, open_store, open_writable
from headrace.store.catalogues.provenance import Provenance


def filled(url, labels):
    store = open_writable(url)
    store.create(Schema())
    with store.writer() as writer:
        writer.put([Record(f"k{number}", b"%d" % number, label, {}) for number, label in enumerate(labels)])
    store.close()
    return url


@pytest.fixture
def cache():
    name = f"provenance-{os.getpid()}"
    yield headrace.Cache(f"shm://{name}", size="4MiB", split=(0, 100, 0))
    remove(name)


def epoch(loader):
    before = loader.stats().cache.decoded if loader.stats().cache is not None else 0
    found = sorted(int(label) for _, labels in loader for label in labels)
    return found, loader.stats().cache.decoded - before


@pytest.mark.parametrize("workers", [0, 1])
def test_rows_that_are_written_again_are_read_again(tmp_path, cache, workers):
    url = filled(f"sqlite:///{tmp_path}/a.db", [1, 2, 3])
    options = {"batch_size": 3, "num_workers": workers, "persistent_workers": workers > 0, "cache": cache}
    with headrace.DataLoader(headrace.StoreDataset(url, decode=len), **options) as loader:
        assert epoch(loader) == ([1, 2, 3], 0)
        assert epoch(loader) == ([1, 2, 3], 3)
        filled(url, [4, 5, 6])
        assert epoch(loader) == ([4, 5, 6], 0)
        assert epoch(loader) == ([4, 5, 6], 3)


def test_one_url_in_two_folders_is_two_stores(tmp_path, cache, monkeypatch):
    for name, labels in (("a", [1, 2]), ("b", [7, 8])):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        dataset = headrace.StoreDataset(filled("sqlite:///slides.db", labels), decode=len)
        assert (tmp_path / name / "slides.db").exists()
        with dataset, headrace.DataLoader(dataset, 2, num_workers=0, cache=cache) as loader:
            assert epoch(loader) == (labels, 0)


def test_a_copy_of_a_store_is_the_same_until_it_is_written_to(tmp_path, cache):
    filled(f"sqlite:///{tmp_path}/a.db", [1, 2])
    (tmp_path / "b.db").write_bytes((tmp_path / "a.db").read_bytes())
    hits = []
    for name in ("a", "b"):
        dataset = headrace.StoreDataset(f"sqlite:///{tmp_path}/{name}.db", decode=len)
        with headrace.DataLoader(dataset, 2, num_workers=0, cache=cache) as loader:
            hits.append(epoch(loader)[1])
    assert hits == [0, 2]


def test_a_file_that_is_exchanged_is_read_again(tmp_path, cache):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.bin").write_bytes(b"old")
    dataset = headrace.StoreDataset(f"file://{tmp_path}", decode=len)
    with headrace.DataLoader(dataset, 2, num_workers=0, cache=cache) as loader:
        assert [data.tolist() for data, _ in loader] == [[3, 3]]
        (tmp_path / "dog" / "1.bin").write_bytes(b"longer")
        for _ in range(3):
            assert [data.tolist() for data, _ in loader] == [[3, 6]]
        assert loader.stats().cache.decoded == 5  # the new one was kept when the old one was found stale


def test_a_class_in_front_of_others_changes_labels(tmp_path):
    for name in ("b", "c"):
        (tmp_path / name).mkdir()
    first = open_store(f"file://{tmp_path}").provenance()
    (tmp_path / "a").mkdir()
    second = open_store(f"file://{tmp_path}").provenance()
    assert first.identity == second.identity
    assert first.revision != second.revision


class Unknown:
    """A store that says nothing of itself."""

    name = "mine://"

    def keys(self):
        return ["a"]

    def columns(self, names=None):
        return {}

    def info(self):
        raise NotImplementedError

    def get(self, key):
        raise NotImplementedError

    def get_many(self, keys):
        return iter(())

    def close(self):
        pass


class Known(Unknown):
    def provenance(self):
        return Provenance("mine", "1")


def test_a_store_that_cannot_be_told_is_refused(cache):
    with (
        headrace.DataLoader(headrace.StoreDataset(Unknown()), num_workers=0, cache=cache) as loader,
        pytest.raises(CacheError, match=r"mine:// does not say .* `provenance\(\)`.*cache_fingerprint"),
    ):
        iter(loader)
    with headrace.DataLoader(headrace.StoreDataset(Known()), num_workers=0, cache=cache) as loader:
        iter(loader)
