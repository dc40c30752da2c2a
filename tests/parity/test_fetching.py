"""Contract section 7: how samples are read from map-style and iterable-style datasets."""

import pytest
import torch
from torch.utils.data import BatchSampler, SequentialSampler
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.map import SequenceWrapper

from tests.parity.datasets import Bulk, Calling, Counted, FalsyBulk, LazyBulk, Stream, identity
from tests.parity.support import lists, samples, seeded

WORKERS = pytest.mark.parametrize("num_workers", [0, 1, 2])


@WORKERS
def test_getitems_is_preferred(loader_class, num_workers):
    loader = loader_class(Bulk(5), batch_size=2, num_workers=num_workers)
    assert lists(loader) == [[1000, 1001], [1002, 1003], [1004]]


@WORKERS
def test_getitems_length_is_not_checked(loader_class, num_workers):
    loader = loader_class(Bulk(3, extra=2), batch_size=2, num_workers=num_workers)
    assert lists(loader) == [[1000, 1001, -1, -1], [1002, -1, -1]]


@WORKERS
def test_getitems_may_give_anything_that_collate_fn_takes(loader_class, num_workers):
    assert list(loader_class(LazyBulk(3), batch_size=2, num_workers=num_workers, collate_fn=list)) == [[0, 1], [2]]


@WORKERS
def test_falsy_getitems_is_ignored(loader_class, num_workers):
    assert lists(loader_class(FalsyBulk(), batch_size=3, num_workers=num_workers)) == [[0, 1, 2], [3]]


@WORKERS
def test_getitems_is_not_used_without_batching(loader_class, num_workers):
    assert list(loader_class(Bulk(3), batch_size=None, num_workers=num_workers)) == [0, 1, 2]


@WORKERS
def test_index_may_be_a_list(loader_class, num_workers):
    sampler = BatchSampler(SequentialSampler(range(5)), 2, False)
    loader = loader_class(torch.arange(5) * 10, sampler=sampler, batch_size=None, num_workers=num_workers)
    assert lists(loader) == [[0, 10], [20, 30], [40]]


@WORKERS
def test_index_may_be_any_object(loader_class, num_workers):
    keys = [("a", 1), "b", frozenset({3}), 2.5, None]
    loader = loader_class(
        Calling(identity), sampler=keys, batch_size=None, num_workers=num_workers, collate_fn=identity
    )
    assert list(loader) == keys
    batched = loader_class(Calling(identity), sampler=keys, batch_size=2, num_workers=num_workers, collate_fn=identity)
    assert list(batched) == [keys[:2], keys[2:4], keys[4:]]


@WORKERS
def test_repeated_indices_are_repeated(loader_class, num_workers):
    loader = loader_class(range(9), batch_sampler=[[4, 4, 4], [1, 4]], num_workers=num_workers)
    assert lists(loader) == [[4, 4, 4], [1, 4]]


@WORKERS
def test_empty_index_batches_are_batches(loader_class, num_workers):
    wanted = [[4], [], [1, 4], []]
    loader = loader_class(range(9), batch_sampler=wanted, num_workers=num_workers, collate_fn=identity)
    assert list(loader) == wanted


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("drop", [False, True])
def test_stream_batches(loader_class, num_workers, drop):
    loader = loader_class(Stream(5), batch_size=2, drop_last=drop, num_workers=num_workers)
    assert lists(loader) == [[0, 1], [2, 3], [4]][: 2 if drop else 3]


def test_stream_is_not_sharded_by_itself(loader_class):
    assert samples(loader_class(Counted(3, 3), num_workers=2)) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("sizes", "drop", "expected"),
    [
        ((5, 1), False, [[0, 1], [100], [2, 3], [4]]),
        ((1, 4), False, [[0], [100, 101], [102, 103]]),
        ((5, 3), True, [[0, 1], [100, 101], [2, 3]]),
        ((1, 1), True, []),
        ((0, 3), False, [[100, 101], [102]]),
    ],
    ids=str,
)
def test_stream_order_over_workers(loader_class, sizes, drop, expected):
    loader = loader_class(Stream(*sizes), batch_size=2, drop_last=drop, num_workers=2)
    assert lists(loader) == expected
    assert lists(loader) == expected


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_stream_order_over_three_workers(loader_class):
    loader = loader_class(Stream(5, 1, 4), batch_size=2, num_workers=3)
    assert lists(loader) == [[0, 1], [100], [200, 201], [2, 3], [202, 203], [4]]


@pytest.mark.parametrize("persistent", [False, True])
def test_stream_unbatched_order(loader_class, persistent):
    loader = loader_class(Stream(3, 1), batch_size=None, num_workers=2, persistent_workers=persistent)
    for _ in range(2):
        assert list(loader) == [0, 100, 1, 2]


def test_stream_out_of_order_is_complete(loader_class):
    loader = loader_class(Stream(5, 4), batch_size=2, num_workers=2, in_order=False)
    assert sorted(lists(loader)) == [[0, 1], [2, 3], [4], [100, 101], [102, 103]]


@WORKERS
def test_iter_data_pipe_is_shuffled_and_sharded(loader_class, num_workers):
    pipe = IterableWrapper(range(10)).shuffle().sharding_filter()

    def epoch(seed: int, shuffle: bool) -> list[int]:
        loader = loader_class(pipe, shuffle=shuffle, num_workers=num_workers, generator=seeded(seed))
        return samples(loader)

    plain = epoch(1, False)
    assert plain == list(range(10))
    first = epoch(1, True)
    assert sorted(first) == plain
    assert first != plain
    assert epoch(1, True) == first
    assert epoch(2, True) != first


@WORKERS
def test_map_data_pipe(loader_class, num_workers):
    loader = loader_class(SequenceWrapper(range(5)), batch_size=2, num_workers=num_workers)
    assert lists(loader) == [[0, 1], [2, 3], [4]]
