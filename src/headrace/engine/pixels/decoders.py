"""Who decodes JPEG files: the device's own engines by way of torchvision, and Pillow one by one where those fail."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from headrace.core.errors import DeviceUnavailable
from headrace.engine.staging.images import picture

Together = Callable[[list[torch.Tensor]], list[torch.Tensor]]
"""JPEG files, as bytes in host memory, into levels, 3 × height × width; all of them, or an error."""
Decoded = torch.Tensor | Exception


def on_host(files: list[torch.Tensor]) -> list[torch.Tensor]:
    """By Pillow, as torchvision's folders do."""
    return [_by_pillow(file) for file in files]


def on_cuda(device: torch.device) -> Together:
    """By the device. What it gives lies in memory of the current stream, and the stream waits for it.

    Its engines write there without waiting for what the stream was given before: that memory must not be in use.
    """
    try:
        import torchvision.io  # type: ignore[import-untyped]  # noqa: PLC0415  (an extra, where there is a device)
    except ImportError:
        msg = "on_device= needs torchvision: pip install 'headrace[vision]'"
        raise DeviceUnavailable(msg) from None
    decode = getattr(torch.ops.image, "decode_jpegs_cuda", None)
    if decode is None:
        msg = "on_device=: this torchvision was built without nvJPEG; install one for CUDA, or leave on_device out"
        raise DeviceUnavailable(msg)
    mode = torchvision.io.ImageReadMode.RGB.value

    def together(files: list[torch.Tensor]) -> list[torch.Tensor]:
        found: list[torch.Tensor] = decode(files, mode, device)
        return found

    return together


def decoded(
    files: Sequence[torch.Tensor], sizes: Sequence[Sequence[int]], together: Together, device: torch.device
) -> tuple[list[Decoded], bool]:
    """Each file's levels on ``device``, or what is wrong with it; and whether they had to be decoded one by one.

    ``sizes``: height and width, as their headers say.
    """
    if not files:
        return [], False
    try:
        found = together(list(files))
    except (torch.cuda.OutOfMemoryError, MemoryError):
        raise
    except Exception:  # noqa: BLE001  (whose fault it is, is found out below)
        return [_alone(file, size, device) for file, size in zip(files, sizes, strict=True)], True
    return [_checked(levels, size) for levels, size in zip(found, sizes, strict=True)], False


def _alone(file: torch.Tensor, size: Sequence[int], device: torch.device) -> Decoded:
    try:
        return _checked(_by_pillow(file).to(device), size)
    except (torch.cuda.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001  (the sample's own)
        return error


def _checked(levels: torch.Tensor, size: Sequence[int]) -> Decoded:
    if levels.shape == (3, *size):
        return levels
    return ValueError(f"decoded to {tuple(levels.shape)}, where the header promised {size[0]} × {size[1]} pixels")


def _by_pillow(file: torch.Tensor) -> torch.Tensor:
    pixels = np.array(picture(file.numpy().tobytes()))
    return torch.from_numpy(pixels).permute(2, 0, 1)
