"""Contract section 3: what iter() and next() do, order and prefetch."""

import threading

import pytest

from tests.parity.datasets import (
    Attribute,
    Calling,
    CountingSampler,
    Gated,
    Recording,
    Squares,
    identity,
    pid_of,
    with_pid,
)
from tests.parity.support import children, lists, samples, wait_until

WORKERS = pytest.mark.parametrize("num_workers", [0, 1, 2])


@WORKERS
def test_every_way_to_iterate(loader_class, num_workers):
    loader = loader_class(Squares(5), batch_size=2, num_workers=num_workers, in_order=True)
    expected = [[0, 1], [4, 9], [16]]
    assert lists(loader) == expected
    assert [batch.tolist() for batch in loader] == expected
    assert [(i, batch.tolist()) for i, batch in zip(range(2), loader, strict=False)] == [
        (0, [0, 1]),
        (1, [4, 9]),
    ]
    iterator = iter(loader)
    assert iter(iterator) is iterator
    assert [next(iterator).tolist() for _ in range(3)] == expected
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(iterator)


def test_no_worker_runs_here_and_reads_nothing_ahead(loader_class):
    threads: list[int] = []

    def call(index: int) -> int:
        threads.append(threading.get_ident())
        return pid_of(index)

    dataset, before = Recording(6), children()
    iterator = iter(loader_class(dataset, batch_size=2, num_workers=0))
    assert dataset.calls == []
    next(iterator)
    assert dataset.calls == [0, 1]
    assert children() == before
    assert set(samples(loader_class(Calling(call, 2), num_workers=0))) == {pid_of(0)}
    assert set(threads) == {threading.get_ident()}


@WORKERS
def test_collate_runs_where_samples_are_made(loader_class, num_workers):
    loader = loader_class(Calling(pid_of, 4), batch_size=2, num_workers=num_workers, collate_fn=with_pid)
    for batch, collator in loader:
        assert ({collator, *batch} == {pid_of(0)}) is (num_workers == 0)
        assert (pid_of(0) in {collator, *batch}) is (num_workers == 0)


def test_workers_start_at_iter(loader_class):
    dataset = Gated(4, held=-1)
    iterator = iter(loader_class(dataset, num_workers=1))
    assert dataset.touched.wait(240)
    assert samples(iterator) == [0, 1, 2, 3]


@pytest.mark.parametrize("prefetch", [1, 2])
@pytest.mark.parametrize("size", [1, 3])
def test_outstanding_batches_are_bounded(loader_class, prefetch, size):
    sampler = CountingSampler(48)
    loader = loader_class(
        Squares(48), batch_size=size, sampler=sampler, num_workers=2, prefetch_factor=prefetch, in_order=True
    )
    iterator = iter(loader)
    assert 0 < sampler.drawn <= 2 * prefetch * size
    for taken in range(1, 5):
        next(iterator)
        assert taken * size <= sampler.drawn <= (2 * prefetch + taken) * size


def test_in_order_waits_for_the_slow_one(loader_class):
    loader = loader_class(Gated(8, held=0, opener=3), num_workers=2, in_order=True)
    assert samples(loader) == list(range(8))


@pytest.mark.parametrize("size", [1, 2])
def test_out_of_order_does_not_wait(loader_class, size):
    dataset = Gated(8 * size, held=0)
    loader = loader_class(dataset, batch_size=size, num_workers=2, in_order=False)
    iterator = iter(loader)
    early = [next(iterator).tolist() for _ in range(4)]
    assert not any(0 in batch for batch in early)
    dataset.gate.set()
    everything = early + lists(iterator)
    assert [len(batch) for batch in everything] == [size] * 8
    assert sorted(index for batch in everything for index in batch) == list(range(8 * size))


def test_out_of_order_keeps_the_batches_of_a_batch_sampler(loader_class):
    dataset = Gated(8, held=0)
    wanted = [[0, 5], [1, 7, 2], [6], [3, 4]]
    iterator = iter(loader_class(dataset, batch_sampler=wanted, num_workers=2, in_order=False))
    first = next(iterator).tolist()
    dataset.gate.set()
    assert first != wanted[0]
    assert sorted([first, *lists(iterator)]) == sorted(wanted)


@pytest.mark.parametrize("drop", [False, True])
def test_out_of_order_sizes(loader_class, drop):
    loader = loader_class(Squares(11), batch_size=4, drop_last=drop, num_workers=2, in_order=False)
    batches = lists(loader)
    assert sorted(map(len, batches)) == ([4, 4] if drop else [3, 4, 4])
    seen = [value for batch in batches for value in batch]
    assert len(set(seen)) == len(seen)
    assert set(seen) <= {i * i for i in range(11)}


@WORKERS
def test_iterators_are_independent(loader_class, num_workers):
    loader = loader_class(Squares(4), batch_size=2, num_workers=num_workers)
    first, second = iter(loader), iter(loader)
    assert first is not second
    assert next(first).tolist() == [0, 1]
    assert next(second).tolist() == [0, 1]
    assert next(first).tolist() == [4, 9]
    assert next(second).tolist() == [4, 9]


def test_nested_loops(loader_class):
    loader = loader_class(Squares(2), num_workers=1)
    pairs = [(a.item(), b.item()) for a in loader for b in loader]
    assert pairs == [(0, 0), (0, 1), (1, 0), (1, 1)]


@WORKERS
def test_leaving_early(loader_class, num_workers):
    loader = loader_class(Squares(20), batch_size=2, num_workers=num_workers)
    for _ in range(2):
        for batch in loader:
            assert batch.tolist() == [0, 1]
            break
    assert samples(loader) == [i * i for i in range(20)]


@pytest.mark.parametrize(("persistent", "second"), [(False, 8), (True, 7)])
def test_dataset_changes_between_epochs(loader_class, persistent, second):
    loader = loader_class(Attribute(7), num_workers=1, persistent_workers=persistent)
    assert set(samples(loader)) == {7}
    loader.dataset.value = 8
    assert set(samples(loader)) == {second}


def test_batches_stay_valid(loader_class):
    loader = loader_class(Squares(40), batch_size=2, num_workers=2, in_order=True)
    kept = list(loader)
    assert samples(kept) == [i * i for i in range(40)]
    kept[0].add_(100)
    assert kept[0].tolist() == [100, 101]
    assert samples(loader) == [i * i for i in range(40)]


def test_unbatched_with_custom_collate(loader_class):
    loader = loader_class(Squares(3), batch_size=None, num_workers=1, collate_fn=identity)
    assert list(loader) == [0, 1, 4]


def test_two_loaders_at_once(loader_class):
    left = loader_class(Squares(6), batch_size=2, num_workers=1)
    right = loader_class(Attribute(5, 6), batch_size=2, num_workers=1)
    assert [(a.tolist(), b.tolist()) for a, b in zip(left, right, strict=True)] == [
        ([0, 1], [5, 5]),
        ([4, 9], [5, 5]),
        ([16, 25], [5, 5]),
    ]


def test_no_process_left_after_an_epoch(loader_class):
    before = children()
    loader = loader_class(Squares(6), num_workers=2)
    list(loader)
    assert wait_until(lambda: children() <= before)
