"""Who a sample is, and torchvision's names for what is done with it: keys, metadata, transforms."""

import io

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torchvision import transforms
from torchvision.transforms import v2

import headrace
from headrace.cli.__main__ import main
from headrace.store import Kind, LabelKind, Record, Schema, open_writable
from headrace.store.ingest import ingest
from tests.names import new_name


def npy(number):
    file = io.BytesIO()
    np.save(file, np.full(2, number, np.float32))
    return file.getvalue()


class TestWhoASampleIs:
    """``keys=`` and ``metadata=``: in every sample, whatever way it takes."""

    @pytest.fixture
    def patients(self, tmp_path):
        store = open_writable(f"sqlite:///{tmp_path}/patients.db")
        kinds = {"patient_id": Kind.TEXT, "age": Kind.INTEGER, "dose": Kind.NUMBER, "visits": Kind.INTEGER}
        store.create(Schema(LabelKind.INTEGER, kinds))
        with store.writer() as writer:
            writer.put(
                [
                    Record(
                        f"k{n:02}",
                        npy(n),
                        n % 3,
                        {"patient_id": f"p{n // 4}", "age": 40 + n, "dose": n / 2, "visits": None if n else 3},
                    )
                    for n in range(12)
                ]
            )
        return f"sqlite:///{tmp_path}/patients.db"

    @pytest.mark.parametrize("workers", [0, 2])
    def test_every_batch_says_so(self, patients, workers):
        dataset = headrace.StoreDataset(patients, keys=True, metadata=["patient_id", "age", "dose"])
        with headrace.DataLoader(dataset, 5, shuffle=True, num_workers=workers) as loader:
            seen = []
            for data, labels, about in loader:
                seen += zip(data[:, 0].tolist(), labels.tolist(), about["key"], about["patient_id"],
                            about["age"].tolist(), about["dose"].tolist(), strict=True)  # fmt: skip
        assert sorted(seen) == [(float(n), n % 3, f"k{n:02}", f"p{n // 4}", 40 + n, n / 2) for n in range(12)]

    def test_a_cache_gives_it_too(self, patients):
        name = f"shm://{new_name()}"
        cache = headrace.Cache(name, size="4MiB", split=(0, 100, 0))
        dataset = headrace.StoreDataset(patients, keys=True, metadata=["age"])
        try:
            with headrace.DataLoader(dataset, 4, num_workers=0, cache=cache, in_order=True) as loader:
                epochs = [[(about["key"], about["age"].tolist()) for _, _, about in loader] for _ in range(2)]
                assert loader.stats().cache.decoded == 12
            assert epochs[0] == epochs[1]
            assert epochs[0][0] == (["k00", "k01", "k02", "k03"], [40, 41, 42, 43])
        finally:
            main(["cache", "clear", name])

    def test_columns_are_those_of_the_split_in_its_order(self, patients):
        dataset = headrace.StoreDataset(patients, ["k07", "k02"])
        assert list(dataset.keys) == ["k07", "k02"]
        assert dataset.labels.tolist() == [1, 2]
        assert dataset.metadata["age"].tolist() == [47, 42]
        assert set(dataset.metadata) == {"patient_id", "age", "dose", "visits"}

    @pytest.mark.parametrize(
        ("name", "says"),
        [("weight", "metadata='weight': .* has patient_id, age"), ("visits", "11 of 12 samples .* have none")],
    )
    def test_a_column_that_cannot_be_added_is_named(self, patients, name, says):
        with pytest.raises(headrace.StoreError, match=says):
            headrace.StoreDataset(patients, metadata=[name])


class TestTorchvisionsNames:
    """``transform=``, ``target_transform=`` and ``transforms=``, as torchvision's datasets have them."""

    @pytest.fixture
    def pictures(self, tmp_path):
        for name in ("a", "b"):
            (tmp_path / "pictures" / name).mkdir(parents=True)
            for n in range(3):
                Image.new("RGB", (20 + n, 30), (n * 40, 10, 200)).save(tmp_path / "pictures" / name / f"{n}.png")
        ingest(str(tmp_path / "pictures"), f"sqlite:///{tmp_path}/pictures.db")
        return tmp_path / "pictures", f"sqlite:///{tmp_path}/pictures.db"

    def test_samples_are_those_of_an_image_folder(self, pictures):
        folder, url = pictures
        change = transforms.Compose([transforms.Resize(16), transforms.CenterCrop(16), transforms.ToTensor()])
        theirs = torchvision.datasets.ImageFolder(folder, change, target_transform=lambda label: 10 * label)
        ours = headrace.StoreDataset(url, transform=change, target_transform=lambda label: 10 * label)
        found = sorted((label, data.sum().item()) for data, label in ours)
        assert found == sorted((label, data.sum().item()) for data, label in theirs)

    def test_what_always_gives_the_same_is_part_of_decoding(self, pictures):
        _, url = pictures
        change = transforms.Compose([transforms.Resize(16), transforms.RandomHorizontalFlip(), transforms.ToTensor()])
        dataset = headrace.StoreDataset(url, transform=change)
        decoded, _ = dataset.decode(dataset.fetch(0))
        assert min(decoded.size) == 16
        assert isinstance(dataset.augment((decoded, 0))[0], torch.Tensor)

    def test_masks_are_cropped_with_their_pictures(self, tmp_path):
        store = open_writable(f"sqlite:///{tmp_path}/masks.db")
        store.create(Schema(LabelKind.BLOB, {}))
        levels = np.arange(64, dtype=np.uint8).reshape(8, 8)
        picture, mask = io.BytesIO(), io.BytesIO()
        Image.fromarray(np.repeat(levels[..., None], 3, 2)).save(picture, "PNG")
        Image.fromarray(levels).save(mask, "PNG")
        with store.writer() as writer:
            writer.put([Record("one", picture.getvalue(), mask.getvalue(), {})])
        both = v2.Compose([v2.RandomCrop(4), v2.ToImage()])
        data, label = headrace.StoreDataset(f"sqlite:///{tmp_path}/masks.db", transforms=both)[0]
        assert torch.equal(data[0], label.as_subclass(torch.Tensor))

    def test_each_operation_is_in_a_trace(self, pictures, tmp_path):
        _, url = pictures
        change = transforms.Compose([transforms.Resize(16), transforms.CenterCrop(16), transforms.ToTensor()])
        options = {"num_workers": 1, "trace": tmp_path / "trace"}
        with headrace.DataLoader(headrace.StoreDataset(url, transform=change), 3, **options) as loader:
            list(loader)
            names = [operation.name for operation in loader.stats().operations]
        assert {"Resize", "CenterCrop", "ToTensor"} <= set(names)

    def test_two_ways_at_once_are_refused(self, pictures):
        with pytest.raises(TypeError, match=r"StoreDataset\(transform=..., augment=...\): one of them is enough"):
            headrace.StoreDataset(pictures[1], transform=str, augment=str)
