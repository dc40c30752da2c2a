"""Keys derived from what a sample is and where it came from: ingesting it again gives the same key. Pure."""

import hashlib
import uuid
from collections.abc import Iterable
from typing import Any

_PERSON = b"headrace ingest"


def key(ident: str, content: Any, tag: str) -> str:
    """A UUID of the place in the source, the content, and how it is to be stored."""
    digest = hashlib.blake2b(digest_size=16, person=_PERSON)
    for part in (ident.encode("utf-8", "surrogatepass"), tag.encode(), *_parts(content)):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return str(uuid.UUID(bytes=digest.digest(), version=5))


def digest(contents: Iterable[Any]) -> bytes:
    """Of contents alone, wherever they lie."""
    whole = hashlib.sha256()  # processors have instructions for it
    for part in (part for content in contents for part in _parts(content)):
        whole.update(len(part).to_bytes(8, "little"))
        whole.update(part)
    return whole.digest()[:16]


def _parts(content: Any) -> list[Any]:
    """Of pictures and arrays the values count, not a file made of them, which changes with the library."""
    if isinstance(content, (bytes, bytearray, memoryview)):
        return [content]
    if hasattr(content, "mode") and hasattr(content, "tobytes"):
        return [f"{content.mode} {content.size}".encode(), content.tobytes()]
    return [f"{content.dtype.str} {content.shape}".encode(), content.tobytes()]
