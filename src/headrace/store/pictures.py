"""Pictures read, resized and written: the only module of the stores that knows Pillow."""

import enum
import io
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.core.errors import IngestError, MissingDriver
from headrace.store.contents import Damaged, Form, check_structure, form_called

NAMES = {"jpeg": "JPEG", "png": "PNG", "webp": "WEBP", "tiff": "TIFF", "bmp": "BMP"}
WITHOUT_FORMAT = "PNG"
"""For pictures that are no files: nothing is lost."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """Encoding of stored pictures; without anything said, files stay what they are, byte by byte.

    ``resize``: the length of the shorter side, or width and height. ``format``: one of ``NAMES``; the picture's own by
    default, PNG for one that has none. ``quality``: of JPEG and WebP.
    """

    resize: int | tuple[int, int] | None = None
    format: str | None = None
    quality: int = 90

    def __post_init__(self) -> None:
        sides = () if self.resize is None else (self.resize,) if isinstance(self.resize, int) else self.resize
        if any(side < 1 for side in sides):
            raise IngestError(f"resize: a side of {min(sides)} pixels is no picture")
        if self.format is not None and self.format not in NAMES:
            raise IngestError(f"encode: {self.format!r} is not among {', '.join(NAMES)}")
        if not 1 <= self.quality <= 100:
            raise IngestError(f"quality: {self.quality} is not between 1 and 100")

    @property
    def changes(self) -> bool:
        """True if pictures are read and written again."""
        return self.resize is not None or self.format is not None

    def tag(self) -> str:
        """A text that tells apart two encodings of one picture, which are two samples."""
        return f"{self.resize}/{self.format}/{self.quality}" if self.changes else ""


class Check(enum.Enum):
    """Closeness of the look at contents before they are stored."""

    NONE = "none"
    STRUCTURE = "structure"
    """Header, structure and end; what looks damaged is decoded, and refused if that fails."""
    FULL = "full"
    """Every picture is decoded."""


class NotStorable(ValueError):
    """A content that cannot be stored as asked."""


def stored(content: Any, encoding: Encoding) -> bytes:
    """The bytes to store: those that came where nothing is to be changed, else a picture or a NPY file."""
    if isinstance(content, (bytes, bytearray, memoryview)):
        return _rewritten(bytes(content), encoding) if encoding.changes else bytes(content)
    if hasattr(content, "mode") and hasattr(content, "tobytes"):
        return _written(_resized(content, encoding, smooth=True), encoding.format or _own(content), encoding.quality)
    if encoding.changes:
        raise NotStorable("an array is no picture: it cannot be resized or encoded")
    return array_bytes(content)


def checked(content: Any, name: str, check: Check) -> None:
    """Raises ``Damaged`` for a picture or an array that is none. ``name``: what the file is called, if it is one."""
    if check is Check.NONE or not isinstance(content, (bytes, bytearray, memoryview)):
        return
    data = bytes(content)
    form = form_called(name, data)
    if form is Form.ARRAY:
        array(data)
    elif form is Form.PICTURE:
        try:
            check_structure(data)
        except Damaged as error:
            _confirm(data, f"{error}")
        else:
            if check is Check.FULL:
                _confirm(data, "a damaged picture")


def _confirm(data: bytes, suspicion: str) -> None:
    try:
        _opened(data)
    except MissingDriver:
        raise Damaged(suspicion) from None
    except Exception as error:
        text = str(error).partition("\n")[0] or type(error).__name__
        raise Damaged(f"{suspicion} ({text})") from error


def array(payload: bytes | memoryview) -> Any:
    """The array in a NPY file. Raises ``Damaged``; takes no more memory than the file is long, whatever that says."""
    file = io.BytesIO(payload)
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        needed, there = math.prod(shape) * dtype.itemsize, len(payload) - file.tell()
        if dtype.hasobject or min(shape, default=0) < 0:
            raise Damaged("a NPY file of Python objects")
        if needed > there:
            raise Damaged(f"the NPY file ends too early: {needed} bytes of values, and {there} are there")
        file.seek(0)
        return np.load(file, allow_pickle=False)
    except Damaged:
        raise
    except Exception as error:
        raise Damaged(f"a damaged NPY file: {str(error).partition(chr(10))[0]}") from error


def stored_label(content: Any, encoding: Encoding) -> bytes:
    """A mask is resized with its picture, without inventing values between two classes."""
    if encoding.resize is None or not (_picture_bytes(content) or hasattr(content, "mode")):
        return stored(content, Encoding())
    image = content if hasattr(content, "mode") else _opened(bytes(content))
    return _written(_resized(image, encoding, smooth=False), _own(image), 100)


def array_bytes(array: Any) -> bytes:
    """A NPY file; objects are refused, because reading them would run code."""
    out = io.BytesIO()
    np.save(out, np.asarray(array), allow_pickle=False)
    return out.getvalue()


def decoded(payload: bytes | memoryview, *, mask: bool = False) -> Any:
    """The picture as a numpy array, height × width × channels, or height × width.

    Colours and grey tones of eight bits become RGB, so that all pictures of a dataset have one shape; deeper pixels
    stay what they are. A mask keeps its values: palette indices, grey tones, truth values.
    """
    image = _opened(bytes(payload))
    if mask:
        return np.asarray(image.convert("L") if image.mode == "1" else image)
    if image.mode != "RGB" and not image.mode.startswith(("I", "F")):
        image = image.convert("RGB")
    return np.asarray(image)


def small(payload: bytes | memoryview, width: int, height: int) -> Any:
    """The picture as an RGB array of at most that size, of an even number of lines; deep pixels from dark to bright."""
    pil = _pillow()
    image = _opened(bytes(payload))
    if image.mode.startswith(("I", "F")):
        values = np.nan_to_num(np.asarray(image, np.float64))
        low, span = values.min(), np.ptp(values) or 1.0
        image = pil.fromarray(((values - low) / span * 255).astype(np.uint8))
    scale = min(width / image.width, height / image.height, 1.0)
    lines = max(2, 2 * round(image.height * scale / 2))
    return np.asarray(image.convert("RGB").resize((max(1, round(image.width * scale)), lines), pil.Resampling.BOX))


def _rewritten(payload: bytes, encoding: Encoding) -> bytes:
    image = _opened(payload)
    name = encoding.format or _own(image)
    return _written(_resized(_upright(image), encoding, smooth=True), name, encoding.quality)


def _opened(payload: bytes) -> Any:
    pil = _pillow()
    try:
        image = pil.open(io.BytesIO(payload))
        image.load()
    except pil.UnidentifiedImageError:
        raise NotStorable("this is no picture that Pillow knows") from None
    return image


def _upright(image: Any) -> Any:
    """A camera's note which side is up would be lost: the picture is turned instead."""
    from PIL import ImageOps  # noqa: PLC0415  (an extra)

    return ImageOps.exif_transpose(image)


def _resized(image: Any, encoding: Encoding, *, smooth: bool) -> Any:
    if encoding.resize is None:
        return image
    width, height = image.size
    if isinstance(encoding.resize, int):
        shorter = encoding.resize
        size = (
            (shorter, max(1, round(height * shorter / width)))
            if width < height
            else (max(1, round(width * shorter / height)), shorter)
        )
    else:
        size = encoding.resize
    if smooth and image.mode == "P":  # between two indices of a palette lies any colour
        image = image.convert("RGB")
    pil = _pillow()
    return (
        image
        if size == image.size
        else image.resize(size, pil.Resampling.LANCZOS if smooth else pil.Resampling.NEAREST)
    )


def _own(image: Any) -> str:
    return (getattr(image, "format", None) or WITHOUT_FORMAT).lower()


def _written(image: Any, name: str, quality: int) -> bytes:
    kind = NAMES.get(name, name.upper())
    if kind in {"JPEG", "WEBP"} and image.mode not in {"L", "RGB"}:
        if image.mode.startswith(("I", "F")):
            raise NotStorable(
                f"a picture of {image.mode} pixels would lose its values as {name}; encode it as png or tiff"
            )
        image = image.convert("L" if image.mode in {"1", "LA"} else "RGB")
    options = {"quality": quality} if kind in {"JPEG", "WEBP"} else {}
    if kind == "TIFF":
        options = {"compression": "tiff_deflate"}  # type: ignore[dict-item]
    out = io.BytesIO()
    try:
        image.save(out, kind, **options)
    except (OSError, KeyError) as error:
        raise NotStorable(f"cannot be written as {name}: {error}") from error
    return out.getvalue()


def _picture_bytes(content: Any) -> bool:
    if not isinstance(content, (bytes, bytearray, memoryview)):
        return False
    try:
        _opened(bytes(content))
    except NotStorable:
        return False
    return True


def _pillow() -> Any:
    try:
        from PIL import Image  # noqa: PLC0415  (an extra)
    except ImportError:
        raise MissingDriver("resizing and encoding pictures needs Pillow: pip install 'headrace[vision]'") from None
    return Image
