"""Tensors and images through the cache's codec."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors

from headrace.cache.codec import Corrupt, NotKept
from headrace.engine.staging.kinds import codec


def through(value):
    return codec().decode(codec().encode(value).bytes())


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.float32, torch.bfloat16, torch.float16, torch.bool, torch.int64, torch.complex64]
)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 4), (3, 5, 7)])
def test_tensors(dtype, shape):
    value = (torch.randn(shape) * 100).to(dtype)
    found = through(value)
    assert type(found) is torch.Tensor
    assert found.dtype == dtype
    assert found.shape == value.shape
    assert torch.equal(found, value)


def test_a_tensor_is_the_memory_of_the_entry():
    entry = codec().encode((torch.arange(1000), 1)).bytes()
    found = codec().decode(entry)[0]
    assert np.shares_memory(found.numpy(), np.frombuffer(entry, np.uint8))


def test_strides_do_not_matter():
    value = torch.arange(24).reshape(2, 3, 4).permute(2, 0, 1)
    assert torch.equal(through(value), value)


def test_torchvision_images_stay_images():
    value = tv_tensors.Image(torch.randint(0, 255, (3, 4, 5), dtype=torch.uint8))
    found = through({"image": value, "label": 4})
    assert type(found["image"]) is tv_tensors.Image
    assert torch.equal(found["image"], value)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "CMYK", "1", "P", "I;16", "F", "YCbCr"])
def test_images(mode):
    pixels = Image.fromarray(np.random.default_rng(1).integers(0, 255, (7, 5, 3), dtype=np.uint8))
    value = Image.new("I;16", (5, 7), 1234) if mode == "I;16" else pixels.convert(mode)
    found, label = through((value, 3))
    assert (found.mode, found.size, label) == (value.mode, value.size, 3)
    assert found.tobytes() == value.tobytes()
    assert found.convert("RGB").tobytes() == value.convert("RGB").tobytes()


class Odd(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (torch.zeros(3, requires_grad=True), "requires grad"),
        (torch.zeros(3).to_sparse(), "sparse"),
        (torch.zeros(3).as_subclass(Odd), "Odd"),
        (torch.nn.Linear(1, 1), "Linear"),
    ],
)
def test_what_cannot_be_kept_is_named(value, said):
    with pytest.raises(NotKept, match=said):
        codec().encode((value, 1))


def test_a_description_names_no_code():
    """Types are chosen from those known, whatever an entry says."""
    entry = bytes(codec().encode(torch.zeros(2)).bytes())
    for wrong in (b'"float3x"', b'"manual_"'):
        assert len(wrong) == len(b'"float32"')
        with pytest.raises(Corrupt):
            codec().decode(entry.replace(b'"float32"', wrong), verify=False)
