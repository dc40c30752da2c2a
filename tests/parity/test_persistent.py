"""Contract section 4: persistent_workers."""

import torch

from tests.parity.datasets import Calling, Epochs, Log, Recording, Squares, torch_random, worker_of
from tests.parity.support import children, draw, samples, seeded, wait_until


def test_workers_live_across_epochs(loader_class, tmp_path):
    log = Log(tmp_path / "log")
    loader = loader_class(Squares(8), num_workers=2, persistent_workers=True, worker_init_fn=log)
    before = children()
    for _ in range(3):
        assert samples(loader) == [i * i for i in range(8)]
        assert wait_until(lambda: len(log.read()) == 2)
    assert [worker for worker, _ in log.read()] == [0, 1]
    assert {pid for _, pid in log.read()} <= children()
    del loader
    assert wait_until(lambda: not {pid for _, pid in log.read()} & children())
    assert wait_until(lambda: children() <= before)


def test_without_it_workers_are_new_each_epoch(loader_class, tmp_path):
    log = Log(tmp_path / "log")
    loader = loader_class(Squares(8), num_workers=1, worker_init_fn=log)
    for _ in range(2):
        list(loader)
    assert [worker for worker, _ in log.read()] == [0, 0]
    assert len({pid for _, pid in log.read()}) == 2


def test_iter_returns_the_same_iterator(loader_class):
    loader = loader_class(Squares(6), num_workers=2, persistent_workers=True)
    first = iter(loader)
    assert samples(first) == samples(loader) == [i * i for i in range(6)]
    assert iter(loader) is first


def test_iter_in_mid_epoch_starts_over(loader_class):
    loader = loader_class(Squares(30), batch_size=2, num_workers=2, persistent_workers=True, in_order=True)
    for taken in (0, 1, 5):
        iterator = iter(loader)
        for _ in range(taken):
            next(iterator)
    assert samples(loader) == [i * i for i in range(30)]


def test_worker_keeps_its_dataset_copy(loader_class):
    dataset = Recording(3)
    loader = loader_class(Calling(Remember(dataset), 3), num_workers=1, persistent_workers=True)
    assert samples(loader) == [1, 2, 3]
    assert samples(loader) == [4, 5, 6]
    assert dataset.calls == []


class Remember:
    """The number of calls this copy has seen."""

    def __init__(self, dataset: Recording) -> None:
        self.dataset = dataset

    def __call__(self, index: int) -> int:
        self.dataset[index]
        return len(self.dataset.calls)


def test_seeds_do_not_change(loader_class):
    loader = loader_class(Calling(worker_of, 6), batch_size=None, num_workers=2, persistent_workers=True)
    bases = {seed - worker for _ in range(3) for worker, _, seed in loader}
    assert len(bases) == 1


def test_random_streams_continue(make):
    generator, twin = seeded(11), seeded(11)
    loader = make(
        Calling(torch_random, 3), batch_size=None, num_workers=1, persistent_workers=True, generator=generator
    )
    drawn = [value for _ in range(3) for value in loader]
    stream = seeded(draw(twin))
    expected = [torch.rand((), dtype=torch.float64, generator=stream).item() for _ in range(9)]
    assert drawn == expected


def test_base_seed_is_drawn_once(loader_class):
    generator, twin = seeded(4), seeded(4)
    loader = loader_class(Squares(4), num_workers=1, persistent_workers=True, generator=generator)
    for _ in range(3):
        list(loader)
    draw(twin)
    assert torch.equal(generator.get_state(), twin.get_state())


def test_iterable_dataset_is_iterated_again(loader_class):
    loader = loader_class(Epochs(), batch_size=None, num_workers=1, persistent_workers=True)
    assert [list(loader) for _ in range(3)] == [[1, 1], [2, 2], [3, 3]]


def test_shuffled_epochs_are_complete_and_differ(loader_class):
    loader = loader_class(
        Squares(20), shuffle=True, generator=seeded(2), num_workers=2, persistent_workers=True, in_order=True
    )
    epochs = [samples(loader) for _ in range(3)]
    assert all(sorted(epoch) == [i * i for i in range(20)] for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 3
