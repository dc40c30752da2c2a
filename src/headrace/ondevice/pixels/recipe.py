"""A list of transforms as the device does it: what is drawn for each picture, and what is the same for all."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from headrace.core.errors import NotOnDevice
from headrace.ondevice.pixels import transform_draws
from headrace.ondevice.pixels.transform_draws import Draw
from headrace.ondevice.pixels.view import MOST_OPERATIONS, Filling, Padding, View
from headrace.staging.lists import is_bare, is_torchvision, steps

OTHERWISE = "or leave on_device out, and workers do all of it"


@dataclass(frozen=True, slots=True)
class Recipe:
    """The work that is the same for all pictures, and the draws for one. Values are levels from 0 to 255 until the
    very end.
    """

    draws: tuple[Draw, ...]
    """One for each transform, None-like for those that draw and change nothing; see ``numbers``."""
    cubic: bool
    rounds: bool
    """Pixels are whole levels when they are resized, and are so again after either direction."""
    floors: bool
    """They are when colours are changed: each operation leaves whole levels."""
    pillow: bool
    """Colours are changed by Pillow's rules, which see grey differently."""
    before: Padding
    after: Padding
    contrast: bool
    operations: int
    """Colour operations that one picture may have."""
    channels: int
    scale: tuple[float, ...]
    shift: tuple[float, ...]
    """Of each channel: what becomes of a level in the end."""
    dtype: torch.dtype

    def numbers(self, height: int, width: int, start: int = 0) -> list[float]:
        """The row of numbers of a picture of this size, which has come through the first ``start`` transforms."""
        view = View(height, width)
        for draw in self.draws[start:]:
            draw(view)
        return view.row(reach=2.0 if self.cubic else 1.0, repeats=self.after.filling is not Filling.CONSTANT)


def recipe(transform: Any, *, pillow: bool) -> Recipe:
    """The recipe of a torchvision transform or list of them. ``pillow``: it is given PIL images, not tensors.

    Raises ``NotOnDevice``, which names the transform.
    """
    reader = _TransformReader(pillow=pillow)
    for each in steps(transform):
        reader.read(each)
    return reader.recipe()


@dataclass(slots=True)
class _TransformReader:
    """The state of a picture on its way through a list."""

    pillow: bool
    draws: list[Draw] = field(default_factory=list)
    dtype: torch.dtype = torch.uint8
    scale: list[float] = field(default_factory=lambda: [1.0] * 3)
    shift: list[float] = field(default_factory=lambda: [0.0] * 3)
    channels: int = 3
    resized: str = ""
    coloured: str = ""
    normalised: str = ""
    paddings: list[Padding | None] = field(default_factory=lambda: [None, None])
    cubic: bool = False
    rounds: bool = True
    floors: bool = True
    jitters: int = 0
    by_pillow: bool = False
    operations: int = 0
    least: tuple[int, int] = (1, 1)
    """Height and width that every picture has at this point."""

    def read(self, transform: Any) -> None:
        name = type(transform).__name__
        if name in _READERS and type(transform).__module__.startswith("torchvision.") and not is_bare(transform):
            raise NotOnDevice(
                f"on_device=: this {name} has a hook, or a method of its own, which the device would not call: take it "
                f"away, {OTHERWISE}"
            )
        if name not in _READERS or not is_torchvision(transform):
            raise NotOnDevice(
                f"on_device=: {_named(transform)} cannot run on the device. Known are torchvision's own "
                f"{', '.join(_READERS)}; "
                f"let the dataset do {name} in fetch or decode, or on the batch in your loop, {OTHERWISE}"
            )
        getattr(self, _READERS[name])(transform, name)

    def recipe(self) -> Recipe:
        if self.operations > MOST_OPERATIONS:
            raise NotOnDevice(f"on_device=: more than {MOST_OPERATIONS} colour operations in one list, {OTHERWISE}")
        if self.jitters > 1:
            raise NotOnDevice(f"on_device=: one ColorJitter with contrast is enough for a list, {OTHERWISE}")
        return Recipe(
            draws=tuple(self.draws),
            cubic=self.cubic,
            rounds=self.rounds,
            floors=self.floors,
            pillow=self.by_pillow,
            before=self.paddings[0] or Padding(),
            after=self.paddings[1] or Padding(),
            contrast=self.jitters > 0,
            operations=self.operations,
            channels=self.channels,
            scale=tuple(self.scale[: self.channels]),
            shift=tuple(self.shift[: self.channels]),
            dtype=self.dtype,
        )

    def _comes_before(self, name: str, *others: str) -> None:
        """``NotOnDevice`` where one of them was there first: what they do is done last on the device."""
        for other in filter(None, others):
            raise NotOnDevice(f"on_device=: {name} comes after {other}. Put it before that, {OTHERWISE}")

    def _draw(self, function: Any, transform: Any, *, pads: bool = False) -> None:
        checks = pads and not self.pillow
        self.draws.append(
            partial(transform_draws.within, function, transform) if checks else partial(function, transform)
        )

    def nothing(self, transform: Any, name: str) -> None:
        self._draw(_nothing, None)

    def resize(self, transform: Any, name: str) -> None:
        self._comes_before(name, self.normalised, self.coloured)
        if self.resized:
            raise NotOnDevice(
                f"on_device=: {name} resizes what {self.resized} has resized. One resize is done on the device; let "
                f"the dataset do the first in decode, or store the pictures smaller, {OTHERWISE}"
            )
        kind = _interpolation(transform)
        if kind not in {"bilinear", "bicubic"}:
            raise NotOnDevice(
                f"on_device=: {name}(interpolation={kind!r}): bilinear and bicubic are known, {OTHERWISE}"
            )
        if not transform.antialias and not self.pillow:
            raise NotOnDevice(f"on_device=: {name}(antialias=False): only antialias=True is known, {OTHERWISE}")
        self.resized, self.cubic, self.rounds = name, kind == "bicubic", not self.dtype.is_floating_point
        self._draw(transform_draws.resize if name == "Resize" else transform_draws.random_resized_crop, transform)
        self.least = _at_least(transform.size, getattr(transform, "max_size", None), whole=name != "Resize")

    def crop(self, transform: Any, name: str) -> None:
        self._comes_before(name, self.normalised, self.coloured)
        if name == "CenterCrop":
            side = 1 if self.resized else 0
            self.paddings[side] = self.paddings[side] or Padding()
            h, w = transform_draws.sides(transform.size)
            if self.paddings[side] != Padding() and (h > self.least[0] or w > self.least[1]):
                raise NotOnDevice(
                    f"on_device=: {name}({h}, {w}) pads pictures that are smaller with nothing, and another transform "
                    f"has padded them in another way: crop no more than {self.least[0]} × {self.least[1]}, which they "
                    f"have then, or pad after it, {OTHERWISE}"
                )
            self._draw(transform_draws.center_crop, transform)
            self.least = h, w
            return
        if transform.padding is not None or transform.pad_if_needed:
            twice = transform.padding is not None and transform.pad_if_needed
            self._pad(name, self._padding(transform, name), twice=twice)
        self._draw(transform_draws.random_crop, transform, pads=True)
        self.least = transform_draws.sides(transform.size)

    def pad(self, transform: Any, name: str) -> None:
        self._comes_before(name, self.normalised, self.coloured)
        self._pad(name, self._padding(transform, name))
        self._draw(transform_draws.pad, transform, pads=True)
        left, top, right, bottom = transform_draws.margins(transform.padding)
        self.least = self.least[0] + top + bottom, self.least[1] + left + right

    def _pad(self, name: str, padding: Padding, *, twice: bool = False) -> None:
        side = 1 if self.resized else 0
        known = self.paddings[side]
        repeats = padding.filling is not Filling.CONSTANT
        if (known is not None and (known != padding or repeats)) or (twice and repeats):
            raise NotOnDevice(f"on_device=: {name} pads what is padded in another way already, {OTHERWISE}")
        self.paddings[side] = padding

    def _padding(self, transform: Any, name: str) -> Padding:
        filling = Filling[transform.padding_mode.upper()]
        fill: Any = transform.fill or 0
        values = [fill] * 3 if isinstance(fill, (int, float)) else list(fill) if isinstance(fill, Sequence) else []
        if len(values) != 3:
            raise NotOnDevice(f"on_device=: {name}(fill={fill!r}): a number, or one for each channel, {OTHERWISE}")
        if filling is not Filling.CONSTANT:
            return Padding(filling)
        red, green, blue = (float(value) / self.scale[0] for value in values)
        return Padding(filling, (red, green, blue))

    def flip(self, transform: Any, name: str) -> None:
        self._draw(
            transform_draws.horizontal_flip if "Horizontal" in name else transform_draws.vertical_flip, transform
        )

    def colour(self, transform: Any, name: str) -> None:
        self._comes_before(name, self.normalised)
        if self.dtype.is_floating_point and self.scale[0] == 1.0:
            raise NotOnDevice(f"on_device=: {name} on floats that were not scaled to 1: use scale=True, {OTHERWISE}")
        floors = not self.dtype.is_floating_point
        if self.coloured and (self.floors, self.by_pillow) != (floors, self.pillow):
            raise NotOnDevice(
                f"on_device=: {self.coloured} and {name} on different types: put them together, {OTHERWISE}"
            )
        self.coloured, self.floors, self.by_pillow = name, floors, self.pillow
        if name == "ColorJitter":
            self.jitters += transform.contrast is not None
            ranges = (transform.brightness, transform.contrast, transform.saturation, transform.hue)
            self.operations += sum(each is not None for each in ranges)
            self._draw(transform_draws.color_jitter, transform)
            return
        self.operations += 1
        if name == "Grayscale" and transform.num_output_channels == 1:
            self.channels = 1
        self._draw(
            transform_draws.random_grayscale if name == "RandomGrayscale" else transform_draws.grayscale, transform
        )

    def to_tensor(self, transform: Any, name: str) -> None:
        self.nothing(transform, name)
        if name == "ToTensor" and self.dtype is torch.uint8:
            self._floats(torch.float32, scaled=True)
        self.pillow = False

    def to_dtype(self, transform: Any, name: str) -> None:
        self.nothing(transform, name)
        wanted: Any = transform.dtype
        if isinstance(wanted, dict):
            found = [value for key, value in wanted.items() if getattr(key, "__name__", key) in {"Image", "others"}]
            wanted = found[0] if found else None
        if wanted is None or wanted is self.dtype:
            return
        if self.pillow:
            raise NotOnDevice(f"on_device=: {name} stands before the picture is a tensor: put ToImage() before it")
        if not wanted.is_floating_point or wanted is torch.float64:
            raise NotOnDevice(f"on_device=: {name}({wanted}): float32, float16 and bfloat16 are known, {OTHERWISE}")
        if self.dtype.is_floating_point:
            self.dtype = wanted
        else:
            self._floats(wanted, scaled=getattr(transform, "scale", True))

    def _floats(self, dtype: torch.dtype, *, scaled: bool) -> None:
        self.dtype = dtype
        if scaled:
            self.scale = [1 / 255.0] * 3

    def normalise(self, transform: Any, name: str) -> None:
        self.nothing(transform, name)
        if not self.dtype.is_floating_point:
            needs = "needs floats: put ToTensor(), or ToDtype(..., scale=True), before it"
            raise NotOnDevice(f"on_device=: {name} {needs}")
        means, deviations = _of_channels(transform.mean), _of_channels(transform.std)
        if min(len(means), len(deviations)) < self.channels or not all(deviations):
            raise NotOnDevice(f"on_device=: {name}: a mean and a std other than 0 for each of the channels")
        for channel in range(self.channels):
            self.shift[channel] = (self.shift[channel] - float(means[channel])) / float(deviations[channel])
            self.scale[channel] /= float(deviations[channel])
        self.normalised = name


_READERS = {
    "Resize": "resize",
    "RandomResizedCrop": "resize",
    "CenterCrop": "crop",
    "RandomCrop": "crop",
    "Pad": "pad",
    "RandomHorizontalFlip": "flip",
    "RandomVerticalFlip": "flip",
    "ColorJitter": "colour",
    "RandomGrayscale": "colour",
    "Grayscale": "colour",
    "ToTensor": "to_tensor",
    "ToImage": "to_tensor",
    "PILToTensor": "to_tensor",
    "ToDtype": "to_dtype",
    "ConvertImageDtype": "to_dtype",
    "Normalize": "normalise",
    "ToPureTensor": "nothing",
    "Identity": "nothing",
    "RGB": "nothing",
}


def _nothing(_transform: Any, view: View) -> None:
    """Draw nothing and move nothing."""


def _at_least(size: Any, longest: int | None, *, whole: bool) -> tuple[int, int]:
    """Height and width of whatever is resized so. ``whole``: one number is both."""
    given = [size] if isinstance(size, int) else list(size or ())
    if whole or len(given) == 2:
        return transform_draws.sides(size)
    return (1, 1) if longest is not None else (given[0], given[0])


def _of_channels(values: Any) -> list[float]:
    found = [float(value) for value in values]
    return found * 3 if len(found) == 1 else found


def _interpolation(transform: Any) -> str:
    found = getattr(transform.interpolation, "value", transform.interpolation)
    return {0: "nearest", 2: "bilinear", 3: "bicubic"}.get(found, str(found)) if isinstance(found, int) else found


def _named(transform: Any) -> str:
    kind = type(transform)
    name = getattr(transform, "__name__", None)
    return f"{name}()" if name else f"{kind.__module__}.{kind.__name__}"
