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
    assert unfit([1, "a", 2]) == {1: "does not fit its batch: it is str, and most of its batch are int"}


class Words(torch.utils.data.Dataset):
    """Of many lengths; those at 7 and 11 have a word that no vocabulary has."""

    keys = tuple(f"text-{index}" for index in range(24))

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return {"words": [-1 if index in {7, 11} else 5] * (1 + index % 3), "index": index}


def padded(samples):
    """Takes its samples apart, as many a collator does."""
    words, indices = [sample.pop("words") for sample in samples], [sample.pop("index") for sample in samples]
    if any(min(each) < 0 for each in words):
        msg = "a word that is not in the vocabulary"
        raise ValueError(msg)
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(each) for each in words], batch_first=True), indices


def unpacked(sample):
    if sample["words"][0] < 0:
        msg = "a word that is not in the vocabulary"
        raise ValueError(msg)
    return sample["words"], [sample["index"]]


@pytest.mark.parametrize("size", [4, 1, None])
@pytest.mark.parametrize(("workers", "in_order"), CASES)
def test_one_that_a_collate_fn_refuses_is_skipped_and_nobody_else(workers, in_order, size):
    loader = headrace.DataLoader(
        Words(), size, num_workers=workers, in_order=in_order, on_error=headrace.Skip(max_fraction=0.2),
        collate_fn=padded if size else unpacked,
    )  # fmt: skip
    with loader:
        indices = sorted(int(index) for _, indices in loader for index in indices)
        stats = loader.stats()
    assert indices == [index for index in range(24) if index not in {7, 11}]
    assert stats.samples == 22
    said = {failure.index: failure.error for failure in stats.skipped}
    assert sorted(said) == [7, 11]
    why = "sample 7 with the key 'text-7' cannot be collated: ValueError: a word that is not in the vocabulary"
    assert (type(said[7]), str(said[7])) == (ValueError, why)


@pytest.mark.parametrize("size", [4, 1, None])
@pytest.mark.parametrize("workers", [0, 2])
def test_one_that_a_collate_fn_refuses_is_named(workers, size):
    data, collate_fn = torch.utils.data.Subset(Words(), range(4, 8)), padded if size else unpacked
    with (
        headrace.DataLoader(data, size, num_workers=workers, in_order=True, collate_fn=collate_fn) as loader,
        pytest.raises(ValueError, match="vocabulary") as raised,
    ):
        list(loader)
    notes = str(raised.value) + "".join(getattr(raised.value, "__notes__", []))
    assert "sample 7 with the key 'text-7' cannot be collated" in notes
    assert "sample 6" not in notes


def broken(samples):
    msg = f"{len(samples)} are not enough"
    raise RuntimeError(msg)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_collate_fn_that_takes_no_sample_is_itself_at_fault(workers):
    skip = headrace.Skip(max_fraction=1.0)
    with (
        headrace.DataLoader(Words(), 4, num_workers=workers, on_error=skip, collate_fn=broken) as loader,
        pytest.raises(RuntimeError, match="4 are not enough"),
    ):
        list(loader)
    assert loader.stats().failed == 0


class Rows(torch.utils.data.Dataset):
    """Of many lengths, which fit each other; that at 5 is too narrow for the others."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((1 + index % 4 if index % 2 else 1, 2 if index == 5 else 3), float(index))


def joined(samples):
    return torch.cat(samples)


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_may_differ_are_not_blamed(workers):
    skip = headrace.Skip(max_fraction=0.5)
    with headrace.DataLoader(Rows(), 8, num_workers=workers, on_error=skip, collate_fn=joined) as loader:
        (batch,) = loader
        assert [failure.index for failure in loader.stats().skipped] == [5]
    assert set(batch.flatten().tolist()) == {0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 7.0}


def test_what_matters_is_described():
    sample = {"a": [np.zeros((2, 3), np.int16), 1.5], "b": (torch.zeros(1), "x")}
    assert described(sample) == "{a: (array of int16 (2, 3), float), b: (Tensor of float32 (1,), str)}"
