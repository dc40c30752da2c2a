"""Values as entries, and back."""

import numpy as np

from headrace.cache.backends import entry_word as W
from headrace.cache.entries import entry as E
from headrace.cache.entries.codec import Codec, Corrupt

KEY = E.Key(bytes(16), 3, W.DECODED | 99 << 30)


def sealed(value, codec=None, key=KEY):
    """The bytes of an entry."""
    described = (codec or Codec()).describe(value)
    found = b"".join(E.seal(key, 7, described, np.empty(E.length(described), np.uint8)))
    assert len(found) == E.length(described)
    return np.frombuffer(found, np.uint8).copy()


def unsealed(entry, codec=None, key=KEY):
    """The value; ``Corrupt`` for what is no such entry."""
    found = E.unseal(key, np.asarray(entry))
    if found is None:
        raise Corrupt("no such entry")
    return (codec or Codec()).rebuild(found.layout, found.body)
