"""Encoded samples become tensors: what they are is seen from their first bytes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from headrace.caching.tensors import masked
from headrace.core.errors import BadRow, MissingDriver
from headrace.staging.opening import picture
from headrace.store.contents import Form, form_of
from headrace.store.pictures import array, decoded


def decode(payload: bytes | memoryview) -> Any:
    """The tensor of a picture or a NPY file. A picture (JPEG, PNG, TIFF, WebP, GIF, BMP) becomes a uint8 tensor of
    3 × height × width, one of deeper pixels 1 × height × width. Nothing is unpickled.

    A payload that is neither, or is damaged, raises ``BadRow``: as the bytes it is, it would get as far as a batch of
    tensors, and nobody could tell any more which sample it was. ``StoreDataset(decode=bytes)`` takes bytes as they are.
    """
    form = form_of(payload)
    if form is Form.OTHER:
        what = f"begins with {bytes(payload[:12])!r}" if len(payload) else "is empty"
        raise BadRow(f"the payload {what}: neither a picture nor a NPY file; decode=bytes takes bytes as they are")
    return _made(_array if form is Form.ARRAY else _picture, payload, form)


def decode_picture(payload: bytes | memoryview) -> Any:
    """A picture as a PIL image in RGB, as torchvision's datasets give it; anything else as ``decode`` makes it."""
    form = form_of(payload)
    return decode(payload) if form in {Form.OTHER, Form.ARRAY} else _made(_image, payload, form)


def as_mask(label: Any) -> Any:
    """A tensor of height × width, marked as a mask for torchvision's second transforms."""
    return masked(label) if isinstance(label, torch.Tensor) and label.dim() == 2 else label


def decode_label(label: bytes | memoryview) -> Any:
    """A label that is a file: a mask as a tensor of height × width with its values unchanged, a NPY file, or bytes."""
    form = form_of(label)
    if form is Form.OTHER:
        return bytes(label)
    return _made(_array if form is Form.ARRAY else _mask, label, form)


def _made(make: Callable[[bytes | memoryview], Any], payload: bytes | memoryview, form: Form) -> Any:
    try:
        return make(payload)
    except (MissingDriver, MemoryError):
        raise
    except Exception as error:  # whatever a library says of a damaged file
        text = str(error).partition("\n")[0] or type(error).__name__
        raise BadRow(f"the payload, a {form.value} of {len(payload)} bytes, cannot be decoded: {text}") from error


def _picture(payload: bytes | memoryview) -> torch.Tensor:
    pixels = decoded(payload)
    return _tensor(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))


def _image(payload: bytes | memoryview) -> Any:
    return picture(bytes(payload))


def _mask(payload: bytes | memoryview) -> torch.Tensor:
    values = decoded(payload, mask=True)
    return _tensor(values if values.ndim == 2 else values.transpose(2, 0, 1))


def _array(payload: bytes | memoryview) -> torch.Tensor:
    return _tensor(array(payload))


def _tensor(values: Any) -> torch.Tensor:
    """Memory of its own, which torch may write to, in torch's byte order."""
    return torch.from_numpy(np.array(values, dtype=values.dtype.newbyteorder("="), order="C", copy=True))
