"""What operations cost is known by name, and in which of them a slow sample was when it was noticed."""

import time

import pytest
import torch
from torchvision.transforms import Compose

import headrace


class Steps(torch.utils.data.Dataset):
    """Two named operations; the second waits in one sample until told otherwise, three seconds at most."""

    def __init__(self, path=None):
        self.transform = Compose([self.cheap, self.waits])
        self.path = path

    def __len__(self):
        return 400

    def __getitem__(self, index):
        return self.transform(torch.full((100,), index))

    @staticmethod
    def cheap(value):
        return value

    def waits(self, value):
        if self.path is not None and value[0] == 40:
            give_up = time.monotonic() + 3
            while not self.path.exists() and time.monotonic() < give_up:
                time.sleep(0.01)
        return value


class TestOperations:
    @pytest.mark.parametrize("persistent", [False, True])
    def test_costs_are_known_by_name(self, persistent, tmp_path):
        options = {"num_workers": 2, "persistent_workers": persistent, "trace": tmp_path / "trace"}
        with headrace.DataLoader(Steps(), 8, **options) as loader:
            list(loader)
            list(loader)
            first, second = loader.stats().operations
            assert loader.stats().sample_bytes == 800
        assert (first.name, second.name) == ("cheap", "waits")
        assert min(first.count, second.count) >= 400
        assert first.mean_seconds > 0
        assert 0 < first.p50_seconds <= first.p90_seconds

    def test_nobody_looks_without_a_trace(self):
        with headrace.DataLoader(Steps(), 8, num_workers=2) as loader:
            list(loader)
            assert loader.stats().operations == ()
            assert loader.stats().sample_bytes == 800

    def test_a_hand_off_says_in_which_operation(self, tmp_path):
        path = tmp_path / "go"
        scheduling = headrace.Scheduling(max_displacement=None)
        options = {"num_workers": 2, "scheduling": scheduling, "trace": tmp_path / "trace"}
        with headrace.DataLoader(Steps(path), 8, shuffle=True, **options) as loader:
            for _ in loader:
                if loader.stats().hand_offs:
                    path.touch()
            stats = loader.stats()
        assert sum(operation.hand_offs for operation in stats.operations) >= 1
        assert stats.operations[1].hand_offs >= 1
