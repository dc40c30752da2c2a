"""Contract section 9: pinned memory, with and without an accelerator."""

import pytest
import torch

from tests.parity.datasets import Squares, identity
from tests.parity.support import samples

NO_ACCELERATOR = "'pin_memory' argument is set as true but no accelerator is found"
WORKERS = pytest.mark.parametrize("num_workers", [0, 1])
without = pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
with_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


class Box:
    """Knows how to pin itself."""

    def __init__(self, value: int) -> None:
        self.value = value

    def pin_memory(self) -> "Box":
        return Box(self.value + 100)


@without
@WORKERS
def test_no_accelerator_warns_and_does_not_pin(loader_class, num_workers):
    loader = loader_class(Squares(4), batch_size=2, pin_memory=True, num_workers=num_workers)
    with pytest.warns(UserWarning, match=NO_ACCELERATOR):
        batches = list(loader)
    assert samples(batches) == [0, 1, 4, 9]
    assert not any(batch.is_pinned() for batch in batches)


@pytest.mark.filterwarnings(f"ignore:{NO_ACCELERATOR}:UserWarning")
@WORKERS
def test_device_argument_is_deprecated(loader_class, num_workers):
    loader = loader_class(Squares(2), pin_memory=True, pin_memory_device="cuda", num_workers=num_workers)
    with pytest.warns(UserWarning, match="pin_memory_device is deprecated"):
        assert samples(loader) == [0, 1]


@WORKERS
def test_device_argument_alone_has_no_effect(loader_class, num_workers):
    loader = loader_class(Squares(2), pin_memory_device="cuda", num_workers=num_workers)
    assert samples(loader) == [0, 1]
    assert loader.pin_memory_device == "cuda"


@with_cuda
@WORKERS
def test_tensors_in_containers_are_pinned(loader_class, num_workers):
    data = [{"a": torch.ones(3), "b": (torch.ones(1), "text"), "c": [b"bytes", 1]}] * 2
    loader = loader_class(data, batch_size=None, pin_memory=True, num_workers=num_workers, collate_fn=identity)
    for batch in loader:
        assert batch["a"].is_pinned()
        assert batch["b"][0].is_pinned()
        assert type(batch["b"]) is tuple
        assert batch["b"][1] == "text"
        assert batch["c"] == [b"bytes", 1]


@with_cuda
@WORKERS
def test_own_method_is_called(loader_class, num_workers):
    loader = loader_class([Box(1), Box(2)], batch_size=None, pin_memory=True, num_workers=num_workers)
    assert [box.value for box in loader] == [101, 102]


@with_cuda
@WORKERS
def test_collated_batches_are_pinned(loader_class, num_workers):
    batches = list(loader_class(Squares(4), batch_size=2, pin_memory=True, num_workers=num_workers))
    assert samples(batches) == [0, 1, 4, 9]
    assert all(batch.is_pinned() for batch in batches)
