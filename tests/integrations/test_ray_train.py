"""``ray.train.torch.prepare_data_loader`` gives back a loader that is ours. Under a real trainer: tests/remote."""

from types import SimpleNamespace

import pytest
import torch
from torch.distributed import HashStore
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import headrace
from tests.integrations.rank_script import Numbers

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def train():
    return pytest.importorskip("ray.train.torch", reason="ray is not installed for this Python")


@pytest.fixture
def ranks(train, monkeypatch):
    """Ray's functions believe themselves to be in a rank of so many."""
    import ray.train

    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    seen = SimpleNamespace(count=2)
    context = SimpleNamespace(get_world_size=lambda: seen.count, get_world_rank=lambda: 0)
    monkeypatch.setattr(ray.train, "get_context", lambda: context)
    monkeypatch.setattr(ray.train.torch, "get_device", lambda: torch.device("cpu"))
    yield seen
    torch.distributed.destroy_process_group()


@pytest.fixture
def prepare(ranks):
    from ray.train.v2.torch.train_loop_utils import prepare_data_loader

    return prepare_data_loader


def test_sharded_loader_is_ours_with_all_its_settings(prepare):
    skip = headrace.Skip()
    given = headrace.DataLoader(
        Numbers(8), batch_size=2, shuffle=True, num_workers=1, timeout=7, prefetch_factor=3, on_error=skip
    )
    loader = prepare(given)
    assert type(loader) is headrace.DataLoader
    assert loader is not given
    assert isinstance(loader.sampler, DistributedSampler)
    assert (loader.num_workers, loader.timeout, loader.prefetch_factor, loader.on_error) == (1, 7, 3, skip)
    with loader:
        assert sorted(value for batch in loader for value in batch.tolist()) == list(range(8))
        assert loader.stats().batches == 4


def test_state_is_that_of_the_batches_delivered(prepare):
    with prepare(headrace.DataLoader(Numbers(8), batch_size=2, num_workers=1)) as loader:
        first = next(iter(loader)).tolist()
        state = loader.state_dict()
    with prepare(headrace.DataLoader(Numbers(8), batch_size=2, num_workers=1)) as again:
        again.load_state_dict(state)
        assert first + [value for batch in again for value in batch.tolist()] == list(range(8))


def test_what_needs_no_sampler_is_given_back_as_it_is(prepare, ranks):
    own = headrace.DataLoader(Numbers(8), sampler=DistributedSampler(Numbers(8)), num_workers=1)
    assert prepare(own) is own
    ranks.count = 1
    alone = headrace.DataLoader(Numbers(8), num_workers=1)
    assert prepare(alone) is alone
    assert prepare(alone, move_to_device=False) is alone


def test_a_subclass_is_kept(prepare):
    class Special(headrace.DataLoader):
        pass

    assert type(prepare(Special(Numbers(8), num_workers=1))) is Special


def test_loader_of_torch_is_left_alone(prepare):
    loader = prepare(DataLoader(Numbers(8), batch_size=2))
    assert type(loader).__name__ == "_WrappedDataLoader"
    assert type(loader._dataloader) is DataLoader
    assert isinstance(loader.sampler, DistributedSampler)


def test_timeout_is_a_plain_number_for_everybody_else(train):
    import pickle

    loader = headrace.DataLoader(Numbers(8), num_workers=1, timeout=3)
    assert loader.timeout == 3
    assert type(pickle.loads(pickle.dumps(loader.timeout))) is float
