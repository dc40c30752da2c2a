"""A dataset or its store is changed at some moment of an epoch: nobody is ever served what does not belong to it.

Every case is an epoch with a change in it, a job with everything as it was before, and one with everything as
it is then.
"""

import itertools
import os
import random
import shutil
import tarfile
from io import BytesIO

import numpy as np
import pytest
import torch

import headrace
from headrace.cache.backends.shm import remove
from headrace.store import Kind, Record, Schema, open_writable
from tests.cache import servers
from tests.cache.servers import PASSWORD, USER
from tests.loader.edited import SAMPLES, Edited, payload
from tests.names import new_name
from tests.selection import scaled
from tests.store.test_shards import write_mds

BATCH = 4
LEVEL = 0


class Part:
    """Something that a dataset holds."""

    size = 0

    def __init__(self):
        self.value = 0


class Changing(torch.utils.data.Dataset):
    """Samples that say by what they were made."""

    def __init__(self):
        self.plain, self.part, self.listed, self.named = 0, Part(), [0], {"a": 0}
        self.array, self.tensor = np.zeros(3, np.int64), torch.zeros(3, dtype=torch.int64)

    def __len__(self):
        return SAMPLES

    def fetch(self, index):
        return index

    def decode(self, encoded):
        parts = self.plain, self.part.value, self.listed[0], self.named["a"], int(self.array[1]), int(self.tensor[1])
        return encoded, np.array([*parts, LEVEL, Part.size], np.int64)

    def augment(self, decoded):
        return decoded

    def __getitem__(self, index):
        return self.augment(self.decode(self.fetch(index)))

    def set(self, what, value):
        if what == "global":
            globals()["LEVEL"] = value
        elif what == "class":
            Part.size = value
        elif what == "plain":
            self.plain = value
        elif what == "part":
            self.part.value = value
        elif what == "listed":
            self.listed[0] = value
        elif what == "named":
            self.named["a"] = value
        elif what == "array":
            self.array[1] = value
        else:
            self.tensor[1] = value


CODE = ["global", "class", "plain", "part", "listed", "named", "array", "tensor"]


@pytest.fixture
def as_it_was():
    yield
    globals()["LEVEL"] = Part.size = 0


@pytest.fixture
def server(tmp_path):
    with servers.one(tmp_path) as running:
        yield running


class Caches:
    """A new one for each case."""

    def __init__(self, kind, server):
        self.kind, self.server, self.names = kind, server, []

    def new(self, size="4MiB"):
        name = new_name()
        if self.kind == "shm":
            self.names.append(name)
            return headrace.Cache(f"shm://{name}", size=size, split=(0, 100, 0))
        url = f"redis://{USER}:{PASSWORD}@127.0.0.1:{self.server.port}"
        return headrace.Cache(url, size=size, split=(0, 100, 0), namespace=name)

    def clear(self):
        while self.names:
            remove(self.names.pop())


@pytest.fixture(params=["shm", "redis"])
def caches(request):
    found = Caches(request.param, request.getfixturevalue("server") if request.param == "redis" else None)
    yield found
    found.clear()


def epoch(dataset, cache, method, change=lambda: None, at=-1):
    """The samples by index; ``change`` happens before batch ``at`` is asked for."""
    found = {}
    with headrace.DataLoader(dataset, BATCH, cache=cache, **options(method)) as loader:
        for batch in changed(loader, change, at):
            found |= dict(zip(batch[0].tolist(), batch[1].tolist(), strict=True))
    return found


def options(method):
    if method is None:
        return {"num_workers": 0}
    return {"multiprocessing_context": method, "num_workers": 1, "prefetch_factor": 1}


def afterwards(rng, method):
    """How the jobs after a change make samples. Processes that import all anew take seconds to start, and what they
    keep all others are served: see ``test_what_one_start_method_keeps_others_are_served``.
    """
    return method if method in {None, "fork"} else rng.choice([None, "fork"])


def changed(loader, change, at):
    """Its batches; ``change`` happens before that with the number ``at``."""
    iterator = iter(loader)
    for number in itertools.count():
        if number == at:
            change()
        batch = next(iterator, None)
        if batch is None:
            break
        yield batch


def code_case(rng, caches, method, what):
    cache, at, new = caches.new(), rng.randrange(SAMPLES // BATCH + 1), rng.randrange(1, 1000)
    dataset = Changing()
    found = epoch(dataset, cache, method, lambda: dataset.set(what, new), at)
    for index, parts in found.items():
        is_new = method is None and index >= at * BATCH
        assert sum(parts) == (new if is_new else 0), (what, at)
    for value in rng.sample([0, new], 2):
        dataset = Changing()
        dataset.set(what, value)
        for _ in range(2):
            later = epoch(dataset, cache, afterwards(rng, method))
            assert {sum(parts) for parts in later.values()} == {value}, (what, at, value)
    dataset.set(what, 0)
    caches.clear()


@pytest.mark.scaled
def test_code_and_attributes_in_this_process(caches, as_it_was):
    rng = random.Random(1)
    for number in range(scaled(2 * len(CODE), 4000)):
        code_case(rng, caches, None, CODE[number % len(CODE)])


@pytest.mark.scaled
@pytest.mark.sampled
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_code_and_attributes_with_workers(caches, as_it_was, method):
    rng = random.Random(2)
    kinds = CODE if method == "fork" else CODE[2:]  # others have modules of their own
    for number in range(scaled(len(kinds) if method == "fork" else 1, 1500 if method == "fork" else 100)):
        code_case(rng, caches, method, kinds[number % len(kinds)])


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_one_start_method_keeps_others_are_served(caches, method):
    cache, dataset = caches.new(), Changing()
    epoch(dataset, cache, method)
    for later in (None, "fork"):
        with headrace.DataLoader(dataset, BATCH, cache=cache, **options(later)) as loader:
            assert sum(len(batch[0]) for batch in loader) == SAMPLES
            assert loader.stats().cache.decoded == SAMPLES, later


def parsed(content):
    index, version, _ = bytes(content).split(b" ")
    return np.array([int(index), int(version)])


def write_sqlite(folder, version):
    store = open_writable(f"sqlite:///{folder}/rows.db")
    if not (folder / "rows.db").exists():
        store.create(Schema(columns={"v": Kind.INTEGER}))
    with store.writer() as writer:
        writer.put([_row(index, version) for index in range(SAMPLES)])
    store.close()
    return f"sqlite:///{folder}/rows.db"


def _row(index, version):
    return Record(f"{index:03}", payload(index, version), version, {"v": version})


def write_files(folder, version):
    for index in range(SAMPLES):
        place = folder / "class" / f"{index:03}.bin"
        place.parent.mkdir(exist_ok=True)
        _replace(place, payload(index, version))
    return f"file://{folder}"


def write_tars(folder, version):
    for shard in range(2):
        content = BytesIO()
        with tarfile.open(fileobj=content, mode="w") as tar:
            for index in range(shard, SAMPLES, 2):
                for kind, data in (("bin", payload(index, version)), ("cls", b"%d" % version)):
                    info = tarfile.TarInfo(f"{index:03}.{kind}")
                    info.size = len(data)
                    tar.addfile(info, BytesIO(data))
        _replace(folder / f"{shard}.tar", content.getvalue())
    return f"wds://{folder}"


def write_shards(folder, version):
    columns = [("data", "bytes", None), ("label", "int", 8)]
    rows = [[payload(index, version), np.int64(version).tobytes()] for index in range(SAMPLES)]
    write_mds(folder, columns, [rows[: SAMPLES // 2], rows[SAMPLES // 2 :]])
    return f"mds://{folder}"


def _replace(path, content):
    beside = path.with_name(f".{path.name}")
    beside.write_bytes(content)
    beside.rename(path)


def _saved(folder, to):
    shutil.copytree(folder, to, copy_function=shutil.copy2, dirs_exist_ok=True)


STORES = {"sqlite": write_sqlite, "file": write_files, "wds": write_tars, "mds": write_shards}


def made(dataset, cache, method, change=lambda: None, at=-1):
    """By index: which version its payload says it is of; not of those that could not be read."""
    found, more = {}, {"on_error": headrace.Skip(max_fraction=1.0), "collate_fn": list, **options(method)}
    with dataset, headrace.DataLoader(dataset, BATCH, cache=cache, **more) as loader:
        for batch in changed(loader, change, at):
            found |= {int(data[0]): int(data[1]) for data, *_ in batch}
    return found


def store_case(rng, caches, method, kind, tmp_path):
    folder, saved = tmp_path / new_name(), tmp_path / new_name()
    folder.mkdir()
    write, cache = STORES[kind], caches.new()
    at, new = rng.randrange(SAMPLES // BATCH + 1), rng.randrange(2, 9)
    url = write(folder, 1)
    os.utime(folder)
    _saved(folder, saved)
    made(headrace.StoreDataset(url, decode=parsed), cache, method, lambda: write(folder, new), at)
    later = made(headrace.StoreDataset(url, decode=parsed), cache, afterwards(rng, method))
    assert later == dict.fromkeys(range(SAMPLES), new), (kind, at)
    shutil.rmtree(folder)
    _saved(saved, folder)
    for _ in range(2):
        restored = made(headrace.StoreDataset(url, decode=parsed), cache, afterwards(rng, method))
        assert restored == dict.fromkeys(range(SAMPLES), 1), (kind, at)
    shutil.rmtree(folder)
    caches.clear()


@pytest.mark.scaled
@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("method", [None, "fork", pytest.param("forkserver", marks=pytest.mark.soak)])
def test_stores(caches, kind, method, tmp_path):
    rng = random.Random(3)
    usual, soak = {None: (3, 700), "fork": (1, 200)}.get(method, (1, 10))
    for _ in range(scaled(usual, soak)):
        store_case(rng, caches, method, kind, tmp_path)


@pytest.mark.parametrize("workers", [0, 1])
def test_metadata_are_those_that_a_dataset_has_read(caches, workers, tmp_path):
    """One that was made before they were written again gives what it has, and leaves nothing of it to others."""
    url = write_sqlite(tmp_path, 1)
    options = {"decode": parsed, "metadata": ["v"]}
    first, cache = headrace.StoreDataset(url, **options), caches.new()
    write_sqlite(tmp_path, 5)

    def values(dataset):
        with dataset, headrace.DataLoader(dataset, SAMPLES, cache=cache, num_workers=workers) as loader:
            return [set(beside["v"].tolist()) for _ in range(2) for *_, beside in loader]

    assert values(first) == [{1}, {1}]
    assert values(headrace.StoreDataset(url, **options)) == [{5}, {5}]


def versions(batches):
    return [int(data[1]) for batch in batches for data, _ in batch]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_store_behind_a_network_that_is_restored(caches, workers, tmp_path):
    """What was read of it after it was written to goes when the loader learns of that."""
    path, cache = tmp_path / "version", caches.new()
    path.write_text("1")
    options = {"cache": cache, "collate_fn": list, "num_workers": workers}
    if workers:
        options["prefetch_factor"] = 1

    def loading():
        return headrace.DataLoader(headrace.StoreDataset(Edited(path), decode=parsed), BATCH, **options)

    with loading() as loader, loader.dataset:
        assert versions(changed(loader, lambda: path.write_text("2"), 2))[-1] == 2
        assert versions(loader) == [2] * SAMPLES
    path.write_text("1")
    for _ in range(2):
        with loading() as loader, loader.dataset:
            assert versions(loader) == [1] * SAMPLES
            assert versions(loader) == [1] * SAMPLES
