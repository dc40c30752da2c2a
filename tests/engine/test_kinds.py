"""Tensors and images through the cache's codec."""

import io

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps, PngImagePlugin, TiffImagePlugin
from torchvision import tv_tensors

from headrace.cache.entries.codec import Corrupt, NotKept
from headrace.caching.plans import codec
from headrace.caching.tensors import _DTYPES
from tests.cache.sealed import sealed, unsealed


def through(value):
    return unsealed(sealed(value, codec()), codec())


def raw(value):
    return value.as_subclass(torch.Tensor).contiguous().reshape(-1).view(torch.uint8).tolist()


def alike(found, value):
    assert type(found) is type(value)
    assert (found.dtype, found.shape, found.stride()) == (value.dtype, value.shape, value.stride())
    assert raw(found) == raw(value)
    assert vars(found) == vars(value)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", _DTYPES.values(), ids=list(_DTYPES))
def test_tensors(dtype):
    for shape in [(3,), (2, 0, 4), (3, 5, 7)]:
        value = (torch.randn(shape) * 100).to(dtype)
        alike(through(value), value)
    assert through(torch.tensor(1.5)).item() == 1.5
    assert through(torch.tensor(1.5)).shape == ()


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(2, 1, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(1, 3, 1, 1).to(memory_format=torch.channels_last),
        torch.randn(1, 2, 3, 4, 5).to(memory_format=torch.channels_last_3d),
        torch.randn(4, 5, 3).permute(2, 0, 1),
        torch.randn(9, 9)[2:5, 1:4],
        torch.randn(9)[::3],
        torch.randn(3, 1).expand(3, 4),
        torch.arange(9).unfold(0, 3, 1),
        torch.randn(3, 4)[:, :0],
    ],
    ids=lambda value: str(tuple(value.shape)),
)
def test_strides_come_back(value):
    alike(through(value), value)


def test_a_tensor_is_the_memory_of_the_entry():
    entry = sealed((torch.arange(1000), 1), codec())
    found = unsealed(entry, codec())[0]
    assert np.shares_memory(found.numpy(), entry)


@pytest.mark.parametrize(
    "value",
    [
        tv_tensors.Image(torch.randint(0, 255, (3, 4, 5), dtype=torch.uint8)),
        tv_tensors.Video(torch.zeros(2, 3, 4, 5)),
        tv_tensors.Mask(torch.ones(4, 5, dtype=torch.bool)),
        tv_tensors.BoundingBoxes(torch.arange(8.0).view(2, 4), format="CXCYWH", canvas_size=(30, 40)),
        tv_tensors.KeyPoints(torch.arange(8.0).view(4, 2), canvas_size=(30, 40)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_torchvision_s_tensors_stay_what_they_are(value):
    found = through({"value": value, "label": 4})["value"]
    alike(found, value)
    assert repr(found) == repr(value)


def test_sizes_and_repeated_tensors():
    value = torch.arange(3)
    found = through((value.shape, value, value, tv_tensors.Mask(torch.ones(2))))
    assert type(found[0]) is torch.Size
    assert found[0] == (3,)
    assert found[1] is found[2]


MODES = ["RGB", "L", "RGBA", "CMYK", "1", "P", "PA", "LA", "La", "RGBa", "I;16", "I;16B", "I", "F", "HSV", "LAB"]


def drawn(mode):
    pixels = np.random.default_rng(1).integers(0, 255, (7, 5, 4), dtype=np.uint8)
    if mode.startswith("I;16"):
        return Image.frombytes(mode, (5, 7), pixels[..., :2].tobytes())
    picture = Image.fromarray(pixels[..., :3])
    if mode == "LAB":
        return Image.frombytes("LAB", (5, 7), pixels[..., :3].tobytes())
    if mode in {"RGBA", "RGBa", "LA", "La", "PA"}:
        picture = Image.fromarray(pixels, "RGBA")
    steps = {"RGBa": ["RGBa"], "La": ["LA", "La"], "PA": ["LA", "PA"]}.get(mode, [mode])
    for step in steps:
        picture = picture.convert(step)
    return picture


@pytest.mark.parametrize("mode", MODES)
def test_images(mode):
    value = drawn(mode)
    value.info = {"dpi": (72, 72.5), "icc_profile": b"abc", "odd": None}
    found, label = through((value, 3))
    assert type(found) is type(value)
    assert (found.mode, found.size, found.info, label) == (value.mode, value.size, value.info, 3)
    assert found == value
    if mode not in {"LAB", "La", "RGBa"}:
        assert found.convert("RGB").tobytes() == value.convert("RGB").tobytes()


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
@pytest.mark.parametrize("transparency", [None, 1, bytes(range(4))])
@pytest.mark.parametrize("rawmode", ["RGB", "RGBA"])
def test_palettes(transparency, rawmode):
    value = Image.new("P", (4, 1))
    value.putdata([0, 1, 2, 3])
    value.putpalette(list(range(4 * len(rawmode))), rawmode)
    if transparency is not None:
        value.info["transparency"] = transparency
    found = through(value)
    assert found.getpalette("RGBA") == value.getpalette("RGBA")
    assert found.palette.mode == value.palette.mode
    assert found.convert("RGBA").tobytes() == value.convert("RGBA").tobytes()
    assert found.resize((2, 1)).convert("RGB").tobytes() == value.resize((2, 1)).convert("RGB").tobytes()


def test_a_picture_is_turned_as_its_exif_says():
    """A hit must give what a miss gives: without ``info`` it would not be turned."""
    written, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (32, 16)).save(written, "jpeg", exif=exif, dpi=(300, 300))
    value = Image.open(written).copy()
    assert ImageOps.exif_transpose(value).size == ImageOps.exif_transpose(through(value)).size == (16, 32)
    turned = ImageOps.exif_transpose(value)
    assert ImageOps.exif_transpose(through(turned)).size == (16, 32)
    value.getexif()[0x0112] = 3
    with pytest.raises(NotKept, match="getexif"):
        through(value)


def test_what_files_note_comes_along():
    written, notes = io.BytesIO(), PngImagePlugin.PngInfo()
    notes.add_itxt("XML:com.adobe.xmp", "<x>", "en", "key")
    notes.add_text("Title", "a")
    Image.new("L", (3, 2)).save(written, "png", pnginfo=notes)
    value = Image.open(written).copy()
    value.info["dpi"] = (TiffImagePlugin.IFDRational(300, 1), 7)
    found = through(value)
    text = found.info["XML:com.adobe.xmp"]
    assert (type(text), text, text.lang, text.tkey) == (PngImagePlugin.iTXt, "<x>", "en", "key")
    assert type(found.info["dpi"][0]) is TiffImagePlugin.IFDRational
    assert found.info == value.info


class Odd(torch.Tensor):
    pass


def noted(value):
    value.note = 1
    return value


def opened():
    written = io.BytesIO()
    Image.new("L", (2, 2)).save(written, "png")
    return Image.open(written)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (torch.zeros(3, requires_grad=True), "requires grad"),
        (torch.zeros(3).to_sparse(), "sparse"),
        (torch.zeros(3, dtype=torch.complex64).conj(), "conjugate"),
        (noted(torch.zeros(3)), "attributes of its own: note"),
        (noted(tv_tensors.Mask(torch.zeros(3))), "Mask of torchvision with attributes of its own: note"),
        (noted(Image.new("L", (2, 2))), "PIL image with attributes of its own: note"),
        (opened(), r"PngImageFile, an open file, .* `.copy\(\)`"),
        (torch.nn.Parameter(torch.zeros(2)), "Parameter"),
        ([(shared := torch.zeros(4))[:2], shared[1:]], "share memory"),
        (torch.zeros(3).as_subclass(Odd), "Odd"),
        (torch.nn.Linear(1, 1), "Linear"),
    ],
)
def test_what_cannot_be_kept_is_named(value, said):
    with pytest.raises(NotKept, match=said):
        codec().describe((value, 1))


def test_a_layout_names_no_code():
    """Types are chosen from those known, whatever an entry says."""
    described = codec().describe((torch.zeros(2), tv_tensors.Mask(torch.zeros(2))))
    body = bytearray(described.size)
    described.write(memoryview(body), but_last=False)
    for known, wrong in ((b"float32", b"manual_seed"), (b"Mask", b"TVTensor"), (b"TC1", b"TX1")):
        assert known in described.layout
        with pytest.raises(Corrupt):
            codec().rebuild(described.layout.replace(known, wrong), memoryview(body))
