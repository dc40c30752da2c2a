"""A store as a torch dataset."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch.utils.data

from headrace import decoding
from headrace.core.errors import SplitError
from headrace.core.options import Retry
from headrace.store.base import Columns, Label, LocalStore, Row, Store
from headrace.store.bridges import Blocking
from headrace.store.keys import Keys
from headrace.store.locate import open_store
from headrace.store.splits.file import chosen
from headrace.store.wrappers import Retrying


class StoreDataset(torch.utils.data.Dataset[Any]):
    """The samples of a store, or of one split of them, for headrace's DataLoader, torch's, or your own loop.

    ``split``: ``"splits.parquet:train"``, or a sequence of keys; everything in the store by default, in the order of
    its keys. A sample is a pair of data and label, or data alone where the store has no labels. ``decode`` makes data
    of the stored bytes; by default pictures and arrays become tensors (``headrace.decoding``), and so do labels that
    are files. ``augment`` is called with the data, ``augment_both`` with data and label, and returns both: for masks.
    ``retry``: how reads from a store behind a network are tried again.

    Connects when the first sample is read, in every process for itself; can be pickled and forked at any time. Close
    it, or use it in a ``with`` block, where you read samples in your own process.
    """

    def __init__(
        self,
        url: str | Store,
        split: str | Sequence[str] | None = None,
        *,
        decode: Callable[[bytes], Any] | None = None,
        augment: Callable[[Any], Any] | None = None,
        augment_both: Callable[[Any, Any], Any] | None = None,
        retry: Retry | None = None,
    ) -> None:
        if augment is not None and augment_both is not None:
            raise TypeError("StoreDataset(augment=..., augment_both=...): one of them is enough")
        self.store: Store = open_store(url) if isinstance(url, str) else url
        """Where the samples are."""
        self.retry = retry or Retry()
        """How reads are tried again."""
        self._reader: LocalStore = _readable(self.store, self.retry)
        self._decode, self._augment, self._augment_both = decode or decoding.decode, augment, augment_both
        self._split = split if isinstance(split, str) else None
        self._labels: npt.NDArray[np.int64] | None = None
        self.keys: Sequence[str] = self._chosen(split)
        """The key of each sample."""
        if split is not None and self._reader is self.store:
            self.check()

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> Any:
        with self._named(index):
            return self.augment(self.decode(self.fetch(index)))

    def made_of(self, index: int, row: Row) -> Any:
        """What ``self[index]`` is, given its row: for a loader that has read it."""
        with self._named(index):
            return self.augment(self.decode(_encoded(row)))

    @contextmanager
    def _named(self, index: int) -> Iterator[None]:
        """Errors say which sample they are about."""
        try:
            yield
        except Exception as error:
            if -len(self.keys) <= index < len(self.keys):
                error.add_note(f"in sample {index} with the key {self.keys[index]!r} of {self.store.name}")
            raise

    def __repr__(self) -> str:
        of = "" if self._split is None else f", {self._split!r}"
        return f"StoreDataset({self.store.name!r}{of}): {len(self)} samples"

    def fetch(self, index: int) -> bytes | tuple[bytes, Label]:
        """The stored bytes, with the label that was stored with them."""
        return _encoded(self._reader.get(self.keys[index]))

    def encoded_of(self, row: Row) -> bytes | tuple[bytes, Label]:
        """What ``fetch`` gives, of its row: for a loader that has read it and has a cache."""
        return _encoded(row)

    def decode(self, encoded: bytes | tuple[bytes, Label]) -> Any:
        """What ``fetch`` gave, as data and label."""
        if not isinstance(encoded, tuple):
            return self._decode(encoded)
        payload, label = encoded
        return self._decode(payload), decoding.decode_label(label) if isinstance(label, (bytes, memoryview)) else label

    def augment(self, decoded: Any) -> Any:
        """What ``decode`` gave, changed at random or not; the same object where there is nothing to do."""
        pair = isinstance(decoded, tuple)
        if self._augment is not None:
            return (self._augment(decoded[0]), decoded[1]) if pair else self._augment(decoded)
        if self._augment_both is None:
            return decoded
        if not pair:
            raise TypeError("augment_both takes data and label, and this store has no labels")
        return self._augment_both(*decoded)

    def cache_fingerprint(self) -> dict[str, Any]:
        """What a cache tells each stage's results by."""
        return {
            "fetch": (self.store.name, list(self.keys)),
            "decode": self._decode,
            "augment": (self._augment, self._augment_both),
        }

    @property
    def labels(self) -> npt.NDArray[np.int64] | None:
        """The integer label of each sample, in the order of ``keys``; None where the store has no such labels.

        From the split file where that has them, else from the store's metadata, once; payloads are not read.
        """
        if self._labels is None:
            columns = self._columns()
            if "label" not in columns:
                return None
            number = dict(zip(columns["key"].tolist(), columns["label"].tolist(), strict=True))
            if not all(key in number for key in self.keys):
                self.check()
            self._labels = np.array([number[key] for key in self.keys], np.int64)
        return self._labels

    @property
    def classes(self) -> list[str]:
        """The names of the classes, a class's label being its place; numbers where the store has no names for them."""
        columns = self._columns()
        if "label" not in columns:
            return []
        labels = columns["label"].tolist()
        names = dict(zip(labels, columns["class"].tolist(), strict=True)) if "class" in columns else {}
        return [str(names.get(label, label)) for label in range(max(labels, default=-1) + 1)]

    def check(self) -> None:
        """Raises ``SplitError`` where keys of the split are not in the store. Reads the store's keys, no payloads."""
        there = set(self._listed())
        missing = [key for key in self.keys if key not in there]
        if missing:
            shown = ", ".join(map(repr, missing[:3])) + (", ..." if len(missing) > 3 else "")
            of = f"{len(missing)} of {len(self.keys)} keys"
            raise SplitError(f"{self._split or 'split'}: {of} are not in {self.store.name}: {shown}")

    def close(self) -> None:
        """Lets go of this process's connections. May be called twice; the next sample connects again."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listed(self) -> list[str]:
        """Read and let go of the store: a process that only starts workers holds nothing open."""
        try:
            return self.store.keys()
        finally:
            self.store.close()

    def _columns(self) -> Columns:
        try:
            return self.store.columns()
        finally:
            self.store.close()

    def _chosen(self, split: str | Sequence[str] | None) -> Keys:
        if split is None:
            return Keys(self._listed())
        if not isinstance(split, str):
            return Keys(split)
        splits, name = chosen(split)
        labels = splits.labels_of(name)
        if labels is not None and all(isinstance(label, int) for label in labels):
            self._labels = np.array(labels, np.int64)
        return Keys(splits.keys(name))


def _encoded(row: Row) -> bytes | tuple[bytes, Label]:
    payload = bytes(row.payload)
    return payload if row.label is None else (payload, row.label)


def _readable(store: Store, retry: Retry) -> LocalStore:
    return store if isinstance(store, LocalStore) else Blocking(Retrying(store, retry))
