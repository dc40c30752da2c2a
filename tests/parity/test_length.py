"""Contract section 2: the length of loaders and of iterators."""

import warnings

import pytest

from tests.parity.datasets import Counted, Squares, Stream
from tests.parity.support import samples


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(("size", "drop", "expected"), [(3, False, 4), (3, True, 3), (None, False, 10), (20, True, 0)])
def test_map_style(loader_class, num_workers, size, drop, expected):
    loader = loader_class(Squares(10), batch_size=size, drop_last=drop, num_workers=num_workers)
    assert len(loader) == expected


def test_length_follows_the_dataset(loader_class):
    dataset = Squares(4)
    loader = loader_class(dataset, batch_size=2, num_workers=1)
    assert (len(loader), len(samples(loader))) == (2, 4)
    dataset.n = 7
    assert (len(loader), len(samples(loader))) == (4, 7)


def test_length_of_own_samplers(loader_class):
    assert len(loader_class(Squares(9), sampler=[1, 2, 3], batch_size=2, num_workers=0)) == 2
    assert len(loader_class(Squares(9), batch_sampler=[[1, 2], [3]], num_workers=0)) == 2


def test_no_length_without_sampler_length(loader_class):
    loader = loader_class(Squares(9), sampler=(i for i in (4, 2)), num_workers=1)
    with pytest.raises(TypeError):
        len(loader)
    assert samples(loader) == [16, 4]


class NoLength:
    """As samplers were told to be before torch 1.2, and some still are."""

    def __iter__(self):
        return iter([4, 2])

    def __len__(self):
        raise NotImplementedError


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_sampler_whose_length_is_not_implemented(loader_class, num_workers):
    assert samples(loader_class(Squares(9), sampler=NoLength(), num_workers=num_workers)) == [16, 4]
    single = loader_class(Squares(9), sampler=NoLength(), batch_size=None, num_workers=num_workers)
    assert [int(value) for value in single] == [16, 4]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(("size", "drop", "expected"), [(3, False, 4), (3, True, 3), (None, False, 10)])
def test_iterable_style(loader_class, num_workers, size, drop, expected):
    loader = loader_class(Counted(10, 10), batch_size=size, drop_last=drop, num_workers=num_workers)
    assert len(loader) == expected


def test_iterable_style_without_length(loader_class):
    with pytest.raises(TypeError):
        len(loader_class(Stream(3), num_workers=0))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_more_items_than_reported_warn(loader_class, num_workers):
    loader = loader_class(Counted(2, 4), batch_size=None, num_workers=num_workers)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(loader)) == 4
    assert len(loader) == 2
    with pytest.warns(UserWarning, match="Length of IterableDataset") as caught:
        assert len(list(loader)) == 4
    texts = [str(w.message) for w in caught if "Length of IterableDataset" in str(w.message)]
    assert len(texts) == 2
    for fetched, text in zip((3, 4), texts, strict=True):
        assert "was reported to be 2" in text
        assert f"but {fetched} samples have been fetched" in text


@pytest.mark.parametrize("num_workers", [0, 1])
def test_length_of_iterator(loader_class, num_workers):
    assert len(iter(loader_class(Squares(5), batch_size=2, num_workers=num_workers))) == 3
    with pytest.raises(TypeError):
        len(iter(loader_class(Counted(5, 5), num_workers=num_workers)))
