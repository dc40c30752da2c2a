"""A ragged batch of pictures and their numbers into the final tensor, in plain torch: picture by picture, anywhere.

What the device's kernels are compared with, and what runs where there are none. Resizing is torchvision's: a triangle
(or cubic) filter as wide as the reduction, first along rows, then along columns, whole levels after each where the
picture is made of whole levels.
"""

from collections.abc import Sequence

import torch

from headrace.ondevice.pixels import view as V
from headrace.ondevice.pixels.recipe import Recipe
from headrace.ondevice.pixels.transform_draws import BRIGHTNESS, CONTRAST, GREY, HUE, SATURATION
from headrace.ondevice.pixels.view import Filling, Padding

GREY_OF_TENSORS = (0.2989, 0.587, 0.114)
GREY_OF_PILLOW = (19595 / 65536, 38470 / 65536, 7471 / 65536)
ALMOST_256 = 255.999
"""What torchvision multiplies floats by to have levels."""


def render(pictures: Sequence[torch.Tensor], rows: torch.Tensor, recipe: Recipe, out: torch.Tensor) -> None:
    """``pictures``: 3 × height × width levels each, with any strides; ``out``: picture × channels × height × width."""
    for number, (picture, numbers) in enumerate(zip(pictures, rows.tolist(), strict=True)):
        out[number].copy_(_rendered(picture, numbers, recipe))


def nearest(
    masks: Sequence[torch.Tensor], rows: torch.Tensor, before: Padding, after: Padding, out: torch.Tensor
) -> None:
    """Masks, height × width each, into ``out`` with the geometry of ``rows``: values stay what they are."""
    for number, (mask, numbers) in enumerate(zip(masks, rows.tolist(), strict=True)):
        n = [int(value) for value in numbers[: V.OPERATIONS]]
        out_y, out_x = _result(n, after, mask.device)
        ys = _picked(out_y[0], n[V.FROM_H], n[V.TO_H]), out_y[1]
        xs = _picked(out_x[0], n[V.FROM_W], n[V.TO_W]), out_x[1]
        rows_, rows_in = _placed(ys[0] + n[V.FROM_Y], n[V.FROM_TOP], n[V.FROM_BOTTOM], before)
        columns, columns_in = _placed(xs[0] + n[V.FROM_X], n[V.FROM_LEFT], n[V.FROM_RIGHT], before)
        found = mask[rows_][:, columns]
        found = torch.where(rows_in[:, None] & columns_in, found, int(before.fill[0]))
        found = torch.where(ys[1][:, None] & xs[1], found, int(after.fill[0]))
        out[number].copy_(_flipped(found, n))


Placed = tuple[torch.Tensor, torch.Tensor]
"""Which pixel stands at each place, and whether one does."""


def _result(n: list[int], after: Padding, device: torch.device) -> tuple[Placed, Placed]:
    """The result's rows and columns, in what was resized."""
    ys = torch.arange(n[V.AT_Y], n[V.AT_Y] + n[V.OUT_H], device=device)
    xs = torch.arange(n[V.AT_X], n[V.AT_X] + n[V.OUT_W], device=device)
    return _placed(ys, n[V.AT_TOP], n[V.AT_BOTTOM], after), _placed(xs, n[V.AT_LEFT], n[V.AT_RIGHT], after)


def _picked(at: torch.Tensor, size: int, to: int) -> torch.Tensor:
    """The nearest of ``size`` pixels, for places in ``to``; as torch's ``nearest`` picks them."""
    scale = torch.tensor(size, dtype=torch.float32) / to
    return (at.float() * scale).floor().long().clamp(0, size - 1)


def _rendered(picture: torch.Tensor, numbers: list[float], recipe: Recipe) -> torch.Tensor:
    n, device = [int(value) for value in numbers[: V.OPERATIONS]], picture.device
    reach = 2.0 if recipe.cubic else 1.0
    ys = torch.arange(n[V.MID_Y], n[V.MID_Y] + n[V.MID_N], device=device)
    rows, rows_in = _placed(ys + n[V.FROM_Y], n[V.FROM_TOP], n[V.FROM_BOTTOM], recipe.before)
    xs = torch.arange(n[V.FROM_X], n[V.FROM_X] + n[V.FROM_W], device=device)
    columns, columns_in = _placed(xs, n[V.FROM_LEFT], n[V.FROM_RIGHT], recipe.before)
    window = picture[:, rows][:, :, columns].float()
    window = torch.where(rows_in[:, None] & columns_in, window, _levels(recipe.before, device))
    (out_y, in_y), (out_x, in_x) = _result(n, recipe.after, device)
    across = _weights(out_x, n[V.FROM_W], n[V.TO_W], reach, cubic=recipe.cubic)
    down = _weights(out_y, n[V.FROM_H], n[V.TO_H], reach, cubic=recipe.cubic)
    down = down[:, n[V.MID_Y] : n[V.MID_Y] + n[V.MID_N]]
    made = _whole(down @ _whole(window @ across.T, recipe), recipe)
    made = torch.where(in_y[:, None] & in_x, made, _levels(recipe.after, device))
    made = _coloured(made, numbers[V.OPERATIONS :], recipe)
    made = _flipped(made, n)[: recipe.channels]
    scale = torch.tensor(recipe.scale, device=device)[:, None, None]
    return made * scale + torch.tensor(recipe.shift, device=device)[:, None, None]


def _flipped(made: torch.Tensor, n: list[int]) -> torch.Tensor:
    sides = [side for side, turned in ((-1, n[V.MIRRORED]), (-2, n[V.UPSIDE_DOWN])) if turned]
    return made.flip(sides) if sides else made


def _levels(padding: Padding, device: torch.device) -> torch.Tensor:
    return torch.tensor(padding.fill, device=device)[:, None, None]


def _placed(at: torch.Tensor, low: int, high: int, padding: Padding) -> Placed:
    """The pixel at each place, and a mask of the places that have one: the picture reaches from ``low`` to
    ``high``.
    """
    inside = (at >= low) & (at < high)
    size = max(1, high - low)
    if padding.filling is Filling.REFLECT and size > 1:
        period = 2 * (size - 1)
        turned = (at - low).remainder(period)
        at = low + torch.minimum(turned, period - turned)
    elif padding.filling is Filling.SYMMETRIC:
        turned = (at - low).remainder(2 * size)
        at = low + torch.minimum(turned, 2 * size - 1 - turned)
    if padding.filling is not Filling.CONSTANT:
        inside = torch.ones_like(inside)
    return at.clamp(low, max(low, high - 1)), inside


def _weights(at: torch.Tensor, size: int, to: int, reach: float, *, cubic: bool) -> torch.Tensor:
    """The share that each of ``size`` pixels has in those ``at`` these places of ``to``."""
    scale = size / to
    width = max(scale, 1.0)
    center = (at.float() + 0.5) * scale
    pixels = torch.arange(size, device=at.device, dtype=torch.float32)
    low = (center - reach * width + 0.5).floor().clamp(min=0)[:, None]
    high = (center + reach * width + 0.5).floor().clamp(max=size)[:, None]
    distance = ((pixels - center[:, None] + 0.5) / width).abs()
    if cubic:
        near = (1.5 * distance - 2.5) * distance * distance + 1
        far = (((distance - 5) * distance + 8) * distance - 4) * -0.5
        weight = torch.where(distance < 1, near, torch.where(distance < 2, far, 0.0))
    else:
        weight = (1 - distance).clamp(min=0)
    weight = torch.where((pixels >= low) & (pixels < high), weight, 0.0)
    total = weight.sum(1, keepdim=True)
    return weight / torch.where(total == 0, 1.0, total)


def _whole(levels: torch.Tensor, recipe: Recipe) -> torch.Tensor:
    return (levels + 0.5).floor().clamp(0, 255) if recipe.rounds else levels


def _coloured(levels: torch.Tensor, pairs: list[float], recipe: Recipe) -> torch.Tensor:
    for operation, factor in zip(pairs[::2], pairs[1::2], strict=True):
        if operation == BRIGHTNESS:
            levels = _kept(levels * factor, recipe)
        elif operation == CONTRAST:
            mean = _grey(levels, recipe).mean()
            mean = (mean + 0.5).floor() if recipe.pillow else mean
            levels = _kept(levels * factor + mean * (1 - factor), recipe)
        elif operation == SATURATION:
            levels = _kept(levels * factor + _grey(levels, recipe) * (1 - factor), recipe)
        elif operation == HUE:
            levels = _turned(levels, factor, recipe)
        elif operation == GREY:
            levels = _grey(levels, recipe).expand_as(levels)
    return levels


def _kept(levels: torch.Tensor, recipe: Recipe) -> torch.Tensor:
    levels = levels.clamp(0, 255)
    return levels.floor() if recipe.floors else levels


def _grey(levels: torch.Tensor, recipe: Recipe) -> torch.Tensor:
    red, green, blue = GREY_OF_PILLOW if recipe.pillow else GREY_OF_TENSORS
    grey = levels[:1] * red + levels[1:2] * green + levels[2:3] * blue
    if not recipe.floors:
        return grey
    return (grey + 0.5).floor() if recipe.pillow else grey.floor()


def _turned(levels: torch.Tensor, factor: float, recipe: Recipe) -> torch.Tensor:
    """Hue, by way of HSV, in floats as torchvision does with tensors."""
    red, green, blue = levels / 255
    most, least = torch.maximum(red, torch.maximum(green, blue)), torch.minimum(red, torch.minimum(green, blue))
    spread = most - least
    flat = spread == 0
    divisor = torch.where(flat, 1.0, spread)
    of_red, of_green, of_blue = (most - red) / divisor, (most - green) / divisor, (most - blue) / divisor
    hue = torch.where(
        most == red, of_blue - of_green, torch.where(most == green, 2 + of_red - of_blue, 4 + of_green - of_red)
    )
    hue = ((hue / 6 + 1).fmod(1.0) + factor).remainder(1.0) * 6
    saturation = spread / torch.where(flat, 1.0, most)
    sextant = hue.floor()
    part = hue - sextant
    low = most * (1 - saturation)
    down, up = most * (1 - saturation * part), most * (1 - saturation * (1 - part))
    sextant = sextant.remainder(6)
    chosen = [
        [most, down, low, low, up, most],
        [up, most, most, down, low, low],
        [low, low, up, most, most, down],
    ]
    made = []
    for options in chosen:
        value = options[5]
        for number in range(5):
            value = torch.where(sextant == number, options[number], value)
        made.append(value)
    turned = torch.stack(made).clamp(0, 1)
    return (turned * ALMOST_256).floor() if recipe.floors else turned * 255
