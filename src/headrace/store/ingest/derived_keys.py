"""Keys derived from what a sample is and where it came from: ingesting it again gives the same key. Pure."""

import hashlib
import uuid
from collections.abc import Iterable
from typing import Any

_PERSON = b"headrace ingest"


def key(ident: str, content: Any, tag: str) -> str:
    """A UUID of the place in the source, the content, and how it is to be stored."""
    whole = hashlib.blake2b(digest_size=16, person=_PERSON)
    _feed(whole, [ident.encode("utf-8", "surrogatepass"), tag.encode(), *_parts(content)])
    return str(uuid.UUID(bytes=whole.digest(), version=5))


def digest(contents: Iterable[Any]) -> bytes:
    """The digest of contents alone, wherever they lie."""
    whole = hashlib.sha256()  # processors have instructions for it
    for content in contents:
        _feed(whole, _parts(content))
    return whole.digest()[:16]


def _feed(whole: Any, parts: list[Any]) -> None:
    """Each part behind its length; the last one, which may be long, is not copied."""
    *first, last = parts
    head = b"".join(len(each).to_bytes(8, "little") + each for each in first)
    whole.update(head + len(last).to_bytes(8, "little"))
    whole.update(last)


def _parts(content: Any) -> list[Any]:
    """The parts of a content that count: of pictures and arrays the values, not a file made of them, which changes
    with the library.
    """
    if isinstance(content, (bytes, bytearray, memoryview)):
        return [content]
    if hasattr(content, "mode") and hasattr(content, "tobytes"):
        return [f"{content.mode} {content.size}".encode(), content.tobytes()]
    return [f"{content.dtype.str} {content.shape}".encode(), content.tobytes()]
