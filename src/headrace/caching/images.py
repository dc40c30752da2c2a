"""PIL's images, for the cache's codec: pixels, palette, and ``info`` with all that its operations look at."""

import sys
from typing import Any

from headrace.cache.entries.parts import ALIGN, Body, Builder, Describer, NotKept, Parts, Reading

_MODES = frozenset(
    {
        *("1", "L", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "I", "F"),
        *("LA", "PA", "RGBX", "RGBa", "La", "I;16", "I;16L", "I;16B", "I;16N"),
    }
)


def _image(value: Any, parts: Parts) -> None:
    value.load()
    _check(value)
    if parts.again(value):
        return
    content, palette = value.tobytes(), _palette(value)
    parts.tokens.append(b"P" + value.mode.encode())
    parts.numbers += (*value.size, len(content))
    parts.pieces.append((ALIGN, content))
    parts.add(palette, ".palette")
    parts.add(value.info, ".info")


def _check(value: Any) -> None:
    fresh = type(value)()
    odd = sorted(vars(value).keys() - vars(fresh).keys())
    if odd:
        raise NotKept(f"is a PIL image with attributes of its own: {', '.join(odd)}")
    if value.mode not in _MODES:
        raise NotKept(f"is a PIL image of mode {value.mode}, which cannot be cached")
    exif = value._exif  # noqa: SLF001  (set by getexif, and then what that gives from then on)
    if exif is not None:
        fresh.info = value.info
        if dict(fresh.getexif()) != dict(exif):
            raise NotKept("is a PIL image whose getexif() was changed and whose info['exif'] was not: set that too")


def _palette(value: Any) -> Any:
    """The palette of an image: what PIL has in Python of it, and what it has in C."""
    if value.mode not in {"P", "PA"}:
        return None
    mode = value.im.getpalettemode()
    found = value.palette
    return found.mode, bytes(found.palette), mode, value.im.getpalette(mode, mode)


def _made_image(token: str, reading: Reading) -> Builder:
    mode = token[1:]
    if mode not in _MODES:
        raise ValueError(token)
    reading.expect("qqq")
    palette, info = reading.following(), reading.following()

    def build(body: Body) -> Any:
        """An image of its own: PIL has its memory to itself."""
        from PIL import Image, ImagePalette  # noqa: PLC0415  (only where images are cached)

        take = body.take
        found = Image.new(mode, (take(), take()))
        body.made.append(found)
        found.frombytes(body.piece(take(), ALIGN))
        colours = palette(body)
        if colours is not None:
            name, content, inner, raw = colours
            found.im.putpalette(inner, inner, raw)
            found.palette = ImagePalette.ImagePalette(name, content)
        found.info = info(body)
        return found

    return build


def _note(value: Any, parts: Parts) -> None:
    """A text of a PNG file, with its language."""
    parts.tokens.append(b"X")
    parts.add((str(value), value.lang, value.tkey))


def _rational(value: Any, parts: Parts) -> None:
    """A number of a TIFF file."""
    if type(value.numerator) is not int or type(value.denominator) is not int:
        raise NotKept("is a PIL.TiffImagePlugin.IFDRational that is no fraction of integers")
    parts.tokens.append(b"R")
    parts.numbers += (value.numerator, value.denominator)


def _made_note(_: str, reading: Reading) -> Builder:
    inner = reading.following()

    def build(body: Body) -> Any:
        from PIL.PngImagePlugin import iTXt  # noqa: PLC0415

        text, language, key = inner(body)
        return iTXt(text, language, key)

    return build


def _made_rational(_: str, reading: Reading) -> Builder:
    reading.expect("qq")

    def build(body: Body) -> Any:
        from PIL.TiffImagePlugin import IFDRational  # noqa: PLC0415

        return IFDRational(body.take(), body.take())

    return build


class ImageKind:
    """Images that are in memory. One that stands for a file is another class, and does more than an image can."""

    letters = "PXR"

    def describer(self, kind: type) -> Describer | None:
        """See ``Kind``."""
        if kind is _class("PIL.Image", "Image"):
            return _image
        if kind is _class("PIL.PngImagePlugin", "iTXt"):
            return _note
        if kind is _class("PIL.TiffImagePlugin", "IFDRational"):
            return _rational
        if kind.__module__.startswith("PIL.") and issubclass(kind, _class("PIL.ImageFile", "ImageFile") or ()):
            name = f"{kind.__module__}.{kind.__qualname__}"
            raise NotKept(
                f"is a {name}, an open file, which cannot be kept in a cache: return its `.copy()` or `.convert('RGB')`"
            )
        return None

    def builder(self, token: str, reading: Reading) -> Builder:
        """See ``Kind``."""
        return {"P": _made_image, "X": _made_note, "R": _made_rational}[token[0]](token, reading)


def _class(module: str, name: str) -> Any:
    """The class of PIL's with that name, if this process has it: without, there is no object of it."""
    return getattr(sys.modules.get(module), name, None)
