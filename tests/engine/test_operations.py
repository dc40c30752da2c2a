"""Operations are found where datasets name them, noted while they run, and change nothing."""

import functools
import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset
from torchvision import transforms as v1
from torchvision.datasets import FakeData
from torchvision.transforms import v2

from headrace.observing.operations import Operations
from headrace.trace.probe import Probe

HEADS = [number << 52 for number in range(1, 100)]


class Images(Dataset):
    def __init__(self, transform=None, target_transform=None):
        self.transform, self.target_transform = transform, target_transform

    def __len__(self):
        return 10

    def __getitem__(self, index):
        image = torch.full((3, 8, 8), index, dtype=torch.uint8)
        image = image if self.transform is None else self.transform(image)
        return image, index if self.target_transform is None else self.target_transform(index)


class Staged(Dataset):
    def __getitem__(self, index):
        return self.augment(self.decode(self.fetch(index)))

    def __len__(self):
        return 10

    def fetch(self, index):
        return bytes([index] * 100)

    def decode(self, encoded):
        return torch.frombuffer(bytearray(encoded), dtype=torch.uint8)

    def augment(self, decoded):
        return decoded + 1


def doubled(value):
    return value * 2


def noted(dataset, index=3):
    """(names in the order in which they ran, the sample, the probe)."""
    operations, probe = Operations(dataset), Probe()
    undo = operations.install(probe, HEADS[: len(operations.names)])
    sample = operations.getter()(index)
    undo()
    ran = [operations.names[(head >> 52) - 1] for head in probe.marks[1::2]]
    return ran, sample, probe


LISTS = {
    "v2": (v2.Compose([v2.ToDtype(torch.float32), v2.Normalize([1.0] * 3, [2.0] * 3)]), ["ToDtype", "Normalize"]),
    "v1": (v1.Compose([v1.ConvertImageDtype(torch.float32), v1.CenterCrop(4)]), ["ConvertImageDtype", "CenterCrop"]),
    "functions": (v2.Compose([doubled, functools.partial(torch.clamp, max=9)]), ["doubled", "clamp"]),
    "sequential": (nn.Sequential(nn.Flatten(), nn.ReLU()), ["Flatten", "ReLU"]),
    "nested": (
        v2.Compose([doubled, v2.Compose([nn.Sequential(nn.ReLU()), doubled])]),
        ["doubled", "ReLU", "doubled (2)"],
    ),
    "a function twice": (v2.Compose([doubled, doubled]), ["doubled", "doubled (2)"]),
    "twice the same": (v2.Compose([v2.Identity(), v2.Identity()]), ["Identity", "Identity (2)"]),
    "one object": (v2.CenterCrop(4), ["CenterCrop"]),
    "one function, which the dataset calls itself": (doubled, []),
    "a list of lists": (v2.RandomApply([v2.Identity()], p=1.0), ["RandomApply"]),
}


class TestFinding:
    @pytest.mark.parametrize("kind", LISTS)
    def test_lists_are_seen(self, kind):
        transform, names = LISTS[kind]
        expected = Images(transform)[3][0]
        ran, (image, _), _ = noted(Images(transform))
        assert ran == names
        assert torch.equal(image, expected)

    def test_targets_have_operations_too(self):
        assert noted(Images(v2.Identity(), v2.Compose([doubled])))[0] == ["Identity", "doubled"]

    def test_stages_are_operations_and_the_encoded_size_is_known(self):
        ran, sample, probe = noted(Staged())
        assert ran == ["fetch", "decode", "augment"]
        assert probe.bytes_in == 100
        assert sample.tolist() == [4] * 100

    def test_datasets_within_datasets(self):
        inner = Images(v2.Compose([v2.Identity()]))
        assert noted(ConcatDataset([Subset(inner, [0, 1, 2]), inner]), 4)[0] == ["Identity"]

    def test_torchvision_datasets(self):
        data = FakeData(4, (3, 8, 8), transform=v1.Compose([v1.ToTensor(), v1.RandomHorizontalFlip()]))
        assert noted(data, 1)[0] == ["ToTensor", "RandomHorizontalFlip"]

    def test_nothing_is_found_where_nothing_is_said(self):
        assert noted(Images())[0] == []
        assert Operations([1, 2, 3]).names == []
        assert Operations(None).names == []

    def test_an_image_folder_s_loader_is_an_operation(self, tmp_path):
        from PIL import Image
        from torchvision.datasets import ImageFolder

        (tmp_path / "a").mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / "a" / "0.png")
        ran, _, probe = noted(ImageFolder(tmp_path, transform=v1.ToTensor()), 0)
        assert ran == ["Loader", "ToTensor"]
        assert probe.bytes_in == (tmp_path / "a" / "0.png").stat().st_size


class TestUnchanged:
    def test_objects_stay_what_they_are(self):
        crop = v2.RandomCrop(4)
        listed = [crop, doubled]
        transform = v2.Compose(listed)
        dataset = Images(transform)
        held = {**vars(transform)}
        undo = Operations(dataset).install(Probe(), HEADS[:2])
        assert type(crop) is v2.RandomCrop
        assert vars(transform) == held
        assert transform.transforms is listed
        assert type(listed) is list
        assert listed[0] is crop
        assert listed[1] is doubled
        assert type(dataset) is Images
        assert dataset.transform is transform
        assert type(pickle.loads(pickle.dumps(crop))) is v2.RandomCrop
        undo()

    def test_libraries_have_their_functions_back(self):
        before = v1.Compose.__call__, v2.Compose.forward, nn.Sequential.forward
        undone = [
            Operations(Images(each)).install(Probe(), HEADS[:2])
            for each in (v1.Compose([doubled]), v2.Compose([doubled]), nn.Sequential(nn.ReLU()), v2.Compose([doubled]))
        ]
        assert nn.Sequential.forward is not before[2]
        for undo in undone:
            undo()
        assert (v1.Compose.__call__, v2.Compose.forward, nn.Sequential.forward) == before

    def test_a_tuple_of_operations_stays_one(self):
        transform = v1.Compose((v1.CenterCrop(4), doubled))
        dataset, members = Images(transform), transform.transforms
        assert Operations(dataset).names == ["CenterCrop", "doubled"]
        assert transform.transforms is members
        ran, _, _ = noted(dataset)
        assert ran == ["CenterCrop", "doubled"]
        assert transform.transforms == members
        assert isinstance(transform.transforms, tuple)

    def test_random_transforms_draw_the_same_numbers(self):
        transform = v2.Compose([v2.RandomResizedCrop(4), v2.RandomHorizontalFlip(), v2.ColorJitter(0.5)])
        torch.manual_seed(1)
        expected = Images(transform)[3][0]
        torch.manual_seed(1)
        assert torch.equal(noted(Images(transform))[1][0], expected)

    def test_failures_come_through_and_name_the_operation(self):
        def broken(_):
            raise ValueError("bad")

        dataset = Images(v2.Compose([v2.Identity(), broken]))
        operations, probe = Operations(dataset), Probe()
        undo = operations.install(probe, HEADS[:2])
        with pytest.raises(ValueError, match="bad"):
            dataset[0]
        undo()
        assert [head >> 52 for head in probe.marks[1::2]] == [1, 2]
        assert probe.cell[0] == 0

    def test_the_operation_under_way_can_be_seen(self):
        seen = []
        dataset = Images(v2.Compose([v2.Identity(), lambda image: seen.append(probe.cell[0]) or image]))
        operations, probe = Operations(dataset), Probe()
        undo = operations.install(probe, HEADS[:2])
        dataset[0]
        undo()
        assert seen == [2]
        assert probe.cell[0] == 0

    def test_what_cannot_be_exchanged_is_left_alone(self):
        class Sealed:
            __slots__ = ()

            def __call__(self, image):
                return image + 1

        dataset = Images(v2.Compose([Sealed(), torch.relu]))
        ran, (image, _), _ = noted(dataset)
        assert image[0, 0, 0] == 4
        assert ran == ["Sealed", "relu"]

    def test_two_at_once_do_not_disturb_each_other(self):
        dataset = Images(v2.Compose([v2.Identity(), doubled]))
        first, second = Probe(), Probe()
        undo_first = Operations(dataset).install(first, HEADS[:2])
        undo_second = Operations(dataset).install(second, HEADS[:2])
        dataset[0]
        undo_first()
        first.marks.clear()
        dataset[0]
        assert first.marks == []
        assert len(second.marks) == 8
        undo_second()
        second.marks.clear()
        assert torch.equal(dataset[3][0], torch.full((3, 8, 8), 6, dtype=torch.uint8))
        assert second.marks == []
        assert dataset.transform.transforms[1] is doubled
