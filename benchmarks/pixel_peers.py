"""Another library that decodes JPEG files on a device, as a loader: DALI.

It crops, flips and normalises as torchvision's RandomResizedCrop, RandomHorizontalFlip, ToTensor and Normalize do, with
random numbers of its own. Batches are (pictures on the device in half precision and channels last, labels).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any

Samples = list[tuple[str, int]]
"""Paths and labels."""
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def is_there(name: str) -> bool:
    """Whether a module can be imported."""
    with contextlib.suppress(ImportError):
        return importlib.util.find_spec(name) is not None
    return False


def dali(
    samples: Samples, batch: int, side: int, threads: int, means: list[float], deviations: list[float]
) -> DaliEpochs:
    """Its pipeline for ImageNet: the decoder crops, and one operation does the rest."""
    fn: Any = importlib.import_module("nvidia.dali.fn")
    types: Any = importlib.import_module("nvidia.dali.types")
    pipelines: Any = importlib.import_module("nvidia.dali.pipeline")
    plugin: Any = importlib.import_module("nvidia.dali.plugin.pytorch")

    @pipelines.pipeline_def  # type: ignore[untyped-decorator]
    def pictures() -> Any:
        paths, labels = zip(*samples, strict=True)
        encoded, label = fn.readers.file(
            files=list(paths), labels=list(labels), shuffle_after_epoch=True, prefetch_queue_depth=4, name="files"
        )
        found = fn.decoders.image_random_crop(
            encoded, device="mixed", output_type=types.RGB, random_area=SCALE, random_aspect_ratio=RATIO
        )
        found = fn.resize(found, device="gpu", resize_x=side, resize_y=side, interp_type=types.INTERP_TRIANGULAR)
        found = fn.crop_mirror_normalize(
            found,
            device="gpu",
            dtype=types.FLOAT16,
            output_layout="HWC",
            mean=[255 * mean for mean in means],
            std=[255 * deviation for deviation in deviations],
            mirror=fn.random.coin_flip(),
        )
        return found, label

    made = pictures(batch_size=batch, num_threads=threads, device_id=0, prefetch_queue_depth=2)
    made.build()
    batches = plugin.DALIGenericIterator(made, ["pictures", "labels"], reader_name="files", auto_reset=True)
    return DaliEpochs(batches)


class DaliEpochs:
    """Its iterator, as epochs of batches."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        for (found,) in self._batches:
            yield found["pictures"].permute(0, 3, 1, 2), found["labels"].view(-1).long()

    def close(self) -> None:
        del self._batches
