"""Form of a content and the soundness of its structure, told from its bytes. Pure, and cheap."""

import enum
import os.path
import struct

JPEG = b"\xff\xd8\xff"
SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "png",
    b"II*\0": "tif",
    b"MM\0*": "tif",
    b"GIF87a": "gif",
    b"GIF89a": "gif",
}
BMP_HEADERS = (12, 40, 52, 56, 64, 108, 124)
"""Sizes a BMP's header may have: two letters alone are the beginning of many a text."""
NPY = b"\x93NUMPY"
PICTURES = frozenset({"jpg", "jpeg", "jpe", "jfif", "png", "tif", "tiff", "gif", "bmp", "webp"})
"""Extensions of files that are to be pictures."""


class Form(enum.Enum):
    """Form that the first bytes tell."""

    PICTURE = "picture"
    ARRAY = "NPY file"
    OTHER = "other"


class Damaged(ValueError):
    """A content that is not what it is called, or not whole."""


def form_of(content: bytes | memoryview) -> Form:
    """The form, by the first bytes."""
    found = extension(content)
    return Form.ARRAY if found == "npy" else Form.OTHER if found == "bin" else Form.PICTURE


def extension(content: bytes | memoryview) -> str:
    """The extension for a file with this content; ``bin`` where that cannot be told."""
    head = bytes(content[:18])
    if head.startswith(JPEG):  # most are
        return "jpg"
    if head.startswith(NPY):
        return "npy"
    if head[:2] == b"BM" and int.from_bytes(head[14:], "little") in BMP_HEADERS:
        return "bmp"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    return next((name for signature, name in SIGNATURES.items() if head.startswith(signature)), "bin")


def form_called(name: str, content: bytes | memoryview) -> Form:
    """The form to check a file of this name as; the content's own, where the name has no extension.

    Raises ``Damaged`` where it is called a picture, or an array, and does not even begin like one.
    """
    suffix = os.path.splitext(name)[1].lower().removeprefix(".")  # noqa: PTH122  (a path would be made for each sample)
    found = form_of(content)
    if not suffix:
        return found
    called = Form.PICTURE if suffix in PICTURES else Form.ARRAY if suffix == "npy" else Form.OTHER
    if called is Form.OTHER:
        return Form.OTHER
    if not len(content):
        raise Damaged(f"an empty file is no {called.value}")
    if found is not called:
        raise Damaged(f"it is called .{suffix} and is no {called.value}: it begins with {bytes(content[:12])!r}")
    return found


def check_structure(content: bytes | memoryview) -> None:
    """Raises ``Damaged`` where a picture has no proper beginning, or ends too early. Nothing is decoded."""
    data = bytes(content)
    kind = extension(data)
    try:
        _CHECKS.get(kind, _nothing)(data)
    except (struct.error, IndexError):
        raise Damaged(f"the {kind} ends too early, after {len(data)} bytes") from None


def _nothing(data: bytes) -> None:
    """Accept anything: the kind is unknown."""


def _jpeg(data: bytes) -> None:
    """Segments up to the first scan, a frame among them; in a scan FF D9 is the end and nothing else."""
    at, framed = 2, False
    while True:
        while data[at] == 0xFF and data[at + 1] == 0xFF:  # padding
            at += 1
        if data[at] != 0xFF:
            raise Damaged(f"the jpg has no marker at byte {at}")
        marker = data[at + 1]
        if marker == 0xD9:
            raise Damaged("the jpg ends before its picture begins")
        if 0xD0 <= marker <= 0xD8 or marker == 0x01:  # these have no length
            at += 2
            continue
        (size,) = struct.unpack_from(">H", data, at + 2)
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # a frame, of any coding; those are tables
            framed = True
            if 0 in struct.unpack_from(">HH", data, at + 5)[1:]:
                raise Damaged("the jpg has no width")
        at += 2 + size
        if marker == 0xDA:
            break
    if not framed:
        raise Damaged("the jpg says nothing about its size")
    if data.find(b"\xff\xd9", at) < 0:
        raise Damaged(f"the jpg ends too early, after {len(data)} bytes")


def _png(data: bytes) -> None:
    at, pixels = 8, False
    while True:
        size, kind = struct.unpack_from(">I4s", data, at)
        if at == 8 and (kind != b"IHDR" or 0 in struct.unpack_from(">II", data, at + 8)):
            raise Damaged("the png has no header")
        pixels = pixels or kind == b"IDAT"
        at += 12 + size  # with length, name and checksum
        if at > len(data):
            raise IndexError
        if kind == b"IEND":
            break
    if not pixels:
        raise Damaged("the png has no pixels")


def _gif(data: bytes) -> None:
    flags = data[10]
    at = 13 + (3 << ((flags & 7) + 1) if flags & 0x80 else 0)
    images = 0
    while data[at] != 0x3B:  # the end; 0x2C is an image, 0x21 an extension, and what each holds comes in short blocks
        if data[at] == 0x2C:
            images += 1
            flags = data[at + 9]
            at += 11 + (3 << ((flags & 7) + 1) if flags & 0x80 else 0)
        elif data[at] == 0x21:
            at += 2
        else:
            raise Damaged(f"the gif has no block at byte {at}")
        while data[at]:
            at += 1 + data[at]
        at += 1
    if not images:
        raise Damaged("the gif has no picture")


def _bmp(data: bytes) -> None:
    begins, header = struct.unpack_from("<II", data, 10)
    needed = begins + 1
    if header >= 40:
        width, height, _, depth, compression = struct.unpack_from("<iiHHI", data, 18)
        if compression == 0:
            needed = begins + (abs(width) * depth + 31) // 32 * 4 * abs(height)
    if needed > len(data):
        raise IndexError


def _webp(data: bytes) -> None:
    (size,) = struct.unpack_from("<I", data, 4)
    if size + 8 > len(data):
        raise IndexError


def _tiff(data: bytes) -> None:
    """The first directory, and the strips or tiles that it names, lie within the file."""
    order = "<" if data[:2] == b"II" else ">"
    (at,) = struct.unpack_from(f"{order}I", data, 4)
    (count,) = struct.unpack_from(f"{order}H", data, at)
    places: dict[int, tuple[int, ...]] = {}
    for entry in range(count):
        tag, kind, number, value = struct.unpack_from(f"{order}HHII", data, at + 2 + 12 * entry)
        if tag in (273, 279, 324, 325):  # where strips begin and how long they are, the same of tiles
            letter = {3: "H", 4: "I"}.get(kind)
            if letter is None or number * 2 > len(data):
                raise Damaged("the tif does not say where its pixels are")
            inline = number * struct.calcsize(letter) <= 4
            where = at + 2 + 12 * entry + 8 if inline else value
            places[tag] = struct.unpack_from(f"{order}{number}{letter}", data, where)
    begins, sizes = places.get(273, places.get(324)), places.get(279, places.get(325))
    if begins is None:
        raise Damaged("the tif does not say where its pixels are")
    ends = [first + size for first, size in zip(begins, sizes or (0,) * len(begins), strict=False)]
    if max(ends, default=0) > len(data):
        raise IndexError


_CHECKS = {
    "jpg": _jpeg,
    "png": _png,
    "gif": _gif,
    "bmp": _bmp,
    "webp": _webp,
    "tif": _tiff,
}
