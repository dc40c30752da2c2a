"""Encoded samples become tensors: what they are is seen from their first bytes."""

import io
from typing import Any

import numpy as np
import torch

from headrace.store.pictures import decoded

_PICTURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"II*\0", b"MM\0*", b"GIF8", b"BM")
_NPY = b"\x93NUMPY"


def decode(payload: bytes | memoryview) -> Any:
    """A picture (JPEG, PNG, TIFF, WebP, GIF, BMP) as a uint8 tensor of 3 × height × width, one of deeper pixels as
    1 × height × width; a NPY file as a tensor; anything else as the bytes it is. Nothing is unpickled.
    """
    if _is_picture(payload):
        array = decoded(payload)
        return _tensor(array[None] if array.ndim == 2 else array.transpose(2, 0, 1))
    return _array(payload) if bytes(payload[:6]) == _NPY else bytes(payload)


def decode_label(label: bytes | memoryview) -> Any:
    """A label that is a file: a mask as a tensor of height × width with its values unchanged, a NPY file, or bytes."""
    if _is_picture(label):
        array = decoded(label, mask=True)
        return _tensor(array if array.ndim == 2 else array.transpose(2, 0, 1))
    return _array(label) if bytes(label[:6]) == _NPY else bytes(label)


def _is_picture(payload: bytes | memoryview) -> bool:
    head = bytes(payload[:12])
    return head.startswith(_PICTURES) or (head[:4] == b"RIFF" and head[8:] == b"WEBP")


def _array(payload: bytes | memoryview) -> torch.Tensor:
    return _tensor(np.load(io.BytesIO(payload), allow_pickle=False))


def _tensor(array: Any) -> torch.Tensor:
    """Memory of its own, which torch may write to, in torch's byte order."""
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True))
