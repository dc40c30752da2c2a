"""Pictures in a storage of a known rate that all jobs share, as a dataset in stages; and caches of files before it.

The files are in the machine's page cache throughout. What a storage would take is waited for: reads queue for one line
of so many bytes a second. In front of it may be memory for files, which spares the waiting and nothing else, so that it
costs those who use it less than a real one would.
"""

from __future__ import annotations

import io
import mmap
import multiprocessing
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import Dataset

Keeping = Literal["nothing", "newest", "first"]
"""What memory for files keeps: as a page cache does, what was read last (first in, first out); as MINIO does, what was
read first, for ever."""
READS, BYTES, FREE, ROOM = range(4)


class Storage:
    """A line that files come over, with memory in front of it; forked processes share it."""

    def __init__(self, files: int, rate: float = float("inf"), *, keeping: Keeping = "nothing", size: int = 0) -> None:
        """``rate``: bytes a second, of all processes together. ``size``: of the memory, in bytes."""
        self.rate, self.keeping, self.size = rate, keeping, size
        self._lock = multiprocessing.get_context("fork").Lock()
        self._words = np.frombuffer(mmap.mmap(-1, 8 * (ROOM + files)), np.float64)
        """Counts; when the line is free; for each file how many bytes had come when it came, 0 for never."""

    def read(self, number: int, path: Path) -> bytes:
        """A file's bytes, after the time that takes."""
        found = path.read_bytes()
        with self._lock:
            words, place = self._words, ROOM + number
            if words[place] and (self.keeping == "first" or words[BYTES] - words[place] < self.size):
                return found
            words[READS] += 1
            words[BYTES] += len(found)
            if self.keeping == "newest" or (self.keeping == "first" and words[BYTES] <= self.size):
                words[place] = words[BYTES]
            now = time.monotonic()
            until = words[FREE] = max(now, words[FREE]) + len(found) / self.rate
        time.sleep(max(until - now, 0.0))
        return found

    @property
    def reads(self) -> int:
        """Files that came over the line so far."""
        return int(self._words[READS])


class Pictures(Dataset[Any]):
    """JPEG files: fetched, decoded and resized, cropped and flipped at random; as bytes, with the index."""

    def __init__(self, folder: Path, count: int, storage: Storage, *, resize: int = 256, crop: int = 224) -> None:
        """The first ``count`` files of ``folder`` that `pictures.write` made."""
        self.paths = sorted(folder.glob("*/*.jpg"), key=lambda path: path.name)[:count]
        self.storage, self.resize, self.crop = storage, resize, crop

    def __len__(self) -> int:
        return len(self.paths)

    def cache_fingerprint(self) -> Any:
        """What samples are made of, beside the code."""
        return {"fetch": [str(path) for path in self.paths], "decode": self.resize, "augment": self.crop}

    def fetch(self, index: int) -> tuple[bytes, int]:
        """The file."""
        return self.storage.read(index, self.paths[index]), index

    def decode(self, encoded: tuple[bytes, int]) -> tuple[torch.Tensor, int]:
        """Rows of pixels, the shorter side resized."""
        from PIL import Image

        content, index = encoded
        with Image.open(io.BytesIO(content)) as opened:
            picture = opened.convert("RGB")
        scale = self.resize / min(picture.size)
        picture = picture.resize(
            (max(round(picture.width * scale), self.resize), max(round(picture.height * scale), self.resize)),
            Image.Resampling.BILINEAR,
        )
        return torch.from_numpy(np.array(picture)), index

    def augment(self, decoded: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, int]:
        """Channels first."""
        pixels, index = decoded
        top, left = (int(torch.randint(size - self.crop + 1, ())) for size in pixels.shape[:2])
        part = pixels[top : top + self.crop, left : left + self.crop].permute(2, 0, 1)
        return (part.flip(2) if torch.rand(()) < 0.5 else part.contiguous()), index

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.augment(self.decode(self.fetch(index)))
