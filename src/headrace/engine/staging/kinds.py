"""Tensors and PIL images as cache entries hold them: plain facts and one array. Nothing is pickled."""

import io
from typing import Any

import numpy as np
import torch

from headrace.cache.codec import Codec, NotKept

_BARE = {torch.bfloat16: torch.int16, torch.complex32: torch.int32}
"""Types that numpy does not have, as which their bytes travel."""
_DTYPES = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}


class TensorKind:
    """Plain CPU tensors. What comes back refers to the cache's own memory: whoever changes it in place must copy it."""

    name = "tensor"

    def matches(self, value: Any) -> bool:
        """Plain tensors only: subclasses mean something we do not know, except torchvision's images and videos."""
        return type(value) is torch.Tensor or _known_subclass(value)

    def apart(self, value: Any) -> tuple[Any, Any]:
        """Type and class; the array."""
        if value.layout is not torch.strided or not value.is_cpu or value.is_quantized or value.requires_grad:
            msg = "a tensor that is sparse, quantized, on a device or requires grad cannot be kept in a cache"
            raise NotKept(msg)
        plain = value.as_subclass(torch.Tensor).resolve_conj().resolve_neg().contiguous()
        kind = str(plain.dtype).removeprefix("torch.")
        bare = plain.view(_BARE[plain.dtype]) if plain.dtype in _BARE else plain
        return [kind, type(value).__name__], bare.numpy()

    def together(self, facts: Any, array: Any) -> Any:
        """A tensor over memory that must not be written to."""
        kind, subclass = facts
        dtype, found = _DTYPES[kind], _over(array)
        found = found.view(dtype) if dtype in _BARE else found
        if subclass == "Tensor":
            return found
        # Whoever wrote such an entry has it.
        from torchvision import tv_tensors  # type: ignore[import-untyped]  # noqa: PLC0415

        return {"Image": tv_tensors.Image, "Video": tv_tensors.Video}[subclass](found)


def _over(array: Any) -> torch.Tensor:
    """Without torch's warning about read-only memory, which is the cache's rule and not the user's mistake."""
    if not array.size:
        return torch.from_numpy(array.copy())
    if array.flags.writeable:  # a copy of its own
        return torch.from_numpy(array)
    flat = np.frombuffer(array.reshape(-1).view(np.uint8), np.uint8)
    shape, dtype = array.shape, torch.from_numpy(np.empty(0, array.dtype)).dtype
    holder = np.lib.stride_tricks.as_strided(_Writable(flat).array(), flat.shape)
    return torch.from_numpy(holder).view(dtype).reshape(shape)


class _Writable:
    """The same memory, as numpy's interface describes it to those who promise not to write."""

    def __init__(self, flat: Any) -> None:
        self._flat = flat
        described = dict(flat.__array_interface__)
        described["data"] = (described["data"][0], False)
        self.__array_interface__ = described

    def array(self) -> Any:
        return np.asarray(self)


def _known_subclass(value: Any) -> bool:
    kind = type(value)
    return kind.__module__.startswith("torchvision.tv_tensors") and kind.__name__ in {"Image", "Video"}


class ImageKind:
    """PIL images, as the uint8 array of their pixels; palette, 16-bit and other modes by their raw bytes."""

    name = "image"

    def matches(self, value: Any) -> bool:
        """Anything that PIL made."""
        return any(base.__module__ == "PIL.Image" and base.__name__ == "Image" for base in type(value).__mro__)

    def apart(self, value: Any) -> tuple[Any, Any]:
        """Mode, size and palette; the pixels."""
        value.load()
        palette = list(value.getpalette() or ()) if value.mode in {"P", "PA"} else []
        pixels = np.frombuffer(value.tobytes(), np.uint8)
        return [value.mode, list(value.size), palette], pixels

    def together(self, facts: Any, array: Any) -> Any:
        """An image of its own: PIL's operations write to images."""
        from PIL import Image  # noqa: PLC0415  (only where images are cached)

        mode, size, palette = facts
        found = Image.frombytes(mode, tuple(size), array.tobytes())
        if palette:
            found.putpalette(palette)
        return found


def picture(content: bytes) -> Any:
    """As torchvision's folders open a file."""
    from PIL import Image  # noqa: PLC0415  (only where there are pictures)

    with Image.open(io.BytesIO(content)) as found:
        return found.convert("RGB")


def codec() -> Codec:
    """The codec for what datasets of torch users hold."""
    return Codec([TensorKind(), ImageKind()])
