"""Loaders over shards behind a network: blocks instead of requests, in random order, each sample once."""

import struct

import numpy as np
import pytest
import torch

import headrace
from headrace import DataLoader, Loading, Prefetch, StoreDataset, StoreError
from headrace.store import open_store
from tests.store.shards.web import serving
from tests.store.test_shards import write_mds, write_tar

COUNT, SIZE = 600, 5000


def content(number):
    return (b"%06d" % number) * (SIZE // 6)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Nothing is kept in anybody's own folder."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module", autouse=True)
def client():
    """Its own threads begin, and stay."""
    with serving() as empty, pytest.raises(StoreError):
        open_store(f"mds+http://{empty.address}/nothing").keys()


@pytest.fixture
def web(tmp_path):
    with serving() as made:
        rows = [[content(number), struct.pack("<q", number)] for number in range(COUNT)]
        columns = [("data", "bytes", None), ("label", "int", 8)]
        write_mds(tmp_path / "mds", columns, [rows[:250], rows[250:500], rows[500:]])
        made.files = {f"mds/{path.name}": path.read_bytes() for path in (tmp_path / "mds").iterdir()}
        for shard in range(3):
            numbers = range(200 * shard, 200 * shard + 200)
            files = [file for n in numbers for file in ((f"{n:06}.bin", content(n)), (f"{n:06}.cls", b"%d" % n))]
            write_tar(tmp_path / f"{shard}.tar", files)
            made.files[f"wds/{shard:06}.tar"] = (tmp_path / f"{shard}.tar").read_bytes()
        yield made


def bytes_and_label(payload):
    return torch.frombuffer(bytearray(payload), dtype=torch.uint8)


def dataset_of(web, what="mds", **options):
    place = {"mds": f"mds+http://{web.address}/mds", "wds": f"wds+http://{web.address}/wds/{{000000..000002}}.tar"}[
        what
    ]
    return StoreDataset(place, decode=bytes_and_label, **options)


def labels_of(loader):
    """Labels in the order of delivery; each sample is what was stored under it."""
    found = []
    for data, labels in loader:
        for each, label in zip(data, labels.tolist(), strict=True):
            assert bytes(each.numpy()) == content(label)
            found.append(label)
    return found


def asked(web):
    """(requests, bytes) of samples since this was called last: tables of offsets begin at the first byte of a shard."""
    spans = [span for method, _, span in web.asked if method == "GET" and span is not None]
    web.asked.clear()
    edges = [tuple(map(int, span.removeprefix("bytes=").split("-"))) for span in spans]
    parts = [last - first + 1 for first, last in edges if first]
    return len(parts), sum(parts)


def small_blocks(monkeypatch, size=1 << 16):
    monkeypatch.setattr("headrace.blocks.block_layout.SMALL_BLOCK", size)
    return Loading(prefetch=Prefetch(memory=64 << 20))


@pytest.mark.parametrize("what", ["mds", "wds"])
@pytest.mark.parametrize("workers", [0, 2])
def test_blocks_are_read_once_and_samples_are_shuffled(web, what, workers, monkeypatch):
    loading = small_blocks(monkeypatch)
    with DataLoader(dataset_of(web, what), 32, shuffle=True, num_workers=workers, loading=loading) as loader:
        asked(web)
        found = labels_of(loader)
        requests, size = asked(web)
        assert sorted(found) == list(range(COUNT))
        assert np.abs(np.diff(found)).mean() > COUNT / 6
        assert requests <= 2 * COUNT * SIZE / (1 << 16)
        assert size < 1.5 * COUNT * SIZE
        assert loader.stats().network.order.startswith("blocks of 1")
        assert loader.stats().network.rows >= COUNT


def test_an_order_follows_from_the_seed(web, monkeypatch):
    loading, orders = small_blocks(monkeypatch), []
    for workers, seed in ((0, 1), (2, 1), (2, 2)):
        generator = torch.Generator().manual_seed(seed)
        loader = DataLoader(
            dataset_of(web), 32, shuffle=True, num_workers=workers, loading=loading, generator=generator
        )
        with loader:
            orders.append([labels_of(loader), labels_of(loader)])
    assert orders[0] == orders[1]
    assert orders[0][0] != orders[0][1]
    assert orders[1] != orders[2]


def test_a_global_shuffle_reads_samples_one_by_one(web, monkeypatch):
    loading = small_blocks(monkeypatch)
    with DataLoader(dataset_of(web), 32, shuffle="global", num_workers=1, loading=loading) as loader:
        asked(web)
        assert sorted(labels_of(loader)) == list(range(COUNT))
        assert loader.stats().network.order == "samples one by one"
        requests, _ = asked(web)
        assert COUNT <= requests <= 1.1 * COUNT  # those that are late are made again, within a part of the bytes


def test_a_few_samples_of_many_are_read_one_by_one(web, monkeypatch):
    chosen = [f"{number:09}" for number in range(0, COUNT, 10)]
    loading = small_blocks(monkeypatch)
    with DataLoader(dataset_of(web, split=chosen), 8, shuffle=True, num_workers=1, loading=loading) as loader:
        asked(web)
        assert sorted(labels_of(loader)) == list(range(0, COUNT, 10))
        _, size = asked(web)
        assert size < 1.1 * SIZE * COUNT / 10


@pytest.mark.parametrize("in_order", [True, False])
def test_an_epoch_goes_on_where_it_was_left(web, in_order, monkeypatch):
    loading = small_blocks(monkeypatch)
    options = {"shuffle": True, "num_workers": 2, "loading": loading, "in_order": in_order}
    with DataLoader(dataset_of(web), 32, **options) as loader:
        coming = iter(loader)
        before = [label for _ in range(7) for label in next(coming)[1].tolist()]
        state = loader.state_dict()
    with DataLoader(dataset_of(web), 32, **{**options, "num_workers": 1}) as other:
        other.load_state_dict(state)
        after = labels_of(other)
        assert sorted(before + after) == list(range(COUNT))
        assert sorted(labels_of(other)) == list(range(COUNT))


def test_ranks_share_shards_and_others_take_up_what_is_left(web, monkeypatch):
    """Two ranks stop in the middle of blocks, three go on: each sample once, and blocks are still blocks."""
    loading, seen, states = small_blocks(monkeypatch), [], []

    def loader_of(rank, world, workers):
        ranks = headrace.Ranks(rank=rank, world=world, rest="keep")
        return DataLoader(dataset_of(web), 16, shuffle=True, num_workers=workers, loading=loading, ranks=ranks)

    for rank in range(2):
        with loader_of(rank, 2, rank) as loader:
            coming = iter(loader)
            seen += [label for _ in range(6 + rank) for label in next(coming)[1].tolist()]
            states.append(loader.state_dict())
    asked(web)
    for rank in range(3):
        with loader_of(rank, 3, 1) as loader:
            loader.load_state_dict(states)
            seen += labels_of(loader)
    assert sorted(seen) == list(range(COUNT))
    requests, _ = asked(web)
    assert requests < COUNT / 2


def test_other_words_than_global_are_refused(web):
    with pytest.raises(ValueError, match=r"shuffle=\.\.\.\) takes True, False or 'global', not 'blocks'"):
        DataLoader(dataset_of(web), shuffle="blocks")


@pytest.mark.parametrize("what", ["mds", "wds"])
def test_places_are_the_same_however_they_are_found(web, what):
    dataset = dataset_of(web, what)
    keys = list(dataset.keys)
    at_once, one_by_one = dataset.store.lying(keys), dataset.store.lying(keys[:-1])
    assert at_once.shards[:-1].tolist() == one_by_one.shards.tolist()
    assert at_once.places[:-1].tolist() == one_by_one.places.tolist()
    with pytest.raises(headrace.MissingKey, match="nobody"):
        dataset.store.lying([*keys[:-1], "nobody"])


def test_a_loader_can_be_copied(web, monkeypatch):
    import pickle

    loading = small_blocks(monkeypatch)
    loader = pickle.loads(pickle.dumps(DataLoader(dataset_of(web), 50, shuffle=True, loading=loading, num_workers=0)))
    assert sorted(labels_of(loader)) == list(range(COUNT))
    loader.close()
    assert isinstance(loader, headrace.DataLoader)
