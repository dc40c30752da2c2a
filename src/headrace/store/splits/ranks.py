"""The randomness of splits: an order of values that depends on the seed and the values alone. Pure.

Neither the order in which rows come nor the version of any library has a part in it.
"""

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt


def ranks(values: Iterable[str], seed: int, purpose: str) -> npt.NDArray[np.uint64]:
    """A number per value, as good as random; ``purpose`` keeps two uses of one seed apart."""
    secret = hashlib.blake2b(f"{purpose}:{seed}".encode(), digest_size=32).digest()
    keyed = hashlib.blake2b(key=secret, digest_size=8)
    digests = bytearray()
    for value in values:
        one = keyed.copy()
        one.update(value.encode("utf-8", "surrogatepass"))
        digests += one.digest()
    return np.frombuffer(bytes(digests), "<u8")
