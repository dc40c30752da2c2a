"""Contract section 1: the class, its arguments, their checks and the attributes kept."""

import inspect
import multiprocessing
import os
import re

import pytest
import torch
import torch.utils.data
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, default_collate, default_convert

from tests.parity.datasets import Counted, Iter, Log, RaisingSampler, Squares, identity, plus_one
from tests.parity.support import children, draw, lists, raises, samples, seeded

POSITIONAL = [
    "dataset",
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "drop_last",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
]
KEYWORD_ONLY = ["prefetch_factor", "persistent_workers", "pin_memory_device", "in_order"]


def test_signature(loader_class):
    parameters = inspect.signature(loader_class).parameters
    kinds = {name: p.kind for name, p in parameters.items()}
    positional = [name for name, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert positional == POSITIONAL
    assert all(kinds[name] is inspect.Parameter.KEYWORD_ONLY for name in KEYWORD_ONLY)
    reference = inspect.signature(torch.utils.data.DataLoader).parameters
    for name in set(POSITIONAL + KEYWORD_ONLY) - {"num_workers", "in_order"}:
        assert parameters[name].default == reference[name].default, name


def test_thirteen_positional_arguments(loader_class):
    loader = loader_class(Squares(5), 2, False, None, None, 0, None, False, True, 0, None, None, None)
    assert lists(loader) == [[0, 1], [4, 9]]


def test_class_is_generic_and_an_instance_of_the_original(loader_class):
    class Special(loader_class[int]):
        pass

    loader = Special(Squares(2), num_workers=0)
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert samples(loader) == [0, 1]


def test_arguments_are_attributes(loader_class):
    generator, sampler = seeded(1), [2, 0, 1]
    loader = loader_class(
        Squares(3), batch_size=2, sampler=sampler, num_workers=2, collate_fn=identity, drop_last=True,
        timeout=7, worker_init_fn=identity, multiprocessing_context="fork", generator=generator,
        prefetch_factor=3, persistent_workers=True, in_order=True,
    )  # fmt: skip
    assert (loader.dataset.n, loader.batch_size, loader.num_workers, loader.timeout) == (3, 2, 2, 7)
    assert loader.sampler is sampler
    assert loader.batch_sampler.sampler is sampler
    assert loader.collate_fn is identity
    assert loader.worker_init_fn is identity
    assert loader.generator is generator
    assert (loader.drop_last, loader.persistent_workers, loader.in_order, loader.pin_memory) == (
        True,
        True,
        True,
        False,
    )
    assert (loader.prefetch_factor, loader.pin_memory_device) == (3, "")
    assert isinstance(loader_class.multiprocessing_context, property)
    assert loader.multiprocessing_context.get_start_method() == "fork"
    assert loader.check_worker_number_rationality() is None


def test_default_attributes(loader_class):
    loader = loader_class(Squares(3), num_workers=0)
    assert isinstance(loader.sampler, SequentialSampler)
    assert isinstance(loader.batch_sampler, BatchSampler)
    assert loader.batch_sampler.batch_size == loader.batch_size == 1
    assert loader.collate_fn is default_collate
    assert loader.multiprocessing_context is None
    assert loader.generator is None
    assert loader.prefetch_factor is None
    unbatched = loader_class(Squares(3), batch_size=None, num_workers=0)
    assert unbatched.collate_fn is default_convert
    assert unbatched.batch_sampler is None
    assert loader_class(Squares(3), num_workers=1).prefetch_factor == 2
    generator = seeded(0)
    shuffled = loader_class(Squares(3), shuffle=1, generator=generator, num_workers=0)
    assert isinstance(shuffled.sampler, RandomSampler)
    assert shuffled.sampler.generator is generator


@pytest.mark.parametrize(
    "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_fixed_attributes(loader_class, name):
    loader = loader_class(Squares(3), num_workers=0)
    with raises(ValueError, match=f"^{name} attribute should not be set after DataLoader is initialized$"):
        setattr(loader, name, getattr(loader, name))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_other_attributes_take_effect_at_next_iter(loader_class, num_workers, tmp_path):
    loader = loader_class(Squares(3), batch_size=3, num_workers=num_workers)
    assert lists(loader) == [[0, 1, 4]]
    loader.collate_fn = plus_one
    loader.worker_init_fn = log = Log(tmp_path / "log")
    assert lists(loader) == [[1, 2, 5]]
    assert [worker for worker, _ in log.read()] == list(range(num_workers))
    loader.num_workers = 0
    assert lists(loader) == [[1, 2, 5]]
    assert len(log.read()) == num_workers


def test_constructor_does_nothing_yet(loader_class):
    before, state = children(), torch.get_rng_state()
    loader = loader_class(Squares(3), sampler=RaisingSampler(0), num_workers=2)
    shuffled = loader_class(Squares(3), shuffle=True, num_workers=2)
    assert children() == before
    assert torch.equal(torch.get_rng_state(), state)
    assert loader is not shuffled


def test_plain_containers_are_datasets(loader_class):
    assert lists(loader_class([3, 4, 5], batch_size=2, num_workers=0)) == [[3, 4], [5]]
    assert lists(loader_class(torch.arange(3), batch_size=2, num_workers=1)) == [[0, 1], [2]]
    assert samples(loader_class({"a": 1, "b": 2}, sampler=["b", "a"], num_workers=1)) == [2, 1]


def test_only_iter_is_not_iterable_style(loader_class):
    with raises(TypeError):
        list(loader_class(Iter(), num_workers=0))


@pytest.mark.parametrize("size", [0, -1, True, 2.0])
def test_bad_batch_size(loader_class, size):
    message = re.escape(f"batch_size should be a positive integer value, but got batch_size={size}")
    with raises(ValueError, match=message):
        loader_class(Squares(3), batch_size=size, num_workers=0)


def test_empty_dataset(loader_class):
    assert list(loader_class([], num_workers=0)) == []
    assert list(loader_class([], num_workers=1)) == []
    with raises(ValueError, match="num_samples should be a positive integer value, but got num_samples=0"):
        list(loader_class([], shuffle=True, num_workers=0))


def test_any_iterable_is_a_sampler(loader_class):
    assert samples(loader_class(Squares(9), sampler=(8, 1, 1), num_workers=1)) == [64, 1, 1]
    assert lists(loader_class(Squares(9), batch_sampler=[(3, 1), [2]], num_workers=1)) == [[9, 1], [4]]


def test_batch_sampler_replaces_batch_size(loader_class):
    loader = loader_class(Squares(9), batch_sampler=[[0]], num_workers=0)
    assert loader.batch_size is None
    assert loader.drop_last is False


BATCHED = "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"sampler": [0], "shuffle": True}, ValueError, "sampler option is mutually exclusive with shuffle"),
        ({"batch_sampler": [[0]], "batch_size": 2}, ValueError, BATCHED),
        ({"batch_sampler": [[0]], "shuffle": True}, ValueError, BATCHED),
        ({"batch_sampler": [[0]], "sampler": [0]}, ValueError, BATCHED),
        ({"batch_sampler": [[0]], "drop_last": True}, ValueError, BATCHED),
        (
            {"num_workers": -1},
            ValueError,
            "num_workers option should be non-negative; use num_workers=0 to disable",
        ),
        ({"num_workers": "two"}, TypeError, ""),
        ({"drop_last": 3}, ValueError, "drop_last should be a boolean value"),
        (
            {"batch_size": None, "drop_last": True},
            ValueError,
            "batch_size=None option disables auto-batching",
        ),
        ({"timeout": -1}, ValueError, "timeout option should be non-negative"),
        (
            {"prefetch_factor": 2},
            ValueError,
            "prefetch_factor option could only be specified in multiprocessing",
        ),
        (
            {"num_workers": 1, "prefetch_factor": -1},
            ValueError,
            "prefetch_factor option should be non-negative",
        ),
        ({"persistent_workers": True}, ValueError, "persistent_workers option needs num_workers > 0"),
        (
            {"multiprocessing_context": "fork"},
            ValueError,
            r"multiprocessing_context can only be used with multi-process loading \(num_workers > 0\)",
        ),
        (
            {"num_workers": 1, "multiprocessing_context": "bad"},
            ValueError,
            "multiprocessing_context option should specify a valid start method in",
        ),
        (
            {"num_workers": 1, "multiprocessing_context": object()},
            TypeError,
            "multiprocessing_context option should be a valid context object",
        ),
    ],
    ids=lambda value: str(value).partition(" at 0x")[0],
)
def test_refused_options(loader_class, options, error, message):
    with raises(error, match=message):
        loader_class(Squares(3), **{"num_workers": 0, **options})


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's half-made iterator
@pytest.mark.parametrize(
    "options", [{"num_workers": 0, "timeout": 1}, {"num_workers": 1, "prefetch_factor": 0}], ids=str
)
def test_refused_at_iter(loader_class, options):
    loader = loader_class(Squares(3), **options)
    with raises(AssertionError):
        iter(loader)


@pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": [0]}, {"batch_sampler": [[0]]}], ids=str)
def test_iterable_dataset_refuses_order(loader_class, options):
    (name,) = options
    message = f"DataLoader with IterableDataset: expected unspecified {name} option, but got {name}="
    with raises(ValueError, match=message):
        loader_class(Counted(3, 3), num_workers=0, **options)
    assert samples(loader_class(Counted(3, 3), shuffle=False, num_workers=0)) == [0, 1, 2]


def test_more_workers_than_processors_warn(loader_class):
    many = len(os.sched_getaffinity(0)) + 1
    message = f"This DataLoader will create {many} worker processes in total.*excessive worker creation might get"
    with pytest.warns(UserWarning, match=message):
        loader = loader_class(Squares(3), num_workers=many)
    with pytest.warns(UserWarning, match=message):
        iterator = iter(loader)
    assert samples(iterator) == [0, 1, 4]


def test_context_object(loader_class):
    context = multiprocessing.get_context("fork")
    loader = loader_class(Squares(3), num_workers=1, multiprocessing_context=context)
    assert loader.multiprocessing_context is context
    assert samples(loader) == [0, 1, 4]


def test_generator_is_not_checked_by_constructor(loader_class):
    assert loader_class(Squares(3), generator="anything", num_workers=0).generator == "anything"
    generator, twin = seeded(5), seeded(5)
    iter(loader_class(Squares(3), generator=generator, num_workers=0))
    draw(twin)
    assert torch.equal(generator.get_state(), twin.get_state())
