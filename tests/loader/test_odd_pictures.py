"""Pictures that are broken or odd, of every kind and by seed, through the device's stages: none ends more than itself.

What the same dataset gives on the CPU is the judge: what decodes there comes, with the same pixels, beside its own
label; what does not is left out and named. 300 in `make test`, 10,000 in `make soak`.
"""

import random
import resource
import struct
import warnings

import pytest
from torchvision import transforms as v1

import headrace
from tests.engine.pictures import encoded, picture
from tests.loader.test_on_device import Files
from tests.selection import scaled

LEVELS = 2.5 / 255
GIB = 1 << 20  # in the kernel's KiB
ORIENTATION = 0x112


def image(draw):
    return picture(draw.randint(8, 70), draw.randint(8, 70), draw.randrange(1000))


def sized(content, height, width):
    """With another size in its header."""
    at = content.index(b"\xff\xc0") + 5
    return content[:at] + struct.pack(">HH", height, width) + content[at + 4 :]


def truncated(draw):
    whole = encoded(image(draw))
    return whole[: draw.randrange(len(whole))]


def damaged(draw, most):
    """A few bytes are others, among the first ``most``."""
    content = bytearray(encoded(image(draw), progressive=draw.random() < 0.2))
    for _ in range(draw.randint(1, 8)):
        content[draw.randrange(2, min(most, len(content)))] = draw.randrange(256)
    return bytes(content)


def rotated(draw):
    found = image(draw)
    exif = found.getexif()
    exif[ORIENTATION] = draw.randint(0, 9)
    return encoded(found, exif=exif)


KINDS = {
    "whole": lambda draw: encoded(image(draw)),
    "truncated": truncated,
    "wrong header": lambda draw: damaged(draw, 160),
    "damaged": lambda draw: damaged(draw, 1 << 30),
    "nothing": lambda draw: b"",
    "no height": lambda draw: sized(encoded(image(draw)), 0, draw.randint(0, 9)),
    "huge": lambda draw: sized(encoded(image(draw)), 60_000, 60_000),
    "larger than it is": lambda draw: sized(encoded(image(draw)), draw.randint(70, 300), draw.randint(70, 300)),
    "rotated": rotated,
    "grey": lambda draw: encoded(image(draw).convert("L")),
    "palette": lambda draw: encoded(image(draw).convert("P"), "PNG"),
    "CMYK": lambda draw: encoded(image(draw).convert("CMYK")),
    "alpha": lambda draw: encoded(image(draw).convert("RGBA"), "PNG"),
    "progressive": lambda draw: encoded(image(draw), progressive=True),
    "WebP": lambda draw: encoded(image(draw), "WEBP"),
    "one after the other": lambda draw: encoded(image(draw)) + encoded(image(draw)),
    "noise": lambda draw: draw.randbytes(draw.randint(1, 2000)),
    "noise that begins well": lambda draw: b"\xff\xd8\xff" + draw.randbytes(draw.randint(1, 2000)),
}
NEVER = ("nothing", "no height", "huge", "noise")
ALWAYS = ("whole", "rotated", "grey", "palette", "CMYK", "alpha", "progressive", "WebP", "one after the other")


class Odd(Files):
    """Made as they are asked for: sample ``i`` is of seed ``i``."""

    def __init__(self, count):
        super().__init__(range(count), v1.Compose([v1.CenterCrop(24), v1.ToTensor()]))

    def kind(self, index):
        return list(KINDS)[index % len(KINDS)]

    def fetch(self, index):
        return KINDS[self.kind(index)](random.Random(index)), index


@pytest.mark.scaled
def test_none_ends_more_than_itself():
    warnings.filterwarnings("ignore", module="PIL")
    count, before = scaled(300, 10_000), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    dataset, came = Odd(count), {}
    options = {"num_workers": 2, "on_error": headrace.Skip(max_fraction=0.9), "timeout": 240}
    bounded = headrace.OnDevice(max_pixels=1 << 20, memory=4 << 20)  # a damaged header may promise anything below it
    with headrace.DataLoader(dataset, 16, device="cpu", on_device=bounded, **options) as loader:
        for images, labels in loader:
            for pixels, label in zip(images.clone(), labels.tolist(), strict=True):
                assert label not in came
                came[label] = pixels
        stats = loader.stats()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GIB
    assert stats.device.peak_bytes <= bounded.memory
    assert stats.failed == count - len(came)
    for index in range(count):
        kind = dataset.kind(index)
        if index in came:
            assert kind not in NEVER
            wanted, _ = dataset[index]
            assert (came[index] - wanted).abs().max() <= LEVELS, (kind, index)
        else:
            assert kind not in ALWAYS
    refused = {failure.index: failure.error for failure in stats.skipped}
    assert set(refused).isdisjoint(came)
    for index, error in refused.items():
        if dataset.kind(index) == "huge":
            assert isinstance(error, headrace.NotOnDevice)
            assert "60000 × 60000" in str(error)
        elif not _says_another_size(error):
            with pytest.raises(Exception):  # noqa: B017  (whatever the decoder says)
                dataset[index]


def _says_another_size(error):
    """What the device would have made of it does not fit its header: refused there, whatever the CPU makes of it."""
    return isinstance(error, headrace.NotOnDevice) or "where the header promised" in str(error)
