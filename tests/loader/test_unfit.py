"""A sample that cannot be collated with the others: named, and left out where failures are skipped."""

import numpy as np
import pytest
import torch

import headrace
from headrace.engine.worker.fitting import described, unfit


def stacked(samples):
    return torch.utils.data.default_collate(samples)


CASES = [(0, True), (2, True), (2, False)]


class Samples(torch.utils.data.Dataset):
    """Those at 7 and 11 are not like the others."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        data = {7: b"bytes", 11: torch.zeros(4)}.get(index, torch.zeros(3))
        return data, index


@pytest.mark.parametrize("collate_fn", [None, stacked], ids=["standard", "own"])
@pytest.mark.parametrize(("workers", "in_order"), CASES)
def test_it_is_skipped_like_any_that_fails(workers, in_order, collate_fn):
    skip = headrace.Skip(max_fraction=0.2)
    loader = headrace.DataLoader(
        Samples(), 4, num_workers=workers, in_order=in_order, on_error=skip, collate_fn=collate_fn
    )
    with loader:
        indices = sorted(int(index) for _, labels in loader for index in labels)
        stats = loader.stats()
    assert indices == [index for index in range(24) if index not in {7, 11}]
    assert stats.samples == 22
    assert sorted(failure.index for failure in stats.skipped) == [7, 11]
    said = {failure.index: str(failure.error) for failure in stats.skipped}
    assert said[7].startswith("sample 7 does not fit its batch: it is (bytes, int), and most of its batch are (Tensor")


@pytest.mark.parametrize(("workers", "in_order"), CASES)
def test_it_is_named_where_failures_are_raised(workers, in_order):
    data = torch.utils.data.Subset(Samples(), range(4, 8))
    with (
        headrace.DataLoader(data, 4, num_workers=workers, in_order=in_order) as loader,
        pytest.raises(TypeError) as raised,
    ):
        next(iter(loader))
    notes = str(raised.value) + "".join(getattr(raised.value, "__notes__", []))
    assert "sample 7 does not fit its batch: it is (bytes, int)" in notes


def test_too_many_are_too_many():
    skip = headrace.Skip(max_fraction=0.01)
    with (
        headrace.DataLoader(Samples(), 8, num_workers=1, in_order=True, on_error=skip) as loader,
        pytest.raises(headrace.TooManyErrors),
    ):
        list(loader)


def test_nobody_is_blamed_where_nobody_can_tell():
    assert unfit([torch.zeros(1), torch.zeros(2)]) == {}
    assert unfit([1, 2, 3]) == {}
    assert unfit("abc") == {}
    assert unfit([1, "a", 2]) == {1: "is str, and most of its batch are int"}


def test_what_matters_is_described():
    sample = {"a": [np.zeros((2, 3), np.int16), 1.5], "b": (torch.zeros(1), "x")}
    assert described(sample) == "{a: (array of int16 (2, 3), float), b: (Tensor of float32 (1,), str)}"
