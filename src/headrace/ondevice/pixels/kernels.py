"""The device's kernels for a ragged batch: along rows, then along columns with colours, into the final tensor.

The same sums as in ``twin``, in the same order. Written in Triton, which compiles them at first use: no types but its
own, capitals for what is known when it does. ``launches`` calls them.
"""

from typing import Any

import triton
import triton.language as tl

from headrace.ondevice.pixels import view as V
from headrace.ondevice.pixels.reference import ALMOST_256, GREY_OF_PILLOW, GREY_OF_TENSORS
from headrace.ondevice.pixels.transform_draws import BRIGHTNESS, CONTRAST, GREY, HUE, SATURATION

C: Any = tl.constexpr
(_FROM_Y, _FROM_X, _FROM_H, _FROM_W) = (C(V.FROM_Y), C(V.FROM_X), C(V.FROM_H), C(V.FROM_W))
(_FROM_TOP, _FROM_LEFT, _FROM_BOTTOM, _FROM_RIGHT) = (
    C(V.FROM_TOP),
    C(V.FROM_LEFT),
    C(V.FROM_BOTTOM),
    C(V.FROM_RIGHT),
)
(_TO_H, _TO_W, _AT_Y, _AT_X) = (C(V.TO_H), C(V.TO_W), C(V.AT_Y), C(V.AT_X))
(_AT_TOP, _AT_LEFT, _AT_BOTTOM, _AT_RIGHT) = (C(V.AT_TOP), C(V.AT_LEFT), C(V.AT_BOTTOM), C(V.AT_RIGHT))
(_MIRRORED, _UPSIDE_DOWN, _MID_Y, _MID_N) = (C(V.MIRRORED), C(V.UPSIDE_DOWN), C(V.MID_Y), C(V.MID_N))
_OPERATIONS = C(V.OPERATIONS)
RECORD, NUMBERS = 6 + V.COLUMNS // 2, 6
"""What the kernels are told of one picture: so many words of 64 bits, of which the row of numbers are the last. Before
them: its address, its three strides, where what lies between the two directions begins, and nothing."""
(_RECORD, _NUMBERS) = (C(RECORD), C(NUMBERS))
(_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE, _GREY) = (C(BRIGHTNESS), C(CONTRAST), C(SATURATION), C(HUE), C(GREY))
_ALMOST_256 = C(ALMOST_256)
(_R0, _G0, _B0) = (C(v) for v in GREY_OF_TENSORS)
(_R1, _G1, _B1) = (C(v) for v in GREY_OF_PILLOW)


@triton.jit
def _row(table, image):
    return (table + image * _RECORD + _NUMBERS).to(tl.pointer_type(tl.float32))


@triton.jit
def _number(row, column: tl.constexpr):
    return tl.load(row + column).to(tl.int32)


@triton.jit
def _across(row, x, AFTER: tl.constexpr):
    """The positions of the result's columns in the resized picture, and a mask of those that exist."""
    return _placed(_number(row, _AT_X) + x, _number(row, _AT_LEFT), _number(row, _AT_RIGHT), AFTER)


@triton.jit
def _down(row, y, AFTER: tl.constexpr):
    """The positions of the result's rows in the resized picture, and a mask of those that exist."""
    return _placed(_number(row, _AT_Y) + y, _number(row, _AT_TOP), _number(row, _AT_BOTTOM), AFTER)


@triton.jit
def _seen_down(row, y, BEFORE: tl.constexpr):
    """The positions of the window's rows in the picture, and a mask of those that exist."""
    return _placed(_number(row, _FROM_Y) + y, _number(row, _FROM_TOP), _number(row, _FROM_BOTTOM), BEFORE)


@triton.jit
def _reach(at, size, to, CUBIC: tl.constexpr):
    """The filter around each place: its centre and width, the first pixel, the one after the last, and how many."""
    scale = size.to(tl.float32) / to.to(tl.float32)
    wide = tl.maximum(scale, 1.0)
    reach = wide * 2.0 if CUBIC else wide
    center = (at.to(tl.float32) + 0.5) * scale
    low = tl.maximum(tl.floor(center - reach + 0.5).to(tl.int32), 0)
    high = tl.minimum(tl.floor(center + reach + 0.5).to(tl.int32), size)
    return center, wide, low, high, tl.ceil(2.0 * reach).to(tl.int32) + 1


@triton.jit
def _placed(at, low, high, FILLING: tl.constexpr):
    """See ``twin._placed``."""
    inside = (at >= low) & (at < high)
    size = tl.maximum(high - low, 1)
    if FILLING == 2:
        period = tl.maximum(2 * (size - 1), 1)
        turned = (at - low) % period
        turned = tl.where(turned < 0, turned + period, turned)
        at = low + tl.minimum(turned, period - turned)
    if FILLING == 3:
        turned = (at - low) % (2 * size)
        turned = tl.where(turned < 0, turned + 2 * size, turned)
        at = low + tl.minimum(turned, 2 * size - 1 - turned)
    if FILLING != 0:
        inside = at == at  # noqa: PLR0124  (true everywhere)
    return tl.minimum(tl.maximum(at, low), tl.maximum(low, high - 1)), inside


@triton.jit
def _weight(distance, CUBIC: tl.constexpr):
    distance = tl.abs(distance)
    if CUBIC:
        near = (1.5 * distance - 2.5) * distance * distance + 1.0
        far = (((distance - 5.0) * distance + 8.0) * distance - 4.0) * -0.5
        found = tl.where(distance < 1.0, near, tl.where(distance < 2.0, far, 0.0))
    else:
        found = tl.maximum(1.0 - distance, 0.0)
    return found


@triton.jit
def _whole(level, ROUNDS: tl.constexpr):
    if ROUNDS:
        level = tl.minimum(tl.maximum(tl.floor(level + 0.5), 0.0), 255.0)
    return level


@triton.jit
def across(
    table, mid, width, fill_r, fill_g, fill_b,
    CUBIC: tl.constexpr, ROUNDS: tl.constexpr, BEFORE: tl.constexpr, AFTER: tl.constexpr,
    TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Resize along rows: of the window's rows that are needed, ``width`` columns each, into ``mid``."""
    image = tl.program_id(2)
    rows = _row(table, image)
    count = _number(rows, _MID_N)
    first = tl.program_id(1) * TALL
    if first >= count:
        return
    row = first + tl.arange(0, TALL)
    column = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    place = table + image * _RECORD
    base = tl.load(place).to(tl.pointer_type(tl.uint8))
    step_c, step_y, step_x = tl.load(place + 1), tl.load(place + 2), tl.load(place + 3)
    at, _ = _across(rows, column, AFTER)
    center, wide, low, high, taps = _reach(at, _number(rows, _FROM_W), _number(rows, _TO_W), CUBIC)
    y, y_in = _seen_down(rows, _number(rows, _MID_Y) + row, BEFORE)
    start, left, right = _number(rows, _FROM_X), _number(rows, _FROM_LEFT), _number(rows, _FROM_RIGHT)
    line = base + y.to(tl.int64) * step_y
    total = tl.zeros([WIDE], tl.float32)
    red = tl.zeros([TALL, WIDE], tl.float32)
    green = tl.zeros([TALL, WIDE], tl.float32)
    blue = tl.zeros([TALL, WIDE], tl.float32)
    for tap in range(taps):
        pixel = low + tap
        weight = tl.where(pixel < high, _weight((pixel.to(tl.float32) - center + 0.5) / wide, CUBIC), 0.0)
        total += weight
        x, x_in = _placed(start + pixel, left, right, BEFORE)
        seen = y_in[:, None] & x_in[None, :]
        wanted = (row < count)[:, None] & ((column < width) & (pixel < high))[None, :]
        source = line[:, None] + (x.to(tl.int64) * step_x)[None, :]
        mask = seen & wanted
        red += weight[None, :] * tl.where(seen, tl.load(source, mask, 0).to(tl.float32), fill_r)
        green += weight[None, :] * tl.where(seen, tl.load(source + step_c, mask, 0).to(tl.float32), fill_g)
        blue += weight[None, :] * tl.where(seen, tl.load(source + 2 * step_c, mask, 0).to(tl.float32), fill_b)
    total = tl.where(total == 0.0, 1.0, total)[None, :]
    target = mid + tl.load(place + 4) + row.to(tl.int64)[:, None] * (3 * width) + column[None, :]
    mask = (row < count)[:, None] & (column < width)[None, :]
    tl.store(target, _whole(red / total, ROUNDS).to(mid.dtype.element_ty), mask)
    tl.store(target + width, _whole(green / total, ROUNDS).to(mid.dtype.element_ty), mask)
    tl.store(target + 2 * width, _whole(blue / total, ROUNDS).to(mid.dtype.element_ty), mask)


@triton.jit
def _grey(red, green, blue, FLOORS: tl.constexpr, PILLOW: tl.constexpr):
    if PILLOW:
        grey = red * _R1 + green * _G1 + blue * _B1
        if FLOORS:
            grey = tl.floor(grey + 0.5)
    else:
        grey = red * _R0 + green * _G0 + blue * _B0
        if FLOORS:
            grey = tl.floor(grey)
    return grey


@triton.jit
def _kept(level, FLOORS: tl.constexpr):
    level = tl.minimum(tl.maximum(level, 0.0), 255.0)
    if FLOORS:
        level = tl.floor(level)
    return level


@triton.jit
def _turned(red, green, blue, factor, FLOORS: tl.constexpr):
    red, green, blue = red / 255.0, green / 255.0, blue / 255.0
    most = tl.maximum(red, tl.maximum(green, blue))
    least = tl.minimum(red, tl.minimum(green, blue))
    spread = most - least
    flat = spread == 0.0
    divisor = tl.where(flat, 1.0, spread)
    of_red, of_green, of_blue = (most - red) / divisor, (most - green) / divisor, (most - blue) / divisor
    hue = tl.where(
        most == red, of_blue - of_green, tl.where(most == green, 2.0 + of_red - of_blue, 4.0 + of_green - of_red)
    )
    hue = hue / 6.0 + 1.0
    hue = hue - tl.floor(hue) + factor
    hue = (hue - tl.floor(hue)) * 6.0
    saturation = spread / tl.where(flat, 1.0, most)
    sextant = tl.floor(hue)
    part = hue - sextant
    low = most * (1.0 - saturation)
    down, up = most * (1.0 - saturation * part), most * (1.0 - saturation * (1.0 - part))
    zero, one, two = (sextant == 0.0) | (sextant >= 6.0), sextant == 1.0, sextant == 2.0
    three, four = sextant == 3.0, sextant == 4.0
    red = tl.where(one, down, tl.where(two | three, low, tl.where(four, up, most)))
    green = tl.where(zero, up, tl.where(one | two, most, tl.where(three, down, low)))
    blue = tl.where(zero | one, low, tl.where(two, up, tl.where(three | four, most, down)))
    red = tl.minimum(tl.maximum(red, 0.0), 1.0)
    green = tl.minimum(tl.maximum(green, 0.0), 1.0)
    blue = tl.minimum(tl.maximum(blue, 0.0), 1.0)
    if FLOORS:
        red, green, blue = tl.floor(red * _ALMOST_256), tl.floor(green * _ALMOST_256), tl.floor(blue * _ALMOST_256)
    else:
        red, green, blue = red * 255.0, green * 255.0, blue * 255.0
    return red, green, blue


@triton.jit
def _coloured(
    red, green, blue, rows, mean,
    COUNT: tl.constexpr, FLOORS: tl.constexpr, PILLOW: tl.constexpr, BEFORE_CONTRAST: tl.constexpr,
):  # fmt: skip
    """All operations of a picture, or those before its contrast is changed."""
    going = 1
    for number in tl.static_range(COUNT):
        operation = tl.load(rows + _OPERATIONS + 2 * number).to(tl.int32)
        factor = tl.load(rows + _OPERATIONS + 2 * number + 1)
        if BEFORE_CONTRAST:
            going = tl.where(operation == _CONTRAST, 0, going)
            operation = operation * going
        if operation == _BRIGHTNESS:
            red, green, blue = _kept(red * factor, FLOORS), _kept(green * factor, FLOORS), _kept(blue * factor, FLOORS)
        elif operation == _CONTRAST:
            other = mean * (1.0 - factor)
            red = _kept(red * factor + other, FLOORS)
            green = _kept(green * factor + other, FLOORS)
            blue = _kept(blue * factor + other, FLOORS)
        elif operation == _SATURATION:
            other = _grey(red, green, blue, FLOORS, PILLOW) * (1.0 - factor)
            red = _kept(red * factor + other, FLOORS)
            green = _kept(green * factor + other, FLOORS)
            blue = _kept(blue * factor + other, FLOORS)
        elif operation == _HUE:
            red, green, blue = _turned(red, green, blue, factor, FLOORS)
        elif operation == _GREY:
            red = _grey(red, green, blue, FLOORS, PILLOW)
            green, blue = red, red
    return red, green, blue


@triton.jit
def _flipped(rows, y, x, height, width):
    x = tl.where(_number(rows, _MIRRORED) != 0, width - 1 - x, x)
    return tl.where(_number(rows, _UPSIDE_DOWN) != 0, height - 1 - y, y), x


@triton.jit
def _finished(
    red, green, blue, y, x, mask, rows, image, out, height, width, step_n, step_c, step_y, step_x,
    s0, s1, s2, t0, t1, t2, CHANNELS: tl.constexpr,
):  # fmt: skip
    y, x = _flipped(rows, y, x, height, width)
    target = out + image.to(tl.int64) * step_n + y.to(tl.int64)[:, None] * step_y + x.to(tl.int64)[None, :] * step_x
    tl.store(target, (red * s0 + t0).to(out.dtype.element_ty), mask)
    if CHANNELS == 3:
        tl.store(target + step_c, (green * s1 + t1).to(out.dtype.element_ty), mask)
        tl.store(target + 2 * step_c, (blue * s2 + t2).to(out.dtype.element_ty), mask)


@triton.jit
def down(
    table, mid, out, flat, height, width, step_n, step_c, step_y, step_x,
    fill_r, fill_g, fill_b, s0, s1, s2, t0, t1, t2,
    CUBIC: tl.constexpr, ROUNDS: tl.constexpr, AFTER: tl.constexpr, COUNT: tl.constexpr, FLOORS: tl.constexpr,
    PILLOW: tl.constexpr, CHANNELS: tl.constexpr, TO_FLAT: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Resize along columns, then apply colours and the final type; or into ``flat``, levels as float32, where means
    come first.
    """
    image = tl.program_id(2)
    y = tl.program_id(1) * TALL + tl.arange(0, TALL)
    x = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    rows = _row(table, image)
    begin, count = _number(rows, _MID_Y), _number(rows, _MID_N)
    at, y_in = _down(rows, y, AFTER)
    _, x_in = _across(rows, x, AFTER)
    center, wide, low, high, taps = _reach(at, _number(rows, _FROM_H), _number(rows, _TO_H), CUBIC)
    source = mid + tl.load(table + image * _RECORD + 4) + x[None, :]
    total = tl.zeros([TALL], tl.float32)
    red = tl.zeros([TALL, WIDE], tl.float32)
    green = tl.zeros([TALL, WIDE], tl.float32)
    blue = tl.zeros([TALL, WIDE], tl.float32)
    for tap in range(taps):
        pixel = low + tap
        weight = tl.where(pixel < high, _weight((pixel.to(tl.float32) - center + 0.5) / wide, CUBIC), 0.0)
        total += weight
        line = pixel - begin
        mask = ((pixel < high) & (line >= 0) & (line < count))[:, None] & (x < width)[None, :]
        here = source + line.to(tl.int64)[:, None] * (3 * width)
        red += weight[:, None] * tl.load(here, mask, 0).to(tl.float32)
        green += weight[:, None] * tl.load(here + width, mask, 0).to(tl.float32)
        blue += weight[:, None] * tl.load(here + 2 * width, mask, 0).to(tl.float32)
    total = tl.where(total == 0.0, 1.0, total)[:, None]
    inside = y_in[:, None] & x_in[None, :]
    red = tl.where(inside, _whole(red / total, ROUNDS), fill_r)
    green = tl.where(inside, _whole(green / total, ROUNDS), fill_g)
    blue = tl.where(inside, _whole(blue / total, ROUNDS), fill_b)
    mask = (y < height)[:, None] & (x < width)[None, :]
    if TO_FLAT:
        plane = height * width
        target = flat + image.to(tl.int64) * (3 * plane) + y[:, None] * width + x[None, :]
        tl.store(target, red, mask)
        tl.store(target + plane, green, mask)
        tl.store(target + 2 * plane, blue, mask)
    else:
        red, green, blue = _coloured(red, green, blue, rows, 0.0, COUNT, FLOORS, PILLOW, False)
        _finished(
            red, green, blue, y, x, mask, rows, image, out, height, width, step_n, step_c, step_y, step_x,
            s0, s1, s2, t0, t1, t2, CHANNELS,
        )  # fmt: skip


@triton.jit
def means(
    table, flat, means, plane,
    COUNT: tl.constexpr, FLOORS: tl.constexpr, PILLOW: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Compute the mean grey of each picture whose contrast is changed: one program per picture, so that the sum is
    always the same.
    """
    image = tl.program_id(0)
    rows = _row(table, image)
    base = flat + image.to(tl.int64) * (3 * plane)
    total = tl.zeros([SIZE], tl.float32)
    for start in range(0, plane, SIZE):
        at = start + tl.arange(0, SIZE)
        mask = at < plane
        red = tl.load(base + at, mask, 0.0)
        green = tl.load(base + plane + at, mask, 0.0)
        blue = tl.load(base + 2 * plane + at, mask, 0.0)
        red, green, blue = _coloured(red, green, blue, rows, 0.0, COUNT, FLOORS, PILLOW, True)
        total += tl.where(mask, _grey(red, green, blue, FLOORS, PILLOW), 0.0)
    mean = tl.sum(total, 0) / plane
    if PILLOW:
        mean = tl.floor(mean + 0.5)
    tl.store(means + image, mean)


@triton.jit
def finish(
    table, flat, means, out, height, width, step_n, step_c, step_y, step_x, s0, s1, s2, t0, t1, t2,
    COUNT: tl.constexpr, FLOORS: tl.constexpr, PILLOW: tl.constexpr, CHANNELS: tl.constexpr,
    TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Colours and the final type, once the means are known."""
    image = tl.program_id(2)
    rows = _row(table, image)
    y = tl.program_id(1) * TALL + tl.arange(0, TALL)
    x = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    mask = (y < height)[:, None] & (x < width)[None, :]
    plane = height * width
    source = flat + image.to(tl.int64) * (3 * plane) + y[:, None] * width + x[None, :]
    red, green, blue = (
        tl.load(source, mask, 0.0),
        tl.load(source + plane, mask, 0.0),
        tl.load(source + 2 * plane, mask, 0.0),
    )
    red, green, blue = _coloured(red, green, blue, rows, tl.load(means + image), COUNT, FLOORS, PILLOW, False)
    _finished(
        red, green, blue, y, x, mask, rows, image, out, height, width, step_n, step_c, step_y, step_x,
        s0, s1, s2, t0, t1, t2, CHANNELS,
    )  # fmt: skip


@triton.jit
def pick(
    table, out, height, width, fill_before, fill_after,
    BEFORE: tl.constexpr, AFTER: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Masks: the nearest value. ``out``'s type is that of the masks."""
    image = tl.program_id(2)
    rows = _row(table, image)
    y = tl.program_id(1) * TALL + tl.arange(0, TALL)
    x = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    place = table + image * _RECORD
    base = tl.load(place).to(tl.pointer_type(out.dtype.element_ty))
    step_y = tl.load(place + 2)
    at_y, y_in = _down(rows, y, AFTER)
    at_x, x_in = _across(rows, x, AFTER)
    at_y, seen_y = _seen_down(rows, _nearest(at_y, _number(rows, _FROM_H), _number(rows, _TO_H)), BEFORE)
    at_x = _number(rows, _FROM_X) + _nearest(at_x, _number(rows, _FROM_W), _number(rows, _TO_W))
    at_x, seen_x = _placed(at_x, _number(rows, _FROM_LEFT), _number(rows, _FROM_RIGHT), BEFORE)
    mask = (y < height)[:, None] & (x < width)[None, :]
    seen = seen_y[:, None] & seen_x[None, :]
    value = tl.load(base + at_y.to(tl.int64)[:, None] * step_y + at_x[None, :], mask & seen, 0)
    value = tl.where(seen, value, fill_before.to(value.dtype))
    value = tl.where(y_in[:, None] & x_in[None, :], value, fill_after.to(value.dtype))
    y, x = _flipped(rows, y, x, height, width)
    tl.store(out + image.to(tl.int64) * height * width + y[:, None] * width + x[None, :], value, mask)


@triton.jit
def _nearest(at, size, to):
    scale = size.to(tl.float32) / to.to(tl.float32)
    return tl.minimum(tl.maximum(tl.floor(at.to(tl.float32) * scale).to(tl.int32), 0), size - 1)
