"""``Accelerator.prepare`` gives back a loader that is still ours and does what accelerate's does."""

import pickle
import subprocess
import sys

import accelerate.data_loader
import pytest
import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.data_loader import SeedableRandomSampler, prepare_data_loader
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import RandomSampler

import headrace
from tests.integrations.rank_script import Numbers, Stream

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def fresh_accelerate():
    """accelerate's state is one per process; the next test begins without it."""
    yield
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def flat(batches):
    return [value for batch in batches for value in batch.tolist()]


def test_prepared_loader_is_ours_and_does_the_work():
    loader = headrace.DataLoader(Numbers(10), batch_size=4, shuffle=True, num_workers=1)
    accelerator = Accelerator(cpu=True)
    prepared = accelerator.prepare(loader)
    assert isinstance(prepared, headrace.DataLoader)
    assert prepared.base_dataloader is loader
    epochs = [flat(prepared) for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 2
    assert epochs[0] != epochs[1]
    assert prepared.stats().batches == 6
    assert len(prepared) == 3
    assert accelerator.prepare(prepared) is prepared
    prepared.close()


def test_model_is_trained_with_gradient_accumulation():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loader = headrace.DataLoader(Numbers(10), batch_size=2, shuffle=True, num_workers=1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    before = model.weight.detach().clone()
    stepped, last = [], []
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch[:, None].float()).mean())
            optimizer.step()
            optimizer.zero_grad()
        stepped.append(accelerator.sync_gradients)
        last.append(accelerator.gradient_state.end_of_dataloader)
    assert stepped == [False, True, False, True, True]
    assert last == [False] * 4 + [True]
    assert not accelerator.gradient_state.in_dataloader
    assert not torch.equal(model.weight, before)


def test_batches_arrive_on_the_accelerator():
    accelerator = Accelerator(cpu=True)
    prepared = accelerator.prepare(headrace.DataLoader(Numbers(4), num_workers=1))
    assert {batch.device for batch in prepared} == {accelerator.device}


def test_copying_to_a_gpu_is_left_to_the_engine():
    loader = headrace.DataLoader(Numbers(4), num_workers=1)
    prepared = prepare_data_loader(loader, torch.device("cuda", 0), put_on_device=True)
    assert prepared.base_dataloader.device == torch.device("cuda", 0)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize("drop", [False, True])
def test_shards_are_those_of_torch(split, even, drop):
    for rank in range(2):
        expected, actual = (
            prepare_data_loader(
                make(Numbers(21), batch_size=4, drop_last=drop, num_workers=0),
                num_processes=2, process_index=rank, split_batches=split, even_batches=even,
            )
            for make in (torch.utils.data.DataLoader, headrace.DataLoader)
        )  # fmt: skip
        assert isinstance(actual, headrace.DataLoader)
        assert len(actual) == len(expected)
        assert [batch.tolist() for batch in actual] == [batch.tolist() for batch in expected]


@pytest.mark.parametrize("split", [False, True])
def test_shards_of_a_stream_are_those_of_torch(split):
    for rank in range(2):
        expected, actual = (
            prepare_data_loader(
                make(Stream(), batch_size=4, num_workers=1),
                num_processes=2, process_index=rank, split_batches=split,
            )
            for make in (torch.utils.data.DataLoader, headrace.DataLoader)
        )  # fmt: skip
        assert isinstance(actual, headrace.DataLoader)
        assert [batch.tolist() for batch in actual] == [batch.tolist() for batch in expected]


def test_stream_is_dispatched():
    prepared = Accelerator(cpu=True).prepare(headrace.DataLoader(Stream(), batch_size=4, num_workers=1))
    assert isinstance(prepared, headrace.DataLoader)
    assert type(prepared) is accelerate.data_loader.DataLoaderDispatcher
    assert flat(prepared) == list(range(22))


def test_our_own_arguments_survive_sharding():
    options = {"on_error": headrace.Skip(), "loading": headrace.Loading(memory_limit=1 << 24)}
    loader = headrace.DataLoader(Numbers(8), shuffle=True, num_workers=1, timeout=7, **options)
    shard = prepare_data_loader(loader, num_processes=2, process_index=1)
    assert (shard.on_error, shard.loading, shard.device) == (*options.values(), None)
    # Not the order chosen for the loader: batches must be of one size on all ranks at every step.
    assert (shard.num_workers, shard.timeout, shard.in_order) == (1, 7, None)


def test_subclass_is_kept_where_it_can_be_built():
    class Special(headrace.DataLoader):
        pass

    class Own(headrace.DataLoader):
        def __init__(self):
            super().__init__(Numbers(8), num_workers=1)

    special, own = (prepare_data_loader(make, num_processes=2) for make in (Special(Numbers(8)), Own()))
    assert isinstance(special, Special)
    assert isinstance(own, headrace.DataLoader)
    assert isinstance(prepare_data_loader(Own()), Own)


def test_gather_for_metrics_counts_every_sample_once():
    accelerator = Accelerator(cpu=True)
    prepared = accelerator.prepare(headrace.DataLoader(Numbers(10), batch_size=4, num_workers=1))
    assert flat(accelerator.gather_for_metrics(batch) for batch in prepared) == list(range(10))
    assert accelerator.prepare(headrace.DataLoader(Numbers(10), batch_size=4)).total_batch_size == 4


@pytest.mark.parametrize("dataset", [Numbers(22), Stream()], ids=["map", "stream"])
def test_first_batches_are_skipped(dataset):
    prepared = Accelerator(cpu=True).prepare(headrace.DataLoader(dataset, batch_size=4, num_workers=1))
    rest = skip_first_batches(prepared, 2)
    assert isinstance(rest, headrace.DataLoader)
    assert flat(rest) == list(range(8, 22))
    assert flat(prepared) == list(range(22))


def test_seedable_sampler_decides_the_order():
    configuration = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=5)
    accelerator = Accelerator(cpu=True, dataloader_config=configuration)
    expected = SeedableRandomSampler(range(12), data_seed=5)
    expected = [list(expected) for _ in range(2)]
    prepared = accelerator.prepare(
        headrace.DataLoader(Numbers(12), batch_size=4, shuffle=True, num_workers=1, in_order=True)
    )
    assert [flat(prepared) for _ in range(2)] == expected
    prepared.set_epoch(1)
    assert flat(prepared) == expected[1]


def test_generators_are_synchronised_where_accelerate_does_it():
    loader = headrace.DataLoader(Numbers(12), batch_size=4, shuffle=True, num_workers=1)
    shard = prepare_data_loader(loader, num_processes=2, rng_types=["generator"])
    assert shard.rng_types == ["generator"]
    assert isinstance(loader.sampler, RandomSampler)
    assert shard.synchronized_generator is loader.sampler.generator is not None


def test_state_is_not_taken_unless_asked_for(monkeypatch):
    taken = []
    monkeypatch.setattr(headrace.DataLoader, "state_dict", taken.append)
    prepared = Accelerator(cpu=True).prepare(headrace.DataLoader(Numbers(4), num_workers=1))
    assert flat(prepared) == [0, 1, 2, 3]
    assert not taken
    with pytest.raises(AttributeError):
        prepared.state_dict()


def test_state_is_saved_and_loaded(tmp_path):
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True))

    def prepare():
        accelerator._dataloaders.clear()
        return accelerator.prepare(headrace.DataLoader(Numbers(22), batch_size=4, shuffle=True, num_workers=1))

    prepared = prepare()
    seen = []
    for batch in prepared:
        seen += batch.tolist()
        if len(seen) == 12:
            accelerator.save_state(tmp_path)
            break
    prepared.close()
    resumed = prepare()
    accelerator.load_state(tmp_path)
    seen += flat(resumed)
    assert sorted(seen) == list(range(22))
    assert sorted(flat(resumed)) == list(range(22))


@pytest.mark.parametrize("seedable", [False, True])
def test_state_of_a_shard_resumes_exactly(seedable):
    def shards(seed):
        """Both ranks of one run; a run draws its order from its own seed."""
        for rank in range(2):
            torch.manual_seed(seed)
            loader = headrace.DataLoader(Numbers(64), batch_size=4, shuffle=True, num_workers=1)
            yield prepare_data_loader(
                loader, num_processes=2, process_index=rank, use_seedable_sampler=seedable, data_seed=3,
                use_stateful_dataloader=True,
            )  # fmt: skip

    seen, states = [], []
    for shard in shards(1):
        iterator = iter(shard)
        seen += [next(iterator).tolist() for _ in range(2)]
        states.append(shard.state_dict())
        iterator.close()
        shard.close()
    for shard, state in zip(shards(2), states, strict=True):
        shard.load_state_dict(state)
        seen += [batch.tolist() for batch in shard]
    assert sorted(value for batch in seen for value in batch) == list(range(64))


def test_torchs_loader_stays_torchs():
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(headrace.DataLoader(Numbers(4), num_workers=1))
    prepared = accelerator.prepare(torch.utils.data.DataLoader(Numbers(4)))
    assert type(prepared.base_dataloader) is torch.utils.data.DataLoader
    assert flat(prepared) == [0, 1, 2, 3]


def test_timeout_is_a_number():
    loader = headrace.DataLoader(Numbers(4), num_workers=1, timeout=7)
    assert loader.timeout == 7
    assert vars(loader)["timeout"] == 7
    assert type(pickle.loads(pickle.dumps(loader.timeout))) is float
    loader.timeout = 9
    assert loader.timeout == 9
    assert headrace.DataLoader(Numbers(4), num_workers=1, timeout=loader.timeout).timeout == 9


def test_unknown_accelerate_is_refused(monkeypatch):
    monkeypatch.delattr(accelerate.data_loader, "DataLoaderAdapter")
    accelerator = Accelerator(cpu=True)
    loader = headrace.DataLoader(Numbers(4), num_workers=1)
    with pytest.raises(RuntimeError, match=r"Use accelerate 1\.0 or newer"):
        accelerator.prepare(loader)
    loader._is_accelerate_prepared = True
    assert accelerator.prepare(loader) is loader


def test_accelerate_is_not_imported_for_those_who_do_not_use_it():
    program = """if True:
        import sys
        import headrace
        loader = headrace.DataLoader([1, 2, 3], num_workers=0, timeout=0)
        assert type(loader.timeout) is int
        assert loader._is_accelerate_prepared is False
        assert not {"accelerate", "lightning"} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)
