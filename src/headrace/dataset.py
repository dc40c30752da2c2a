"""A store as a torch dataset."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch.utils.data

from headrace import decoding
from headrace.about import About, in_order
from headrace.core.errors import BadRow, CacheError, NotOnDevice, SplitError, StoreError
from headrace.core.options import Retry
from headrace.ondevice.pixels.choices import Pixels
from headrace.staging.composition import STAGES, composed
from headrace.staging.prefix import apply, cut
from headrace.store.base import RESERVED, Columns, LocalStore, Row, Store
from headrace.store.catalogues.keys import Keys
from headrace.store.catalogues.looking import matching
from headrace.store.catalogues.origin import NamingStore
from headrace.store.catalogues.provenance import Identified, LookedAt, Provenance, Stamped
from headrace.store.locate import open_store
from headrace.store.reading.bridges import Blocking
from headrace.store.reading.wrappers import Retrying
from headrace.store.shards.formats import PreparedStore
from headrace.store.splits.split_file import chosen


class StoreDataset(torch.utils.data.Dataset[Any]):
    """The samples of a store, or of one split of them, for headrace's DataLoader, torch's, or your own loop.

    ``split``: ``"splits.parquet:train"``, or a sequence of keys; everything in the store by default, in the order of
    its keys. ``where`` keeps the samples for whose metadata a condition holds: ``"age >= 18 AND site = 'a'"``, as in
    ``headrace split``. A sample is a pair of data and label, or data alone where the store has no labels.

    How data are made of the stored bytes is said in one of two ways. As torchvision's datasets have it: pictures are
    PIL images, ``transform`` is applied to them, ``target_transform`` to labels, or ``transforms`` to both. Or in
    stages: pictures and arrays become tensors (anything else is a ``BadRow``), unless ``decode`` takes the bytes;
    ``augment`` is called with the data, ``augment_both`` with data and label, and returns both. Labels that are files
    become tensors.

    ``keys=True`` and ``metadata=["patient_id", ...]`` add who a sample is: a dict, the last part of every sample, which
    collation makes a dict of lists of texts and tensors of numbers. A text that is missing is empty, a number NaN.
    ``retry``: how reads from a store behind a network are tried again.

    Connects when the first sample is read, in every process for itself; can be pickled and forked at any time. Close
    it, or use it in a ``with`` block, where you read samples in your own process.
    """

    def __init__(  # noqa: PLR0913  (torchvision's names and our own, all by keyword)
        self,
        url: str | Store,
        split: str | Sequence[str] | None = None,
        *,
        where: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        transforms: Callable[[Any, Any], Any] | None = None,
        decode: Callable[[bytes], Any] | None = None,
        augment: Callable[[Any], Any] | None = None,
        augment_both: Callable[[Any, Any], Any] | None = None,
        keys: bool = False,
        metadata: Sequence[str] = (),
        retry: Retry | None = None,
    ) -> None:
        known = {"transform": transform, "target_transform": target_transform, "transforms": transforms}
        own = {"augment": augment, "augment_both": augment_both}
        _check_ways(known, own)
        self.store: Store = open_store(url) if isinstance(url, str) else url
        """Where the samples are."""
        self.retry = retry or Retry()
        """How reads are tried again."""
        self.transform, self.target_transform, self.transforms = transform, target_transform, transforms
        """As torchvision's datasets have them; assigned later, they mean what they would have meant here."""
        self._reader: LocalStore = _readable(self.store, self.retry)
        self._decode, self._augment, self._augment_both = decode, augment, augment_both
        self._split = split if isinstance(split, str) else None
        self._columns_in_order: dict[str, npt.NDArray[Any]] | None = None
        self._told: str | None = None
        if isinstance(self.store, PreparedStore):
            self.store.prepare()
        self.keys: Sequence[str] = self._chosen(split, where)
        """The key of each sample."""
        if split is not None and self._reader is self.store:
            self.check()
        self._about: About | None = None
        self._added = (keys, tuple(metadata))
        if keys or metadata:
            columns = {name: self._column(name) for name in metadata}
            self._about = About(Keys(self.keys) if keys else None, columns, self.store.name)

    def __len__(self) -> int:
        return len(self.keys)

    @composed
    def __getitem__(self, index: int) -> Any:
        with self.naming(index):
            return self.augment(self.decode(self.fetch(index)))

    @composed
    def made_of(self, index: int, row: Row) -> Any:
        """The sample ``self[index]``, made of its row: for a loader that has read it."""
        with self.naming(index):
            return self.augment(self.decode(self.encoded_of(index, row)))

    @contextmanager
    def naming(self, index: int) -> Iterator[None]:
        """Errors within say which sample they are about: for a loader that runs the stages one by one, too."""
        try:
            yield
        except BadRow as error:
            if error.key is not None:
                raise
            key, store = self.keys[index], self.store.name
            raise BadRow(f"{store}, key {key!r}: {error}", server=store, key=key) from error.__cause__
        except Exception as error:
            if -len(self.keys) <= index < len(self.keys):
                error.add_note(f"in sample {index} with the key {self.keys[index]!r} of {self.store.name}")
            raise

    def __repr__(self) -> str:
        of = "" if self._split is None else f", {self._split!r}"
        return f"StoreDataset({self.store.name!r}{of}): {len(self)} samples"

    def fetch(self, index: int) -> Any:
        """The stored bytes, the label that was stored with them, and who the sample is where that was asked for."""
        return self.encoded_of(index, self._reader.get(self.keys[index]))

    def encoded_of(self, index: int, row: Row) -> Any:
        """The result of ``fetch``, made of the sample's row: for a loader that has read it and has a cache."""
        payload = bytes(row.payload)
        parts = (payload,) if row.label is None else (payload, row.label)
        if self._about is not None:
            return (*parts, self._about.of(index))
        return parts if len(parts) > 1 else payload

    def decode(self, encoded: Any) -> Any:
        """The data and label decoded from the result of ``fetch``."""
        payload, *rest = encoded if isinstance(encoded, tuple) else (encoded,)
        data = apply(cut(self.transform).kept, self._decoder()(payload), self.transform)
        if rest and isinstance(rest[0], (bytes, memoryview)):
            rest[0] = self._mask(decoding.decode_label(rest[0]))
        return (data, *rest) if rest else data

    def augment(self, decoded: Any) -> Any:
        """The result of ``decode`` with all later changes, random or not; the same object if there is nothing to
        do.
        """
        both = self._augment_both if self.transforms is None else self.transforms
        parts = cut(self.transform)
        if both is None and self._augment is None and self.target_transform is None and not parts.rest:
            return decoded
        data, *rest = decoded if isinstance(decoded, tuple) else (decoded,)
        labelled = len(rest) > (self._about is not None)
        if both is not None:
            if not labelled:
                raise TypeError("augment_both and transforms take data and label, and this store has no labels")
            data, rest[0] = both(data, rest[0])
        else:
            before = len(parts.kept)
            data = apply(parts.rest, data, self.transform, before) if self._augment is None else self._augment(data)
            change = self.target_transform
            if labelled and change is not None:
                rest[0] = apply((change,), rest[0], change)
        return (data, *rest) if rest else data

    def _decoder(self) -> Callable[[bytes], Any]:
        """The function that makes data of a payload, chosen between the two ways by the attributes as they are now."""
        known = {"transform": self.transform, "target_transform": self.target_transform, "transforms": self.transforms}
        as_known = any(each is not None for each in known.values())
        if as_known:
            _check_ways(known, {"augment": self._augment, "augment_both": self._augment_both})
        if self._decode is not None:
            return self._decode
        return decoding.decode_picture if as_known else decoding.decode

    def _mask(self, label: Any) -> Any:
        """The label, marked as a mask if torchvision's transforms are given both: they have to be told."""
        return decoding.as_mask(label) if self.transforms is not None else label

    def on_device(self) -> Pixels:
        """The part of the work that a device may do, see ``OnDevice``: the default decoder's pictures, and their
        transforms.
        """
        decoder = self._decoder()
        if decoder not in {decoding.decode, decoding.decode_picture}:
            raise NotOnDevice("on_device=: StoreDataset(decode=...): pictures are decoded by the default decoder there")
        if self._augment_both is not None or self.transforms is not None:
            raise NotOnDevice(
                "on_device=: StoreDataset(augment_both=... or transforms=...): give transform= or augment=, or derive "
                "from StoreDataset and say in on_device() what it does: headrace.Pixels(transform, mask=1)"
            )
        pillow = decoder is decoding.decode_picture
        given = self.transform if self._augment is None else self._augment
        return Pixels(given, pillow=pillow, label=self._label, applied=len(cut(self.transform).kept))

    def _label(self, label: Any) -> Any:
        """A label, or who the sample is, as it stands in the sample."""
        if isinstance(label, dict):
            return label
        label = decoding.decode_label(label) if isinstance(label, (bytes, memoryview)) else label
        return label if self.target_transform is None else self.target_transform(label)

    def cache_fingerprint(self) -> dict[str, Any]:
        """The values by which a cache identifies each stage's results."""
        parts = cut(self.transform)
        return {
            "fetch": (_StoredRows(self), self._added, self._about, self._beside()),
            "decode": (self._decoder(), parts.kept, self.transforms is not None),
            "augment": (self._augment, self._augment_both, self.transforms, self.target_transform, parts.rest),
        }

    def _beside(self) -> dict[str, Any]:
        """The attributes that a class derived from this one adds."""
        return {name: value for name, value in vars(self).items() if name not in _OWN}

    def revision(self) -> Provenance | None:
        """The state that the store is in, if it says so."""
        return _provenance(self.store) if isinstance(self.store, Identified) else None

    def note_revision(self, revision: str) -> None:
        """Note the revision by which the rows were told apart."""
        self._told = revision if self._reader is not self.store else None

    def store_standing(self, *, afresh: bool) -> Provenance | None:
        """The state of a store that is read right here, in whatever process this is, and stays open.

        None where each row says that itself, or it would take a round trip. ``afresh``: whatever it has looked at.
        """
        store: Any = self.store
        if self._reader is not store or isinstance(store, Stamped) or not isinstance(store, Identified):
            return None
        return store.standing() if isinstance(store, LookedAt) and not afresh else store.provenance()

    def told_revision(self) -> str | None:
        """The revision by which rows behind a network were told apart last; None for others."""
        return self._told

    def is_told(self, revision: str) -> bool:
        """True if the store behind a network is of this revision, or cannot say in one round trip."""
        return not isinstance(self._reader, Blocking) or self._reader.revision() in {None, revision}

    def stamp(self, index: int) -> tuple[int, ...] | None:
        """The stamp that tells one state of a row from another, if the store gives each row one; see ``Stamped``."""
        return self.store.stamp(self.keys[index]) if isinstance(self.store, Stamped) else None

    @property
    def labels(self) -> npt.NDArray[np.int64] | None:
        """The integer label of each sample, in the order of ``keys``; None where the store has no such labels.

        From the store's metadata, read once; payloads are not read.
        """
        found = self._ordered().get("label")
        return None if found is None else found.astype(np.int64)

    @property
    def metadata(self) -> dict[str, npt.NDArray[Any]]:
        """The columns that the store has for its samples: an array for each column, in the order of ``keys``; read
        once.

        Integers, numbers (NaN where missing), texts or objects (None where missing). Payloads are not read.
        """
        return {name: values for name, values in self._ordered().items() if name not in RESERVED}

    @property
    def classes(self) -> list[str]:
        """The names of the classes, a class's label being its place; numbers where the store has no names at all.

        A class of which no row is stored is named too, where the store knows its name; else it is a number in
        parentheses, which is no name.
        """
        columns = self._columns()
        if "label" not in columns:
            return []
        labels = columns["label"].tolist()
        named = columns["class"].tolist() if "class" in columns else []
        names = {label: str(name) for label, name in zip(labels, named, strict=False) if name is not None}
        if isinstance(self.store, NamingStore):
            with closing(self.store) as store:
                names = {number: name for name, number in store.class_numbers().items()} | names
        every = range(max([*labels, *names], default=-1) + 1)
        return [names.get(label, f"({label})" if names else str(label)) for label in every]

    def check(self) -> None:
        """Raises ``SplitError`` where keys of the split are not in the store. Reads the store's keys, no payloads."""
        there = set(self._listed())
        missing = [key for key in self.keys if key not in there]
        if missing:
            shown = ", ".join(map(repr, missing[:3])) + (", ..." if len(missing) > 3 else "")
            of = f"{len(missing)} of {len(self.keys)} keys"
            told = f"{self._split or 'split'}: {of} are not in {self.store.name}: {shown}"
            if self._split is not None:
                kept = f"headrace split {self.store.name} --keep {self._split.rpartition(':')[0]} -o NEW"
                told += f"; `{kept}` leaves the others where they are, and places new ones"
            raise SplitError(told)

    def close(self) -> None:
        """Lets go of this process's connections. May be called twice; the next sample connects again."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listed(self) -> list[str]:
        """Read and let go of the store: a process that only starts workers holds nothing open."""
        with closing(self.store) as store:
            return store.keys()

    def _matching(self, where: str) -> list[str]:
        with closing(self.store) as store:
            return matching(store, where)

    def _column(self, name: str) -> npt.NDArray[Any]:
        found = self.metadata
        if name not in found:
            there = ", ".join(found) or "no columns"
            raise StoreError(f"metadata={name!r}: {self.store.name} has {there}", server=self.store.name)
        return found[name]

    def _ordered(self) -> dict[str, npt.NDArray[Any]]:
        """All columns, in the order of ``keys``."""
        if self._columns_in_order is None:
            found = in_order(self._columns(), self.keys)
            if found is None:
                self.check()  # raises, and names them
                raise StoreError(f"{self.store.name} has no metadata of some of its keys", server=self.store.name)
            self._columns_in_order = found
        return self._columns_in_order

    def _columns(self) -> Columns:
        with closing(self.store) as store:
            return store.columns()

    def _chosen(self, split: str | Sequence[str] | None, where: str | None) -> Keys:
        if where is not None:
            there = self._matching(where)
            inside = set(there)
            kept = there if split is None else [key for key in self._chosen(split, None) if key in inside]
            if not kept:
                raise SplitError(f"where={where!r}: no sample is left of {self._split or self.store.name}")
            return Keys(kept)
        if split is None:
            return Keys(self._listed())
        if not isinstance(split, str):
            return Keys(split)
        splits, name = chosen(split)
        return Keys(splits.keys(name))


_OWN = frozenset(
    {
        *("store", "retry", "transform", "target_transform", "transforms", "keys", "_reader", "_decode", "_augment"),
        *("_augment_both", "_split", "_columns_in_order", "_about", "_added", "_told", *STAGES),
    }
)
"""Attributes that are told by what they are for."""


def _check_ways(known: dict[str, Any], own: dict[str, Any]) -> None:
    """Refuses what cannot be meant together."""
    named = [name for name, value in {**known, **own}.items() if value is not None]
    if len(named) > 1 and named != ["transform", "target_transform"]:
        given = ", ".join(f"{name}=..." for name in named)
        raise TypeError(f"StoreDataset({given}): one of them is enough, or transform= and target_transform=")


class _StoredRows:
    """Rows of a store, told apart by what the store says of itself when an epoch begins: not by its URL."""

    asked_seldom = True
    """Stores may lie behind a network."""

    def __init__(self, dataset: StoreDataset) -> None:
        self._dataset = dataset

    def cache_fingerprint(self) -> tuple[str, str, list[str]]:
        store = self._dataset.store
        if not isinstance(store, Identified):
            raise CacheError(
                f"{store.name} does not say which store it is and in which state, so a cache could give rows of "
                "another: give it a method `provenance()` that returns a headrace.store.Provenance, or derive from "
                "StoreDataset and tell the rows apart in `cache_fingerprint()`"
            )
        found = _provenance(store)
        self._dataset.note_revision(found.revision)
        return found.identity, found.revision, list(self._dataset.keys)


def _provenance(store: Identified) -> Provenance:
    """Read and let go of the store: a process that only starts workers holds nothing open."""
    try:
        return store.provenance()
    finally:
        store.close()  # type: ignore[attr-defined]  # it is a store


def _readable(store: Store, retry: Retry) -> LocalStore:
    return store if isinstance(store, LocalStore) else Blocking(Retrying(store, retry))
