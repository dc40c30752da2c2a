"""Decoders of JPEG files: the device's own engines by way of torchvision or torchcodec, and Pillow one by one where
those fail.
"""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from headrace.core.errors import DeviceUnavailable
from headrace.staging.opening import picture

log = logging.getLogger("headrace.device")
Together = Callable[[list[torch.Tensor]], list[torch.Tensor]]
"""JPEG files, as bytes in host memory, into levels, 3 × height × width; all of them, or an error."""
Decoded = torch.Tensor | Exception


def on_host(files: list[torch.Tensor]) -> list[torch.Tensor]:
    """The pictures of these files, decoded by Pillow as torchvision's folders do."""
    return [_by_pillow(file) for file in files]


def on_cuda(device: torch.device) -> Together:
    """A decoder that runs on the device. Its results lie in memory of the current stream, and the stream waits for
    them.

    Its engines write there without waiting for what the stream was given before: that memory must not be in use.
    torchvision's decoders are moving to torchcodec, which stands in: on an H200 it gives the same levels, but 14,000
    pictures a second where torchvision gives 15,200, for it has to be kept from rotating them.
    """
    return chosen({"torchvision": by_torchvision, "torchcodec": by_torchcodec}, device)


class JpegDecoder(NamedTuple):
    """The JPEG decoder of one library."""

    name: str
    together: Together


class FirstThatWorks:
    """Decodes with the first of several that can. What it decodes once it can; from then on errors are the files'."""

    def __init__(self, decoders: Sequence[JpegDecoder], passed_over: Sequence[str] = ()) -> None:
        """``decoders``: at least one, the best first. ``passed_over``: why others are not among them."""
        self._decoders, self._works = list(decoders), False
        self.passed_over = list(passed_over)
        """Why better ones are not used."""

    @property
    def name(self) -> str:
        """The name of the decoder that is used next."""
        return self._decoders[0].name

    def __call__(self, files: list[torch.Tensor]) -> list[torch.Tensor]:
        """See ``Together``."""
        first, *others = self._decoders
        try:
            found = first.together(files)
        except (torch.cuda.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            if self._works or not others:
                raise
            found = others[0].together(files)  # if that fails too, it is the files' fault
            self.passed_over.append(f"{first.name}: {error}")
            self._decoders = others
            log.warning("on_device=: %s decodes, for this failed: %s", self.name, self.passed_over[-1])
        self._works = True
        return found


def chosen(offers: dict[str, Callable[[torch.device], Together]], device: torch.device) -> FirstThatWorks:
    """The decoders of ``offers``, by name and the best first, that are available. ``DeviceUnavailable`` if none is."""
    there, lacking = [], []
    for name, offer in offers.items():
        try:
            there.append(JpegDecoder(name, offer(device)))
        except (ImportError, OSError, RuntimeError, DeviceUnavailable) as error:
            lacking.append(f"{name}: {error}")
    if not there:
        known = "; ".join(lacking)
        raise DeviceUnavailable(f"on_device= needs a decoder of JPEG files (pip install 'headrace[vision]'): {known}")
    log.info("on_device=: %s decodes; %s", there[0].name, "; ".join(lacking) or "the others are there too")
    return FirstThatWorks(there, lacking)


def by_torchvision(device: torch.device) -> Together:
    """The batched decoder of torchvision for CUDA."""
    import torchvision.io  # type: ignore[import-untyped]  # noqa: PLC0415  (an extra, where there is a device)

    decode = getattr(torch.ops.image, "decode_jpegs_cuda", None)
    if decode is None:
        raise DeviceUnavailable("was built without nvJPEG; install one for CUDA, or leave on_device out")
    mode = torchvision.io.ImageReadMode.RGB.value

    def together(files: list[torch.Tensor]) -> list[torch.Tensor]:
        found: list[torch.Tensor] = decode(files, mode, device)
        return found

    return together


def by_torchcodec(device: torch.device) -> Together:
    """The decoder of torchcodec 0.16 and later. A build without CUDA shows only when it decodes."""
    from torchcodec import decoders  # noqa: PLC0415  (optional)

    decode = getattr(decoders, "decode_jpeg", None)
    if decode is None:
        raise DeviceUnavailable("has no decode_jpeg; it came with 0.16")

    def together(files: list[torch.Tensor]) -> list[torch.Tensor]:
        found: list[torch.Tensor] = decode([_upright(file) for file in files], mode="RGB", device=device)
        return found

    return together


_EXIF, _COMMENT, _PIXELS = 0xE1, 0xFE, 0xDA


def _upright(file: torch.Tensor) -> torch.Tensor:
    """The file, with what may say that it is to be rotated made a comment: torchcodec would do so, nobody else does."""
    content, at, found = file.numpy().data, 2, file
    while at + 8 < len(content) and content[at] == 0xFF and content[at + 1] != _PIXELS:
        if content[at + 1] == 0xFF:  # markers may be filled up
            at += 1
            continue
        if content[at + 1] == _EXIF and bytes(content[at + 4 : at + 8]) == b"Exif":
            found = file.clone() if found is file else found
            found[at + 1] = _COMMENT
        at += 2 + (content[at + 2] << 8 | content[at + 3])
    return found


def decoded(
    files: Sequence[torch.Tensor], sizes: Sequence[Sequence[int]], together: Together, device: torch.device
) -> tuple[list[Decoded], bool]:
    """The levels of each file on ``device``, or what is wrong with it; and whether they had to be decoded one by
    one.

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
