"""A staged dataset whose samples stay encoded: workers bring bytes and draw numbers, the device makes the pixels."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pickle import PickleBuffer
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Subset

from headrace.core.errors import NotOnDevice
from headrace.engine.worker import collation
from headrace.ondevice.pixels import view as V
from headrace.ondevice.pixels.bundle import HOLE, Bundle, Picture, Storing, bundled
from headrace.ondevice.pixels.choices import OnDevice, Pixels
from headrace.ondevice.pixels.header import header
from headrace.ondevice.pixels.recipe import OTHERWISE, Recipe, recipe
from headrace.staging.composition import bypassed, composed, has_stages, refusal, speaks_of_pixels
from headrace.staging.folders import is_folder, opens
from headrace.staging.lists import HOLDERS
from headrace.staging.opening import dimensions, plain_jpeg
from headrace.staging.prefix import cut
from headrace.staging.stages import Noted, Scopes, Stages, StandingDataset, staged
from headrace.store.pictures import decoded

HOW = (
    "give it `fetch(index)`, `decode(encoded)` and `augment(decoded)`, and a method `on_device()` that returns "
    "`headrace.Pixels(transform=...)`: which transforms `augment` applies to the picture"
)


def prepared(dataset: Any, options: OnDevice, *, decodes: bool = False) -> Any:
    """``dataset``, or the one that it is a ``Subset`` of, prepared. Raises ``NotOnDevice``, which says what to do.

    ``decodes``: workers decode what a cache does not have, so that it is kept decoded.
    """
    if type(dataset) is Subset:
        return Subset(prepared(dataset.dataset, options, decodes=decodes), dataset.indices)
    return Prepared(dataset, options, decodes)


def of(dataset: Any) -> "Prepared":
    """The one within ``prepared``'s subsets."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    assert isinstance(dataset, Prepared)
    return dataset


def described(dataset: Any) -> Pixels:
    """The dataset's description of its pictures."""
    told = getattr(dataset, "on_device", None)
    if has_stages(dataset) and (method := bypassed(dataset)) is not None:
        raise NotOnDevice(f"on_device=: {refusal(dataset, method, 'the device')}; {OTHERWISE}")
    if callable(told):
        if (method := speaks_of_pixels(dataset)) is not None:
            raise NotOnDevice(
                f"on_device=: {type(dataset).__name__} has a `{method}` that its older `on_device()` does not know "
                f"of: write one beside it that says what the device is to do, {OTHERWISE}"
            )
        found = told()
        if not isinstance(found, Pixels):
            raise NotOnDevice(f"{type(dataset).__name__}.on_device() returns headrace.Pixels(...), not {found!r}")
        return found
    name = type(dataset).__name__
    if not is_folder(dataset):
        kind = "it is iterable only" if isinstance(dataset, IterableDataset) else "it does not say how"
        raise NotOnDevice(f"on_device=: {name} cannot be made on the device, for {kind}: {HOW}, {OTHERWISE}")
    if not opens(dataset):
        raise NotOnDevice(f"on_device=: {name}(loader=...): only torchvision's own loader of pictures, {OTHERWISE}")
    return Pixels(dataset.transform, label=dataset.target_transform, applied=len(cut(dataset.transform).kept))


class Prepared(StandingDataset, Dataset[Picture]):
    """The dataset prepared for a device; it is a staged dataset itself: ``fetch`` is the dataset's own, ``augment``
    draws.
    """

    def __init__(self, dataset: Any, options: OnDevice, decodes: bool = False) -> None:
        """Raises ``NotOnDevice`` for a dataset or a transform that the device cannot do."""
        self.dataset, self.options, self._decodes = dataset, options, decodes
        self.pixels = described(dataset)
        self._given = _transforms(dataset)
        self.recipe: Recipe = recipe(self.pixels.transform, pillow=self.pixels.pillow)
        self._stages = staged(dataset, ("", "", ""))
        # A store's, see ``Networked``. Not left to ``__getattr__``, which isinstance() does not ask since Python 3.12.
        if hasattr(dataset, "made_of"):
            self.store, self.keys = dataset.store, dataset.keys

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        if name == "dataset" or name.startswith("__"):  # it is asked while it is being unpickled, and has none yet
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __reduce__(self) -> Any:
        return Prepared, (self.dataset, self.options, self._decodes)

    @composed
    def __getitem__(self, index: int) -> Picture:
        with self.naming(index):
            return self.augment(self.fetch(index))._replace(index=index)

    @contextmanager
    def naming(self, index: int) -> Iterator[None]:
        """Errors within say which sample they are about."""
        try:
            yield
        except Exception as error:
            error.add_note(f"in sample {index!r}")
            raise

    @composed
    def made_of(self, index: int, row: Any) -> Picture:
        """The picture made of its row: for a loader that has read it."""
        with self.naming(index):
            return self.augment(self.dataset.encoded_of(index, row))._replace(index=index)

    def stages(self, scopes: Scopes | None, noted: Noted | None) -> Stages:
        """The stages for a cache: encoded and decoded samples are those of the dataset itself, shared with jobs on
        the CPU.

        What others have kept decoded is used. Workers decode only what is to be kept so.
        """
        whole = staged(self.dataset, scopes)
        looked = noted or (lambda _dataset, _name, run: run)
        fetch, decode, augment = whole.steps
        if not self._decodes:
            decode = decode._replace(run=self.decode, to_keep=self.decode_to_keep)
        fetch = fetch._replace(run=looked(self, "fetch", fetch.run))
        decode = decode._replace(run=looked(self, "decode", decode.run))
        augment = augment._replace(run=looked(self, "augment", self.augment), keeps=False)
        return whole._replace(steps=(fetch, decode, augment))

    def fetch(self, index: int) -> Any:
        """The result of the dataset's own ``fetch``."""
        return self._stages.steps[0].run(index)

    def decode(self, encoded: Any) -> Any:
        """Leave the encoded sample to the device, unchanged."""
        return encoded

    def decode_to_keep(self, encoded: Any) -> Any:
        """The result of the dataset's own ``decode``, for a cache. ``NotOnDevice`` for what the device could not go
        on with.
        """
        found = self._stages.steps[1].run(encoded)
        _levels(_item(found, self.pixels.picture))
        return found

    def augment(self, sample: Any) -> Picture:
        """The picture to bring of a sample, encoded or decoded: its bytes, or its pixels where the device cannot
        decode it.

        Draws every random number that the dataset's own ``augment`` would, in the same order.
        """
        if any(now is not then for now, then in zip(_transforms(self.dataset), self._given, strict=True)):
            raise NotOnDevice(
                "on_device=: a transform was assigned while an epoch was under way, which has begun with another: do "
                f"so between epochs, {OTHERWISE}"
            )
        given = _item(sample, self.pixels.picture)
        picture = _encoded(given)
        if picture is None:
            return self._of_pixels(sample, given)
        found = header(picture)
        size = found[:2] if found is not None else dimensions(picture)
        if size is not None and size[0] * size[1] > self.options.max_pixels:
            raise NotOnDevice(
                f"the header of this picture promises {size[1]} × {size[0]} pixels, more than "
                f"OnDevice(max_pixels={self.options.max_pixels}) allows"
            )
        if found is None or not found.common:
            decoded = self._stages.steps[1].run(sample)
            return self._of_pixels(decoded, _item(decoded, self.pixels.picture))
        numbers = self.recipe.numbers(found.height, found.width)
        return self._brought(sample, picture, Storing.JPEG, numbers)

    def _of_pixels(self, sample: Any, picture: Any) -> Picture:
        """A picture that is decoded already."""
        data, storing, height, width = _levels(picture)
        numbers = self.recipe.numbers(height, width, self.pixels.applied)
        return self._brought(sample, data, storing, numbers)

    def _brought(self, sample: Any, data: Any, storing: int, numbers: list[float]) -> Picture:
        """The picture, with everything else that belongs to the sample."""
        pixels, mask, boxes = self.pixels, None, None
        if pixels.mask is not None:
            mask = _mask(_item(sample, pixels.mask), numbers)
            sample = replaced(sample, pixels.mask, HOLE)
        if pixels.boxes is not None:
            boxes = _moved(_item(sample, pixels.boxes), numbers)
            sample = replaced(sample, pixels.boxes, HOLE)
        if pixels.label is not None and isinstance(sample, (tuple, list)):
            sample = replaced(sample, 1, pixels.label(sample[1]))
        rest = replaced(sample, pixels.picture, HOLE)
        return Picture(None, PickleBuffer(data), storing, V.PACKED.pack(*numbers), mask, boxes, rest)


def first_bundle(dataset: Prepared) -> Bundle | None:
    """A batch like the dataset's, to have tried everything once; None where the size of results is not known.

    Nothing of the dataset is read, and no random number of anybody's is used up.
    """
    recipe = dataset.recipe
    state = torch.get_rng_state()
    try:
        # A lying and a standing picture: only a recipe that makes one size of both says what size a batch will have.
        rows = [recipe.numbers(height, width) for height, width in ((256, 320), (320, 256))]
    except Exception:  # noqa: BLE001  (a crop larger than this: the first batch will have to do)
        return None
    finally:
        torch.set_rng_state(state)
    if rows[0][V.OUT_H : V.OUT_W + 1] != rows[1][V.OUT_H : V.OUT_W + 1]:
        return None
    files = [plain_jpeg(256, 320), plain_jpeg(320, 256)]
    return bundled(
        [
            Picture(None, file, Storing.JPEG, V.PACKED.pack(*row), None, None, HOLE)
            for file, row in zip(files, rows, strict=True)
        ],
        lambda _shape, _dtype: None,
        lambda _: False,
    )


def collated(samples: list[Picture]) -> Bundle:
    """``collate_fn``, in a worker or where there are none."""
    return bundled(samples, collation.allocated, collation.is_there)


def _transforms(dataset: Any) -> tuple[Any, ...]:
    return tuple(getattr(dataset, name, None) for name in HOLDERS)


def _item(sample: Any, key: int | str | None) -> Any:
    if key is None or (key == 0 and not isinstance(sample, (tuple, list))):
        return sample
    return sample[key]


def _encoded(picture: Any) -> bytes | bytearray | memoryview | None:
    """The bytes of a picture that is not decoded, which may be an array or a tensor of them."""
    if isinstance(picture, (bytes, bytearray, memoryview)):
        return picture
    if isinstance(picture, torch.Tensor) and picture.dtype is torch.uint8 and picture.dim() == 1:
        picture = picture.numpy()
    if isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.ndim == 1:
        plain: Any = np.ascontiguousarray(picture)
        return memoryview(plain)
    return None


def replaced(sample: Any, key: int | str | None, value: Any) -> Any:
    """A sample, or a batch, with something else at its place; ``key`` as in ``Pixels``."""
    if isinstance(sample, dict):
        return sample | {key: value}
    if key is None or not isinstance(sample, (tuple, list)):
        return value
    items = list(sample)
    items[int(key)] = value
    kind: Any = type(sample)
    return kind(*items) if hasattr(sample, "_fields") else kind(items)


def _levels(picture: Any) -> tuple[Any, int, int, int]:
    """A decoded picture's levels, how they are stored, and its size."""
    if isinstance(picture, torch.Tensor):
        if picture.dtype is torch.uint8 and picture.dim() == 3 and picture.shape[0] == 3:
            plain: Any = picture.as_subclass(torch.Tensor).contiguous().numpy()
            return plain.reshape(-1), Storing.PLANES, picture.shape[1], picture.shape[2]
        found = f"a tensor of {picture.dtype} and the shape {tuple(picture.shape)}"
    elif getattr(picture, "mode", None) == "RGB":
        pixels = np.ascontiguousarray(picture)
        return pixels.reshape(-1), Storing.PIXELS, pixels.shape[0], pixels.shape[1]
    else:
        mode = getattr(picture, "mode", None)
        found = f"{type(picture).__name__}" + (f" of the mode {mode}" if mode else "")
    raise NotOnDevice(f"on_device= needs pictures of three channels with 8 bits each, and this one is {found}")


def _mask(mask: Any, numbers: list[float]) -> Any:
    if isinstance(mask, (bytes, bytearray, memoryview)):
        npy = bytes(mask[:6]) == b"\x93NUMPY"
        mask = np.load(io.BytesIO(mask), allow_pickle=False) if npy else decoded(bytes(mask), mask=True)
    found = np.asarray(mask)
    size = int(numbers[V.HEIGHT]), int(numbers[V.WIDTH])
    if found.shape != size or found.dtype.kind not in "ui" or found.dtype.itemsize > 4:
        raise NotOnDevice(
            f"a mask of {found.dtype} and the shape {found.shape} for a picture of {size[0]} × {size[1]}: masks are "
            "whole numbers of up to 32 bits, height × width, of the picture's own size"
        )
    return found


def _moved(boxes: Any, numbers: list[float]) -> torch.Tensor:
    """The positions of boxes in the result."""
    found = torch.as_tensor(np.asarray(boxes), dtype=torch.float32).clone()
    if found.dim() != 2 or found.shape[1] < 4:
        raise NotOnDevice(f"boxes of the shape {tuple(found.shape)}: number × (x1, y1, x2, y2, ...) is needed")
    for first, start, size, to, at, out, turned in (
        (0, V.FROM_X, V.FROM_W, V.TO_W, V.AT_X, V.OUT_W, V.MIRRORED),
        (1, V.FROM_Y, V.FROM_H, V.TO_H, V.AT_Y, V.OUT_H, V.UPSIDE_DOWN),
    ):
        ends = (found[:, first : first + 3 : 2] - numbers[start]) * (numbers[to] / numbers[size]) - numbers[at]
        ends = (numbers[out] - ends).flip(1) if numbers[turned] else ends
        found[:, first : first + 3 : 2] = ends.clamp(0, numbers[out])
    return found
