"""The random draws of torchvision's transforms, and their effect on a picture's geometry and colours, without the
picture.

Every random number is drawn by the transform's own function, in the order in which the transform itself would: v1's
``get_params``, v2's ``make_params``. A draw is given the transform and the view so far.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from headrace.ondevice.pixels.view import View

Draw = Callable[[View], None]
BRIGHTNESS, CONTRAST, SATURATION, HUE, GREY = range(1, 6)


def stand_in(view: View) -> torch.Tensor:
    """Has the picture's size, which is all that torchvision asks it for, and no memory."""
    return _PIXEL.expand(3, view.height, view.width)


_PIXEL = torch.empty((), dtype=torch.uint8)


def params(transform: Any, view: View) -> dict[str, Any]:
    """The parameters that a v2 transform draws."""
    found: dict[str, Any] = transform.make_params([stand_in(view)])
    return found


def is_new(transform: Any) -> bool:
    """True for a transform of v2. Its class is asked: modules take long to say that they do not have something."""
    return hasattr(type(transform), "make_params")


def happens(probability: float) -> bool:
    """True with this probability, drawn as torchvision does, which compares in single precision."""
    return bool(torch.rand(1).item() < np.float32(probability))


def resize(transform: Any, view: View) -> None:
    """``Resize``."""
    # Also to the size that it has, which changes no pixel: what is padded from here on is padded after a resize.
    view.resize(*resized(view.height, view.width, transform.size, transform.max_size))


def resized(height: int, width: int, size: Any, longest: int | None) -> tuple[int, int]:
    """The size that ``Resize`` gives a picture of this one."""
    short, long = (width, height) if width <= height else (height, width)
    wanted = [size] if isinstance(size, int) else size
    if wanted is not None and len(wanted) == 2:
        return wanted[0], wanted[1]
    if wanted is None:
        assert longest is not None
        new_short, new_long = int(longest * short / long), longest
    else:
        new_short, new_long = wanted[0], int(wanted[0] * long / short)
        if longest is not None and new_long > longest:
            new_short, new_long = int(longest * new_short / new_long), longest
    new_short = max(new_short, 0)
    return (new_long, new_short) if width <= height else (new_short, new_long)


def center_crop(transform: Any, view: View) -> None:
    """``CenterCrop``: a picture that is too small is padded with nothing."""
    h, w = sides(transform.size)
    tall, wide = h - view.height, w - view.width
    if tall > 0 or wide > 0:
        tall, wide = max(tall, 0), max(wide, 0)
        view.pad(wide // 2, tall // 2, (wide + 1) // 2, (tall + 1) // 2)
        if (h, w) == (view.height, view.width):
            return
    view.crop(round((view.height - h) / 2.0), round((view.width - w) / 2.0), h, w)


def random_resized_crop(transform: Any, view: View) -> None:
    """``RandomResizedCrop``."""
    if is_new(transform):
        box = params(transform, view)
        y, x, h, w = box["top"], box["left"], box["height"], box["width"]
    else:
        y, x, h, w = transform.get_params(stand_in(view), transform.scale, transform.ratio)
    view.crop(y, x, h, w)
    view.resize(*sides(transform.size))


def random_crop(transform: Any, view: View) -> None:
    """``RandomCrop``."""
    if is_new(transform):
        drawn = params(transform, view)
        if drawn["needs_pad"]:
            view.pad(*drawn["padding"])
        if drawn["needs_crop"]:
            view.crop(drawn["top"], drawn["left"], drawn["height"], drawn["width"])
        return
    h, w = transform.size
    if transform.padding is not None:
        view.pad(*margins(transform.padding))
    height, width = view.height, view.width
    if transform.pad_if_needed and width < w:
        view.pad(w - width, 0, w - width, 0)
    if transform.pad_if_needed and height < h:
        view.pad(0, h - height, 0, h - height)
    view.crop(*transform.get_params(stand_in(view), transform.size))


def within(function: Callable[[Any, View], None], transform: Any, view: View) -> None:
    """A transform that pads tensors: torchvision raises where there is not enough to repeat, and so does this."""
    view.repeats = transform.padding_mode
    function(transform, view)
    view.repeats = None


def pad(transform: Any, view: View) -> None:
    """``Pad``."""
    view.pad(*margins(transform.padding))


def horizontal_flip(transform: Any, view: View) -> None:
    """``RandomHorizontalFlip``."""
    if happens(transform.p):
        view.mirror()


def vertical_flip(transform: Any, view: View) -> None:
    """``RandomVerticalFlip``."""
    if happens(transform.p):
        view.turn_over()


def color_jitter(transform: Any, view: View) -> None:
    """``ColorJitter``."""
    if is_new(transform):
        drawn = params(transform, view)
        names = ("brightness_factor", "contrast_factor", "saturation_factor", "hue_factor")
        order, factors = drawn["fn_idx"], [drawn[name] for name in names]
    else:
        order, *factors = transform.get_params(
            transform.brightness, transform.contrast, transform.saturation, transform.hue
        )
    for which in order.tolist():
        if factors[which] is not None:
            view.operations.append((which + 1, factors[which]))


def random_grayscale(transform: Any, view: View) -> None:
    """``RandomGrayscale``."""
    if happens(transform.p):
        view.operations.append((GREY, 0.0))


def grayscale(_transform: Any, view: View) -> None:
    """``Grayscale``."""
    view.operations.append((GREY, 0.0))


def sides(size: int | Sequence[int]) -> tuple[int, int]:
    """Height and width, as torchvision lets them be written."""
    found = (size,) if isinstance(size, int) else tuple(size)
    return (found[0], found[0]) if len(found) == 1 else (found[0], found[1])


def margins(padding: int | Sequence[int]) -> tuple[int, int, int, int]:
    """The margins left, top, right, bottom, as torchvision lets them be written."""
    found = (padding,) if isinstance(padding, int) else tuple(padding)
    if len(found) == 1:
        found = found * 4
    elif len(found) == 2:
        found = found * 2
    left, top, right, bottom = found
    return left, top, right, bottom
