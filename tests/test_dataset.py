"""StoreDataset: with headrace's loader and torch's, forked and spawned, divided among ranks, resumed."""

import io
import itertools
import json
import pickle
import sqlite3

import numpy as np
import pytest
import torch
import torch.utils.data
from PIL import Image
from torch.utils.data.distributed import DistributedSampler

import headrace
from headrace.cache.backends import shm
from headrace.core.errors import BadRow, MissingKey, SplitError
from headrace.decoding import decode, decode_label
from headrace.store import Kind, LabelKind, Record, Schema, open_writable
from headrace.store.catalogues.keys import Keys
from headrace.testing.scripted import ScriptedStore
from tests.names import new_name


@pytest.fixture
def cache_name():
    chosen = new_name()
    yield chosen
    shm.remove(chosen)


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def encoded(array, kind="PNG", mode=None):
    out = io.BytesIO()
    image = Image.fromarray(array)
    (image.convert(mode) if mode else image).save(out, kind)
    return out.getvalue()


def filled(path, count=40, labels=LabelKind.INTEGER, payload=None):
    """A store of arrays whose values are their numbers."""
    url = f"sqlite:///{path}"
    store = open_writable(url)
    columns = {"class": Kind.TEXT} if labels is LabelKind.INTEGER else {}
    store.create(Schema(labels, {"who": Kind.TEXT, **columns}))
    label = {
        LabelKind.INTEGER: lambda n: n % 4,
        LabelKind.BLOB: lambda n: npy(np.array([n])),
        LabelKind.NONE: lambda _: None,
    }
    with store.writer() as writer:
        writer.put(
            [
                Record(
                    f"k{n:03d}",
                    npy(np.full(3, n, np.float32)) if payload is None else payload(n),
                    label[labels](n),
                    {"who": f"P{n // 5}", **({"class": "abcd"[n % 4]} if columns else {})},
                )
                for n in range(count)
            ]
        )
    store.close()
    return url


@pytest.fixture
def url(tmp_path):
    return filled(tmp_path / "s.db")


@pytest.fixture
def split(url, tmp_path):
    store = open_writable(url)
    made = headrace.split(store.columns(), {"train": 0.5, "test": 0.5}, group_by="who", stratify="class", folds=2)
    store.close()
    made.save(tmp_path / "splits.parquet")
    return f"{tmp_path}/splits.parquet"


def numbers(batches):
    return [int(value) for data, _ in batches for value in data[:, 0]]


class TestSamples:
    def test_pairs_of_data_and_label(self, url):
        with headrace.StoreDataset(url) as dataset:
            assert len(dataset) == 40
            data, label = dataset[7]
            assert (data.tolist(), label) == ([7.0] * 3, 3)
            assert dataset[-1][1] == 3
            assert [label for _, label in dataset] == [n % 4 for n in range(40)]
            assert (list(dataset.keys[:2]), dataset.keys[-1]) == (["k000", "k001"], "k039")
            assert dataset.labels.tolist() == [n % 4 for n in range(40)]
            assert dataset.classes == ["a", "b", "c", "d"]
            assert "s.db" in repr(dataset)
            with pytest.raises(IndexError, match="there are 40 samples"):
                dataset[40]

    def test_labels_may_be_files_or_absent(self, tmp_path):
        with headrace.StoreDataset(filled(tmp_path / "b.db", labels=LabelKind.BLOB)) as dataset:
            data, label = dataset[5]
            assert (data.tolist(), label.tolist()) == ([5.0] * 3, [5])
            assert dataset.labels is None
            assert dataset.classes == []
        with headrace.StoreDataset(filled(tmp_path / "n.db", labels=LabelKind.NONE)) as dataset:
            assert dataset[5].tolist() == [5.0] * 3
            assert dataset.labels is None

    def test_stages_are_what_a_sample_is_made_of(self, url):
        dataset = headrace.StoreDataset(url, decode=len, augment=lambda size: size * 10)
        with dataset:
            payload, label = dataset.fetch(3)
            assert dataset.decode((payload, label)) == (len(payload), 3)
            assert dataset.augment((5, 3)) == (50, 3)
            assert dataset[3] == (len(payload) * 10, 3)

    def test_a_mask_is_augmented_with_its_picture(self, tmp_path):
        url = filled(tmp_path / "b.db", labels=LabelKind.BLOB)
        with headrace.StoreDataset(url, augment_both=lambda data, mask: (data + mask, -mask)) as dataset:
            data, mask = dataset[4]
            assert (data.tolist(), mask.tolist()) == ([8.0] * 3, [-4])
        with pytest.raises(TypeError, match="one of them"):
            headrace.StoreDataset(url, augment=abs, augment_both=max)
        plain = headrace.StoreDataset(filled(tmp_path / "n.db", labels=LabelKind.NONE), augment_both=max)
        with plain, pytest.raises(TypeError, match="this store has no labels"):
            plain[0]

    def test_what_fails_names_the_sample(self, tmp_path):
        url = filled(tmp_path / "x.db", payload=lambda n: b"\x89PNG\r\n\x1a\nbroken")
        with headrace.StoreDataset(url) as dataset, pytest.raises(BadRow, match=r"PNG|picture") as caught:
            dataset[6]
        assert (caught.value.key, caught.value.server) == ("k006", url)
        assert str(caught.value).startswith(f"{url}, key 'k006': the payload, a picture of 14 bytes, cannot be decoded")
        with (
            headrace.StoreDataset(url, decode=lambda payload: payload.index(b"?")) as dataset,
            pytest.raises(ValueError) as caught,
        ):
            dataset[6]
        assert caught.value.__notes__ == [f"in sample 6 with the key 'k006' of {url}"]

    @pytest.mark.parametrize("payload", [b"", b"a text", b"\xff\xd8\xff\xe0 torn", b"\x93NUMPY\x01\x00torn", b"BM"])
    def test_a_payload_that_is_none_fails_by_its_key_and_is_skipped(self, tmp_path, payload, cache_name):
        bad = {5, 17}
        url = filled(tmp_path / "x.db", payload=lambda n: payload if n in bad else npy(np.full(3, n, np.float32)))
        with headrace.StoreDataset(url) as dataset:
            with pytest.raises(BadRow, match="k005") as caught:
                dataset[5]
            assert caught.value.key == "k005"
            for workers, cache in (
                (0, None),
                (1, None),
                (1, headrace.Cache(f"shm://{cache_name}", size="2MiB", split=(0, 100, 0))),
            ):
                options = {"num_workers": workers, "cache": cache, "on_error": headrace.Skip(0.1)}
                with headrace.DataLoader(dataset, 2, **options) as loader:
                    assert sorted(numbers(loader)) == [n for n in range(40) if n not in bad]
                    keys = {failure.index: failure.error.key for failure in loader.stats().skipped}
                    assert keys == {n: f"k{n:03d}" for n in bad}
        with headrace.StoreDataset(url, decode=bytes) as dataset:
            assert dataset[5][0] == payload

    def test_class_folders_are_a_store_too(self, tmp_path):
        for number, name in enumerate(("cat/a.npy", "dog/b.npy", "dog/c.npy")):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(npy(np.array([number])))
        with headrace.StoreDataset(f"file://{tmp_path}") as dataset:
            assert [(int(data), label) for data, label in dataset] == [(0, 0), (1, 1), (2, 1)]
            assert dataset.classes == ["cat", "dog"]


class TestSplits:
    def test_one_split_of_a_file(self, url, split):
        with headrace.StoreDataset(url, f"{split}:train") as train, headrace.StoreDataset(url, f"{split}:test") as test:
            assert len(train) == len(test) == 20
            assert not set(train.keys) & set(test.keys)
            assert train.labels.tolist() == [label for _, label in train]
            classes = train.labels.tolist()
        with sqlite3.connect(url.removeprefix("sqlite:///")) as database:  # the labels are corrected
            for table in ("samples", "metadata"):
                database.execute(f"UPDATE {table} SET label = 3 - label")
        database.close()
        with headrace.StoreDataset(url, f"{split}:train") as train:
            assert train.labels.tolist() == [label for _, label in train] == [3 - label for label in classes]
            fold = headrace.StoreDataset(url, f"{split}:fold0.val")
            assert set(fold.keys) < set(train.keys)
            fold.close()

    def test_keys_of_one_s_own(self, url):
        with headrace.StoreDataset(url, ["k007", "k002"]) as dataset:
            assert [label for _, label in dataset] == [3, 2]
            assert dataset.labels.tolist() == [3, 2]

    def test_mistakes_are_named(self, url, split, tmp_path):
        with pytest.raises(SplitError, match="no split 'valid'; there are train, test"):
            headrace.StoreDataset(url, f"{split}:valid")
        other = filled(tmp_path / "other.db", 30)
        with pytest.raises(SplitError, match=r"keys are not in sqlite:.*other\.db: 'k03"):
            headrace.StoreDataset(other, f"{split}:train+test")
        with pytest.raises(SplitError, match="1 of 2 keys are not in"):
            headrace.StoreDataset(url, ["k001", "nobody"])


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("make", [headrace.DataLoader, torch.utils.data.DataLoader])
@pytest.mark.sampled
def test_with_either_loader_and_any_start(url, split, make, context):
    """Read in this process first: what it holds open is not the workers'."""
    with headrace.StoreDataset(url, f"{split}:train") as dataset:
        expected = sorted(int(data[0]) for data, _ in dataset)
        loader = make(dataset, 4, num_workers=2 if context == "fork" else 1, multiprocessing_context=context)
        for _ in range(2 if context == "fork" else 1):  # a spawned worker imports torch first
            assert sorted(numbers(loader)) == expected
        if hasattr(loader, "close"):
            loader.close()
        assert int(dataset[0][0][0]) in expected


def test_a_pickled_one_is_the_same(url, split):
    with headrace.StoreDataset(url, f"{split}:train") as dataset:
        expected = [label for _, label in dataset]
        with pickle.loads(pickle.dumps(dataset)) as other:
            assert [label for _, label in other] == expected


@pytest.mark.parametrize("make", [headrace.DataLoader, torch.utils.data.DataLoader])
def test_ranks_share_an_epoch_without_overlap_or_loss(url, make):
    with headrace.StoreDataset(url) as dataset:
        before = None
        for epoch in range(2):
            orders = []
            for rank in range(4):
                sampler = DistributedSampler(dataset, 4, rank, seed=5)
                sampler.set_epoch(epoch)
                orders.append(numbers(make(dataset, 5, sampler=sampler, num_workers=1)))
            assert sorted(itertools.chain(*orders)) == list(range(40))
            assert orders != before
            before = orders


@pytest.mark.parametrize("in_order", [True, False])
def test_an_epoch_goes_on_where_it_stopped(url, split, in_order):
    with headrace.StoreDataset(url, f"{split}:train+test") as dataset:
        with headrace.DataLoader(dataset, 4, shuffle=True, num_workers=2, in_order=in_order) as loader:
            batches = iter(loader)
            seen = numbers([next(batches) for _ in range(3)])
            state = json.dumps(loader.state_dict())
        with headrace.DataLoader(dataset, 4, shuffle=True, num_workers=1, in_order=in_order) as other:
            other.load_state_dict(json.loads(state))
            seen += numbers(other)
        assert sorted(seen) == list(range(40))


def test_the_trace_sees_the_stages_and_their_bytes(url, tmp_path):
    from headrace.trace.reader import read

    with (
        headrace.StoreDataset(url) as dataset,
        headrace.DataLoader(dataset, 8, num_workers=1, trace=tmp_path / "t") as loader,
    ):
        list(loader)
        assert [operation.name for operation in loader.stats().operations] == ["fetch", "decode", "augment"]
    samples = read(tmp_path / "t").samples
    assert set(samples["bytes_in"].tolist()) == {len(npy(np.full(3, 1, np.float32)))}


def test_a_remote_store_is_read_by_blocking_calls():
    records = [Record(f"k{n}", bytes([n]), n, {}) for n in range(6)]
    with headrace.StoreDataset(ScriptedStore(records), decode=lambda payload: torch.tensor(list(payload))) as dataset:
        assert [(data.item(), label) for data, label in dataset] == [(n, n) for n in range(6)]
        with headrace.StoreDataset(dataset.store, ["k1", "gone"]) as wrong:
            with pytest.raises(MissingKey):
                wrong[1]
            with pytest.raises(SplitError, match="1 of 2 keys"):
                wrong.check()


class TestDecoding:
    RGB = np.arange(36, dtype=np.uint8).reshape(3, 4, 3)

    @pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP"])
    def test_pictures_without_loss(self, kind):
        assert np.array_equal(decode(encoded(self.RGB, kind)).numpy(), self.RGB.transpose(2, 0, 1))

    @pytest.mark.parametrize("kind", ["JPEG", "WEBP", "GIF"])
    def test_pictures_with_loss(self, kind):
        assert (decode(encoded(self.RGB, kind)).shape, decode(encoded(self.RGB, kind)).dtype) == (
            (3, 3, 4),
            torch.uint8,
        )

    def test_all_of_eight_bits_have_one_shape(self):
        for mode in ("L", "P", "1", "LA", "RGBA"):
            assert decode(encoded(self.RGB, "PNG", mode)).shape == (3, 3, 4)
        assert decode(encoded(self.RGB, "JPEG", "CMYK")).shape == (3, 3, 4)

    def test_deeper_pixels_stay(self):
        deep = np.array([[0, 70, 60000]], np.uint16)
        assert decode(encoded(deep)).tolist() == [deep.tolist()]
        real = np.array([[0.5, -1.5]], np.float32)
        assert decode(encoded(real, "TIFF")).tolist() == [real.tolist()]

    def test_masks_keep_their_values(self):
        values = np.array([[0, 7], [255, 3]], np.uint8)
        assert decode_label(encoded(values)).tolist() == values.tolist()
        palette = Image.fromarray(values, mode=None).convert("P")
        out = io.BytesIO()
        palette.save(out, "PNG")
        assert decode_label(out.getvalue()).shape == (2, 2)

    def test_arrays(self):
        for array in (
            np.arange(6).reshape(2, 3),
            np.array(1.5),
            np.arange(3, dtype=">i4"),
            np.asfortranarray(np.eye(2)),
        ):
            assert decode(npy(array)).tolist() == array.tolist()

    def test_nothing_is_unpickled(self):
        evil = io.BytesIO()
        np.save(evil, np.array([print], dtype=object), allow_pickle=True)
        with pytest.raises(ValueError, match="Python objects"):
            decode(evil.getvalue())

    def test_anything_else_is_for_the_user_to_decode(self):
        with pytest.raises(BadRow, match="neither a picture nor a NPY file; decode=bytes takes bytes"):
            decode(b"fLaC....")
        assert decode_label(b"fLaC....") == b"fLaC...."


def test_keys_take_little_memory():
    keys = Keys(["a", "", "é\ud800", "b" * 100])
    assert list(keys) == ["a", "", "é\ud800", "b" * 100] == [keys[n] for n in range(4)]
    assert keys[1:3] == ["", "é\ud800"]
    assert (len(keys), keys[-1], "a" in keys, repr(keys)) == (4, "b" * 100, True, "Keys(4)")
    many = pickle.dumps(Keys(str(n) for n in range(1000)))
    assert len(many) < 12_000
