"""Steps that every renderer takes with a bundle's pictures: cut them out, decode them, stand in for broken ones."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from headrace.core.stats import DeviceUse
from headrace.engine.memory.containers import mapped
from headrace.ondevice.pixels import decoders
from headrace.ondevice.pixels import view as V
from headrace.ondevice.pixels.bundle import Bundle, Storing
from headrace.ondevice.pixels.decoders import Decoded, Together
from headrace.ondevice.pixels.prepared import Prepared
from headrace.ondevice.rendering import Work


class Pictures:
    """Pictures of a bundle, as tensors on a device."""

    def __init__(self, bundle: Bundle, device: torch.device, together: Together) -> None:
        self._bundle, self._device, self._together = bundle, device, together
        self.rows: Any = bundle.rows.numpy()
        sizes = self.rows[:, V.HEIGHT : V.WIDTH + 1].astype(int)
        self.bytes: Any = 3 * sizes.prod(1)
        self.sizes: list[list[int]] = sizes.tolist()
        self._places: list[list[int]] = bundle.places.tolist()
        self.by_workers = sum(place[2] != Storing.JPEG for place in self._places)
        self.again = False

    def parts(self, memory: int) -> list[range]:
        """Pictures one after the other, as many at once as fit into ``memory`` bytes, one at least."""
        if self.bytes.sum() <= memory:
            return [range(len(self.sizes))]
        found, first, taken = [], 0, 0
        for number, size in enumerate(self.bytes.tolist()):
            if taken + size > memory and number > first:
                found.append(range(first, number))
                first, taken = number, 0
            taken += size
        return [*found, range(first, len(self.sizes))]

    def decoded(self, part: range) -> list[Decoded]:
        """Levels of the pictures of a part, or what is wrong with them."""
        if not self.by_workers:
            return self._of_files(list(part))
        files = [number for number in part if self._places[number][2] == Storing.JPEG]
        found = dict(zip(files, self._of_files(files), strict=True))
        return [found[number] if number in found else self._levels(number) for number in part]

    def masks(self, part: range, dtype: np.dtype[Any]) -> list[torch.Tensor]:
        """Masks of a part's pictures."""
        kind = _torchs(dtype)
        return [self._sent(number, 3).view(kind).view(self.sizes[number]) for number in part]

    def _of_files(self, numbers: list[int]) -> list[Decoded]:
        sizes = [self.sizes[number] for number in numbers]
        made, again = decoders.decoded(self._files(numbers), sizes, self._together, self._device)
        self.again = self.again or again
        return made

    def _files(self, numbers: list[int]) -> Sequence[torch.Tensor]:
        """Bytes of files; those of a batch of nothing else are cut in one go."""
        if len(numbers) < len(self._places) or self._bundle.mask is not None:
            return [self._bytes(number) for number in numbers]
        order = sorted(numbers, key=self._places.__getitem__)
        pieces, end = list[int](), 0  # the file and what lies before it, in turn
        for start, size, *_ in (self._places[number] for number in order):
            pieces += (start - end, size)
            end = start + size
        cut = torch.split_with_sizes(self._bundle.data, [*pieces, len(self._bundle.data) - end])[1::2]
        files = dict(zip(order, cut, strict=True))
        return [files[number] for number in numbers]

    def _bytes(self, number: int, at: int = 0) -> torch.Tensor:
        start, size = self._places[number][at : at + 2]
        return self._bundle.data[start : start + size]

    def _sent(self, number: int, at: int = 0) -> torch.Tensor:
        return self._bytes(number, at).to(self._device, non_blocking=True)

    def _levels(self, number: int) -> torch.Tensor:
        height, width = self.sizes[number]
        flat = self._sent(number)
        if self._places[number][2] == Storing.PLANES:
            return flat.view(3, height, width)
        return flat.view(height, width, 3).permute(2, 0, 1)


def _torchs(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype  # torch has no public function that says so


def usable(decoded: list[Decoded], part: range, sizes: list[list[int]], work: Work) -> list[torch.Tensor]:
    """The decoded pictures, with an empty one of the right size and without memory in place of each that failed."""
    for place, picture in enumerate(decoded):
        if isinstance(picture, Exception):
            number = part[place]
            work.failed.append((number, picture))
            decoded[place] = torch.zeros((), dtype=torch.uint8, device=work.out.device).expand(3, *sizes[number])
    return decoded  # type: ignore[return-value]


def allocate(work: Work, dataset: Prepared, device: torch.device) -> None:
    """Memory for what is made of a batch, of the current stream."""
    bundle, recipe, options = work.bundle, dataset.recipe, dataset.options
    assert bundle is not None
    dtype = options.dtype if options.dtype is not None and recipe.dtype.is_floating_point else recipe.dtype
    shape = (len(bundle.indices), recipe.channels, *bundle.shape)
    work.out = torch.empty(shape, dtype=dtype, device=device, memory_format=options.memory_format)
    if bundle.mask is not None:
        work.masks = torch.empty((shape[0], *shape[2:]), dtype=_torchs(bundle.mask), device=device)
    work.rest = mapped((bundle.rest, bundle.boxes), partial(torch.empty_like, device=device))


def use(pictures: Pictures, decoding: float, rendering: float, most: int) -> DeviceUse:
    """Counts of a batch; ``most``: bytes of the device."""
    return DeviceUse(
        batches=1,
        pictures=len(pictures.sizes),
        by_workers=pictures.by_workers,
        one_by_one=int(pictures.again),
        decode_seconds=decoding,
        pixels_seconds=rendering,
        peak_bytes=most,
    )
