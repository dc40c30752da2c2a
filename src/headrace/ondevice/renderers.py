"""Renderers of a device, and the preparations a process begins early so that they find them done."""

import importlib
import threading
from contextlib import suppress
from typing import Any

import torch

from headrace.devices.accelerator import numbered
from headrace.ondevice.cuda import LAUNCHES, CudaRenderer
from headrace.ondevice.host_renderer import Host
from headrace.ondevice.pixels.bundle import Bundle
from headrace.ondevice.pixels.prepared import Prepared, first_bundle
from headrace.ondevice.rendering import Renderer


def renderer(dataset: Prepared, device: torch.device) -> Renderer:
    """The renderer for batches on ``device``. Raises ``DeviceUnavailable`` where something is missing there."""
    while _warming:  # workers are forked next, and nobody shall inherit a lock that it holds
        _warming.pop().join()
    if device.type == "cpu":
        return Host(dataset)
    return CudaRenderer(dataset, numbered(device), first_bundle(dataset))


_warming: list[threading.Thread] = []


def warm(dataset: Prepared, device: Any) -> None:
    """Begin with what the first batch of a process needs: modules, and, where CUDA is in use already, decoder and
    kernels.

    For a loader that was just made, while its caller builds a model. ``renderer`` waits for it.
    """
    try:
        chosen = torch.device(device)
    except (TypeError, RuntimeError):  # said where it is used
        return
    cuda: Any = torch.cuda
    if chosen.type != "cuda" or not cuda.is_available():
        return
    before = _warming[-1] if _warming else None
    trial = (dataset, numbered(chosen), first_bundle(dataset)) if cuda.is_initialized() else None
    thread = threading.Thread(target=_warm, args=(trial, before), name="headrace warming", daemon=True)
    _warming.append(thread)
    thread.start()


def _warm(trial: tuple[Prepared, torch.device, Bundle | None] | None, before: threading.Thread | None) -> None:
    if before is not None:
        before.join()
    with suppress(Exception):  # raised again where it is needed
        importlib.import_module(LAUNCHES)
        if trial is not None:
            tried = CudaRenderer(*trial)
            try:
                tried.prepare()
            finally:
                tried.finish()
