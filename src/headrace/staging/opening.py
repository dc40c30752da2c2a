"""Picture files, opened as torchvision's folders open them."""

import io
from typing import Any


def picture(content: bytes) -> Any:
    """The picture in a file's content, opened as torchvision's folders open a file."""
    from PIL import Image  # noqa: PLC0415  (only where there are pictures)

    with Image.open(io.BytesIO(content)) as found:
        return found.convert("RGB")


def dimensions(content: bytes | bytearray | memoryview) -> tuple[int, int] | None:
    """Height and width that a picture's header promises; None where Pillow does not know the file."""
    from PIL import Image, UnidentifiedImageError  # noqa: PLC0415  (only where there are pictures)

    try:
        with Image.open(io.BytesIO(content)) as found:
            width, height = found.size
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError):  # decoding it says why
        return None
    return height, width


def plain_jpeg(height: int, width: int) -> bytes:
    """A JPEG file of one colour."""
    from PIL import Image  # noqa: PLC0415  (only where there are pictures)

    out = io.BytesIO()
    Image.new("RGB", (width, height), (90, 120, 150)).save(out, "JPEG")
    return out.getvalue()
