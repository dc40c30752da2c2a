"""Pictures and torchvision's lists of transforms for the tests of the device's stages, with how far pixels may differ.

Bounds are levels of 255: the most that any pixel may differ by, and the mean. Resizing by Pillow, and of uint8 tensors
by torch, is done with weights rounded to a few bits, so that a pixel in a hundred is a level off; what follows
multiplies that. Floats are resized alike. Pillow keeps hue in eight bits, torchvision's tensors do not.
"""

import io

import numpy as np
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2

MEANS, DEVIATIONS = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def picture(height, width, seed=0):
    """Smooth, with some grain."""
    draw = np.random.default_rng(seed)
    coarse = draw.integers(0, 256, (height // 20 + 2, width // 20 + 2, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), np.int16)
    return Image.fromarray(np.clip(smooth + draw.integers(-15, 16, (height, width, 1)), 0, 255).astype(np.uint8))


def levels(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def encoded(image, kind="JPEG", **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def to_floats():
    return [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]


LISTS = {
    "crop and flip": (
        [v1.RandomResizedCrop(48), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEANS, DEVIATIONS)],
        (2, 0.1),
    ),
    "evaluation": ([v1.Resize(56), v1.CenterCrop(48), v1.ToTensor()], (2, 0.1)),
    "center crop of small ones": ([v1.CenterCrop(70), v1.ToTensor()], (0, 0)),
    "padded crop": (
        [v1.Resize((40, 40)), v1.RandomCrop(40, padding=4), v1.RandomVerticalFlip(), v1.ToTensor()],
        (2, 0.1),
    ),
    "crop if needed": ([v1.RandomCrop((50, 60), pad_if_needed=True, fill=(9, 8, 7)), v1.ToTensor()], (0, 0)),
    "reflected": (
        [v1.Pad(6, padding_mode="reflect"), v1.RandomHorizontalFlip(1), v1.Resize((40, 50)), v1.ToTensor()],
        (2, 0.1),
    ),
    "repeated after the resize": (
        [v1.Resize((30, 34)), v1.Pad((3, 5, 7, 2), padding_mode="symmetric"), v1.RandomCrop(32), v1.PILToTensor()],
        (2, 0.1),
    ),
    "edges": ([v1.Pad((3, 5), padding_mode="edge"), v1.RandomCrop(40), v1.ToTensor()], (0, 0)),
    "flip, crop, pad": (
        [
            v1.RandomVerticalFlip(1),
            v1.RandomHorizontalFlip(1),
            v1.RandomCrop(34),
            v1.Pad((1, 2, 3, 4), 5),
            v1.ToTensor(),
        ],
        (0, 0),
    ),
    "cubic": ([v1.RandomResizedCrop(48, interpolation=v1.InterpolationMode.BICUBIC), v1.ToTensor()], (2, 0.1)),
    "colours of Pillow": (
        [v1.RandomResizedCrop(48), v1.ColorJitter(0.4, 0.4, 0.4), v1.RandomGrayscale(0.3), v1.ToTensor()],
        (8, 0.3),
    ),
    "hue of Pillow": ([v1.CenterCrop(40), v1.ColorJitter(hue=0.2), v1.ToTensor()], (24, 1.5)),
    "brightness alone": ([v1.CenterCrop(40), v1.ColorJitter(brightness=0.5), v1.ToTensor()], (1, 0.1)),
    "contrast alone": ([v1.CenterCrop(40), v1.ColorJitter(contrast=0.5), v1.ToTensor()], (1, 0.1)),
    "saturation alone": ([v1.CenterCrop(40), v1.ColorJitter(saturation=0.5), v1.ToTensor()], (1, 0.1)),
    "one channel": ([v1.Resize((40, 44)), v1.Grayscale(), v1.ToTensor(), v1.Normalize([0.5], [0.2])], (2, 0.1)),
    "new, of Pillow": ([v2.RandomResizedCrop(48), v2.RandomHorizontalFlip(), *to_floats()], (2, 0.1)),
    "new, of tensors": (
        [
            v2.ToImage(),
            v2.RandomResizedCrop(48),
            v2.RandomVerticalFlip(),
            *to_floats(),
            v2.Normalize(MEANS, DEVIATIONS),
        ],
        (2, 0.1),
    ),
    "new, of floats": (
        [*to_floats(), v2.RandomResizedCrop(48, antialias=True), v2.ColorJitter(0.4, 0.4, 0.4, 0.2)],
        (0.02, 0.001),
    ),
    "new, colours": (
        [v2.ToImage(), v2.CenterCrop(40), v2.ColorJitter(0.4, 0.4, 0.4, 0.2), v2.RandomGrayscale(0.3), *to_floats()],
        (3, 0.1),
    ),
    "new, crop": (
        [v2.ToImage(), v2.RandomCrop(48, padding=3, pad_if_needed=True, fill=7), v2.Pad(2, fill=7), *to_floats()],
        (0, 0),
    ),
    "new, longest side": ([v2.Resize(60, max_size=70), v2.CenterCrop((50, 40)), *to_floats()], (2, 0.1)),
    "new, cubic": ([v2.ToImage(), v2.RandomResizedCrop(48, interpolation=3), *to_floats()], (2, 0.1)),
    "new, half": (
        [
            v2.ToImage(),
            v2.RandomResizedCrop(48),
            v2.ToDtype(torch.float16, scale=True),
            v2.Normalize(MEANS, DEVIATIONS),
        ],
        (2.5, 0.3),
    ),
}


def compose(name):
    kind = v2 if name.startswith("new") else v1
    return kind.Compose(LISTS[name][0])
