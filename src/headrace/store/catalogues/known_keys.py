"""The keys that a store has, in little memory: for writers, who must not write one twice."""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt


class KnownKeys:
    """A set of keys: sixteen bytes for each, whatever its length. Two keys share them once in 10^29 pairs."""

    def __init__(self) -> None:
        self._recent: dict[bytes, bool] = {}
        """What is known beyond those below, or otherwise."""
        self._sorted: npt.NDArray[Any] | None = None

    def note(self, keys: Iterable[str], *, there: bool) -> None:
        """Note that from now on the keys are there, or are not."""
        self._recent.update((_digest(key), there) for key in keys)
        # Once they are an eighth of the rest: all merges together then cost a few times the last one.
        if len(self._recent) > max(1024, (0 if self._sorted is None else len(self._sorted)) // 8):
            self._merge()

    def _merge(self) -> None:
        import numpy as np  # noqa: PLC0415  (who reads rows and no columns starts without it)

        recent = np.array([digest for digest, there in self._recent.items() if there], "S16")
        if self._sorted is not None:
            known = self._sorted[~np.isin(self._sorted, np.array(list(self._recent), "S16"))]
            recent = np.concatenate([known, recent])
        self._sorted = np.sort(recent)
        self._recent.clear()

    def present(self, keys: Sequence[str]) -> set[str]:
        """The keys among these that are there."""
        return {key for key in keys if self._has(_digest(key))}

    def _has(self, digest: bytes) -> bool:
        if digest in self._recent or self._sorted is None:
            return self._recent.get(digest, False)
        at = int(self._sorted.searchsorted(digest))
        return at < len(self._sorted) and bool(self._sorted[at] == digest)


def _digest(key: str) -> bytes:
    """The digest of a key without zeros, which numpy would take for the end of it."""
    return base64.b64encode(hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=12).digest())
