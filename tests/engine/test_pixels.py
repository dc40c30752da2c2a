"""torchvision's transforms as numbers: drawn alike, and pixels alike within what is stated for each."""

import os
import random
import struct
import subprocess
import sys

import numpy as np
import pytest
import torch
from torchvision import transforms as v1
from torchvision.transforms import v2

from headrace import NotOnDevice
from headrace.ondevice.pixels import reference
from headrace.ondevice.pixels import view as V
from headrace.ondevice.pixels.header import header
from headrace.ondevice.pixels.recipe import recipe
from headrace.ondevice.pixels.transform_draws import resized
from tests.engine.pictures import LISTS, compose, encoded, levels, picture


@pytest.mark.parametrize("name", LISTS)
def test_draws_and_pixels_are_torchvisions(name):
    transform, (most, usual) = compose(name), LISTS[name][1]
    made = recipe(transform, pillow=True)
    worst, mean = 0.0, []
    for seed in range(20):
        size = random.Random(seed)
        height, width = size.randint(36, 150), size.randint(36, 150)
        image = picture(height, width, seed)
        torch.manual_seed(seed)
        wanted = transform(image)
        state = torch.get_rng_state()
        torch.manual_seed(seed)
        numbers = made.numbers(height, width)
        assert torch.equal(state, torch.get_rng_state())
        out = torch.empty((1, *wanted.shape), dtype=wanted.dtype)
        assert out.shape[1:] == (made.channels, numbers[V.OUT_H], numbers[V.OUT_W])
        reference.render([levels(image)], torch.tensor([numbers]), made, out)
        scale = torch.tensor(made.scale)[:, None, None]
        away = ((out[0].float() - wanted.float()) / scale).abs()
        worst, mean = max(worst, away.max().item()), [*mean, away.mean().item()]
    assert worst <= most + 1e-3
    assert np.mean(mean) <= usual + 1e-3


@pytest.mark.parametrize("new", [False, True])
def test_boxes_flips_and_factors_bit_for_bit(new):
    kind = v2 if new else v1
    crop, flip, jitter = kind.RandomResizedCrop(32), kind.RandomHorizontalFlip(), kind.ColorJitter(0.4, 0.3, 0.2, 0.1)
    made = recipe(kind.Compose([crop, flip, jitter, kind.ToImage() if new else kind.ToTensor()]), pillow=True)
    for seed in range(30):
        image = picture(50 + seed, 90 - seed, seed)
        torch.manual_seed(seed)
        if new:
            box = tuple(crop.make_params([image]).values())
            turned = not torch.rand(1) >= flip.p
            order, *factors = jitter.make_params([image]).values()
        else:
            box = crop.get_params(image, crop.scale, crop.ratio)
            turned = bool(torch.rand(1) < flip.p)
            order, *factors = jitter.get_params(jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue)
        torch.manual_seed(seed)
        numbers = made.numbers(image.height, image.width)
        assert tuple(numbers[V.FROM_Y : V.FROM_W + 1]) == tuple(box)
        assert bool(numbers[V.MIRRORED]) == turned
        drawn = numbers[V.OPERATIONS : V.OPERATIONS + 8]
        assert drawn[::2] == [which + 1 for which in order.tolist()]
        assert drawn[1::2] == [factors[which] for which in order.tolist()]


@pytest.mark.parametrize(("size", "longest"), [([40], None), ([40], 47), ([30, 50], None), (None, 44), (33, 40)])
def test_sizes_of_resize_are_torchvisions(size, longest):
    for height in range(20, 90, 7):
        for width in range(20, 90, 3):
            found = v2.Resize(size, max_size=longest)(torch.empty(3, height, width))
            assert resized(height, width, size, longest) == tuple(found.shape[1:])


def test_masks_are_v2s():
    from torchvision import tv_tensors

    transform = v2.Compose([v2.Pad(3, fill=7), v2.RandomResizedCrop(40), v2.RandomHorizontalFlip(), v2.Pad(2, fill=9)])
    made = recipe(transform, pillow=False)
    for seed in range(20):
        draw = random.Random(seed)
        size = draw.randint(30, 90), draw.randint(30, 90)
        mask = torch.randint(0, 255, size, generator=torch.Generator().manual_seed(seed)).to(torch.int32)
        torch.manual_seed(seed)
        _, wanted = transform(tv_tensors.Image(torch.zeros(3, *size, dtype=torch.uint8)), tv_tensors.Mask(mask))
        torch.manual_seed(seed)
        rows = torch.tensor([made.numbers(*size)])
        out = torch.empty((1, *wanted.shape), dtype=torch.int32)
        reference.nearest([mask], rows, made.before, made.after, out)
        assert torch.equal(out[0], wanted)


def attempted(make):
    """What it gives, or that it raised."""
    try:
        return make()
    except (RuntimeError, IndexError, ValueError):
        return None


PADDED = [
    *(kind.Pad(3, padding_mode=mode) for kind in (v1, v2) for mode in ("edge", "reflect", "symmetric")),
    *(kind.Pad(2, fill=9) for kind in (v1, v2)),
    *(kind.RandomCrop(6, padding=3, padding_mode=mode) for kind in (v1, v2) for mode in ("reflect", "symmetric")),
    *(kind.RandomCrop(6, pad_if_needed=True, padding_mode="reflect") for kind in (v1, v2)),
    v1.RandomCrop(3),
    v1.CenterCrop(3),
]


@pytest.mark.parametrize("pillow", [True, False])
@pytest.mark.parametrize("resize", [None, v2.Resize(4), v2.Resize((5, 5)), v2.Resize((9, 8))])
def test_tiny_pictures_and_those_that_have_their_size_already(resize, pillow):
    """Where torchvision raises, so do we; what is padded after a resize that changes nothing is padded all the same."""
    for padding in PADDED:
        transform = v2.Compose([each for each in (resize, padding) if each is not None])
        made = recipe(transform, pillow=pillow)
        for height, width in ((1, 1), (1, 5), (5, 1), (2, 3), (4, 4), (4, 6), (5, 5), (9, 8)):
            image = picture(height, width, 7)
            given = image if pillow else levels(image)

            def wanted(given=given, transform=transform):
                torch.manual_seed(3)
                found = transform(given)
                return levels(found) if pillow else found

            def found(image=image, size=(height, width), made=made):
                torch.manual_seed(3)
                numbers = made.numbers(*size)
                out = torch.empty((1, 3, int(numbers[V.OUT_H]), int(numbers[V.OUT_W])))
                reference.render([levels(image)], torch.tensor([numbers]), made, out)
                return out[0]

            expected, there = attempted(wanted), attempted(found)
            assert (expected is None) == (there is None), (padding, height, width)
            assert expected is None or (expected - there).abs().max() <= 2


@pytest.mark.parametrize("crop", [v1.CenterCrop(8), v1.RandomCrop(8)])
def test_what_is_padded_may_be_cropped_to_what_every_picture_has(crop):
    recipe(v1.Compose([v1.Resize((6, 6)), v1.Pad(1, padding_mode="edge"), crop]), pillow=True)
    recipe(v1.Compose([v1.RandomResizedCrop(6), v1.Pad(1, fill=4), v1.CenterCrop(8)]), pillow=True)


class Mine:
    def __call__(self, image):
        return image


@pytest.mark.parametrize(
    ("transforms", "said"),
    [
        ([Mine()], "test_pixels.Mine cannot run on the device"),
        ([v1.RandomRotation(10)], "RandomRotation cannot run"),
        ([v1.RandAugment()], "RandAugment cannot run"),
        ([v1.AutoAugment()], "AutoAugment cannot run"),
        ([lambda image: image], r"<lambda>\(\) cannot run"),
        ([v1.Resize(40), v1.RandomResizedCrop(30)], "RandomResizedCrop resizes what Resize has resized"),
        ([v1.ColorJitter(0.1), v1.CenterCrop(30)], "CenterCrop comes after ColorJitter"),
        ([v1.Resize(40, interpolation=v1.InterpolationMode.NEAREST)], "interpolation='nearest'"),
        ([v1.ToTensor(), v1.Resize(40, antialias=False)], "antialias=False"),
        ([v1.PILToTensor(), v1.Normalize([0.5] * 3, [0.5] * 3)], "Normalize needs floats"),
        ([v1.Pad(1, fill=3), v1.Pad(1, fill=4)], "Pad pads what is padded in another way"),
        ([v1.Pad(1, padding_mode="edge"), v1.Pad(1, padding_mode="edge")], "pads what is padded"),
        ([v1.ToTensor(), v1.Normalize([0.5] * 3, [0.5] * 3), v1.CenterCrop(3)], "CenterCrop comes after Normalize"),
        ([v1.ColorJitter(0, 0.1), v1.ColorJitter(0, 0.1)], "one ColorJitter with contrast"),
        (
            [v1.Pad(2, fill=9), v1.CenterCrop(8)],
            r"CenterCrop\(8, 8\) pads pictures that are smaller with nothing.*5 × 5",
        ),
        ([v1.RandomCrop(6, padding=1, fill=3), v1.CenterCrop((6, 7))], "crop no more than 6 × 6"),
    ],
)
def test_what_cannot_be_done_is_named(transforms, said):
    with pytest.raises(NotOnDevice, match=said):
        recipe(v1.Compose(transforms), pillow=True)


def test_classes_derived_from_torchvisions_are_not_torchvisions():
    class Resize(v1.Resize):
        def forward(self, image):
            return image

    with pytest.raises(NotOnDevice, match="Resize cannot run"):
        recipe(Resize(4), pillow=True)


def test_headers():
    image = picture(40, 60)
    assert header(encoded(image)) == (40, 60, True)
    assert header(encoded(image.convert("L"))) == (40, 60, True)
    assert header(encoded(image, subsampling=0)) == (40, 60, True)
    assert header(encoded(image, progressive=True)) == (40, 60, False)
    assert header(encoded(image.convert("CMYK"))) == (40, 60, False)
    assert header(encoded(image, keep_rgb=True)) == (40, 60, False)
    assert header(encoded(image)[:-10]) == (40, 60, False)
    assert header(encoded(image) + b"trailing") == (40, 60, False)
    assert header(encoded(image, "PNG")) is None
    assert header(encoded(image, exif=b"Exif\0\0" + bytes(60000))) == (40, 60, True)


def test_no_bytes_break_the_header():
    whole = encoded(picture(30, 30))
    draw = random.Random(0)
    for end in range(0, len(whole), 7):
        header(whole[:end])
    for _ in range(2000):
        broken = bytearray(whole[:700])
        for _ in range(draw.randint(1, 8)):
            broken[draw.randrange(len(broken))] = draw.randrange(256)
        found = header(bytes(broken))
        assert found is None or (found.height > 0 and found.width > 0)
    at = whole.index(b"\xff\xc0") + 5
    huge = whole[:at] + struct.pack(">HH", 60000, 60000) + whole[at + 4 :]
    assert header(huge) == (60000, 60000, True)


def test_the_kernels_are_the_twin(request):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device; tests/engine/check_on_device.py says the same without the test tools")
    from tests.engine.check_on_device import kernels_and_twin

    for name in LISTS:
        kernels_and_twin(name)


@pytest.mark.soak
def test_the_kernels_and_what_calls_them_in_the_interpreter():
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "tests.engine.interpreted"]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
