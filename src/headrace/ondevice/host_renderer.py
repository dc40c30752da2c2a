"""Pixels on the host: Pillow and plain torch."""

import time

import torch

from headrace.engine.memory.containers import tensors
from headrace.ondevice.picture_steps import Pictures, allocate, usable, use
from headrace.ondevice.pixels import decoders, reference
from headrace.ondevice.pixels.bundle import Bundle
from headrace.ondevice.pixels.prepared import Prepared
from headrace.ondevice.rendering import Work


class Host:
    """The renderer that runs on the CPU: Pillow and plain torch."""

    def __init__(self, dataset: Prepared) -> None:
        """Holds nothing."""
        self._dataset, self._device = dataset, torch.device("cpu")

    def begin(self, bundle: Bundle) -> Work:
        """See ``Renderer``."""
        return Work(bundle, None)

    def prepare(self) -> None:
        """See ``Renderer``: nothing."""

    def run(self, work: Work) -> None:
        """See ``Renderer``."""
        bundle, recipe = work.bundle, self._dataset.recipe
        assert bundle is not None
        allocate(work, self._dataset, self._device)
        for target, source in zip(tensors(work.rest), tensors((bundle.rest, bundle.boxes)), strict=True):
            target.copy_(source)
        pictures = Pictures(bundle, self._device, decoders.on_host)
        began, most = time.perf_counter_ns(), 0
        for part in pictures.parts(self._dataset.options.memory):
            start = time.perf_counter_ns()
            levels = usable(pictures.decoded(part), part, pictures.sizes, work)
            work.decoding += time.perf_counter_ns() - start
            here = slice(part.start, part.stop)
            reference.render(levels, bundle.rows[here], recipe, work.out[here])
            if work.masks is not None and bundle.mask is not None:
                masks = pictures.masks(part, bundle.mask)
                reference.nearest(masks, bundle.rows[here], recipe.before, recipe.after, work.masks[here])
            most = max(most, int(pictures.bytes[here].sum()))
        rendering = time.perf_counter_ns() - began - work.decoding
        work.use = use(pictures, work.decoding / 1e9, rendering / 1e9, most)

    def hand_over(self, work: Work) -> None:
        """See ``Renderer``: it is there."""

    def reached(self, work: Work) -> bool:
        """See ``Renderer``."""
        return True

    def took(self, work: Work) -> tuple[int, int] | None:
        """See ``Renderer``."""
        assert work.use is not None  # it is done
        return work.decoding, int(work.use.pixels_seconds * 1e9)

    def release(self, work: Work) -> None:
        """See ``Renderer``."""

    def finish(self) -> None:
        """See ``Renderer``."""
