"""The part of pixels on a device in an iteration: workers bring pictures encoded, the device makes batches of them."""

from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import default_collate

from headrace.core.errors import NotOnDevice
from headrace.devices.ahead import Ahead
from headrace.devices.device_part import DevicePart, flat_of
from headrace.engine.memory.slab import Slab
from headrace.engine.plugs import EpochRecord, PartFacts
from headrace.engine.settings import Settings
from headrace.engine.worker.maker import DatasetMaker, Maker, Making
from headrace.ondevice.pixels.bundle import named
from headrace.ondevice.pixels.choices import OnDevice
from headrace.ondevice.pixels.prepared import collated, of, prepared
from headrace.ondevice.renderers import renderer, warm
from headrace.ondevice.rendering import RENDERED, Renderer, Rendering
from headrace.sched.hand import EpochRun


class OnDevicePart(DevicePart):
    """See ``Part``."""

    def __init__(self, facts: PartFacts) -> None:
        """Raises ``DeviceUnavailable`` where something is missing on the device."""
        super().__init__(facts)
        dataset, device = facts.settings.dataset, torch.device(facts.settings.device)
        self._renderer: Renderer | None = renderer(of(dataset), device)
        self.rendering: Rendering | None = None

    def making(self, making: Making) -> Making:
        """See ``Part``."""
        return making if making.one_by_one else PictureMaking()

    def run(self, run: EpochRun, record: EpochRecord | None, slab: Slab | None) -> EpochRun:
        """See ``Part``."""
        assert self._renderer is not None
        facts, made_by = self._facts, run
        flat, ahead = flat_of(slab, RENDERED)
        prepared = of(facts.settings.dataset)
        self.rendering = Rendering(prepared, self._renderer, made_by.errors, facts.counters)  # type: ignore[attr-defined]  # of a run with samples
        return Ahead(run, self.rendering, facts.step, flat, trace=record, ahead=ahead)

    def start(self) -> None:
        """See ``Part``."""
        if self.rendering is not None:
            self.rendering.start()

    def end(self, *, broken: bool) -> None:
        """See ``Part``."""
        super().end(broken=broken)
        self._renderer = self.rendering = None


class PictureMaker(DatasetMaker):
    """``dataset[index]``, a picture that knows the index that the user's sampler gave it."""

    def __call__(self, index: Any) -> Any:
        """The sample."""
        return named(index, self._get(index))


class PictureMaking(Making):
    """The orders by which a process makes pictures for a device."""

    def plain(self, dataset: Any) -> Maker:
        """The maker."""
        return PictureMaker(dataset)


def chosen(loader: Any, value: bool | OnDevice) -> OnDevice:
    """The meaning of ``on_device=``. Raises ``NotOnDevice`` if the loader's arguments do not allow it.

    ``loader`` has all its other arguments.
    """
    if value is not True and not isinstance(value, OnDevice):
        raise TypeError(f"on_device= takes True, False or headrace.OnDevice(...), not {value!r}")
    if loader.device is None:
        raise NotOnDevice("on_device= needs device=, which says where: device='cuda'")
    if loader.batch_size is None and loader.batch_sampler is None:
        raise NotOnDevice("on_device= makes batches: batch_size=None leaves it nothing to do")
    if loader.collate_fn is not default_collate:
        raise NotOnDevice("on_device= makes batches itself: leave collate_fn out, or on_device")
    options = OnDevice() if value is True else value
    warm(of(prepared(loader.dataset, options)), loader.device)
    return options


def encoded(settings: Settings, options: OnDevice, *, decodes: bool) -> Settings:
    """The settings of a loader whose samples are brought encoded. ``decodes``: see ``prepared``."""
    dataset = prepared(settings.dataset, options, decodes=decodes)
    return replace(settings, dataset=dataset, collate_fn=collated, on_device=True)
