"""What a cache gives is what the dataset would have given; what it cannot keep whole it leaves, and says so once."""

import collections
import io
import logging
import os

import pytest
import torch
from PIL import Image, ImageOps

import headrace
from headrace.cache.backends.shm import remove

Pair = collections.namedtuple("Pair", "data label")  # noqa: PYI024


class Staged(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.augment(self.decode(self.fetch(index)))


class Turned(Staged):
    """Pictures that lie on their side, as their EXIF says."""

    def fetch(self, index):
        written, exif = io.BytesIO(), Image.Exif()
        exif[0x0112] = 6
        Image.new("RGB", (32, 16)).save(written, "jpeg", exif=exif)
        return written.getvalue()

    def decode(self, encoded):
        return Image.open(io.BytesIO(encoded)).copy()

    def augment(self, decoded):
        return torch.tensor(ImageOps.exif_transpose(decoded).size)


class Pairs(Staged):
    def fetch(self, index):
        return index

    def decode(self, encoded):
        return Pair(encoded, -encoded)

    def augment(self, decoded):
        assert type(decoded) is Pair
        return decoded.data, decoded.label


@pytest.fixture
def cache():
    name = f"kept-{os.getpid()}"
    yield headrace.Cache(f"shm://{name}", size="4MiB", split=(0, 100, 0))
    remove(name)


def test_a_picture_found_is_turned_as_one_that_is_read(cache):
    with headrace.DataLoader(Turned(), 4, num_workers=0, cache=cache) as loader:
        for _ in range(3):
            assert [batch.tolist() for batch in loader] == [[[16, 32]] * 4]
        assert loader.stats().cache.decoded == 8


def test_what_cannot_be_kept_is_said_once(cache, caplog):
    with (
        caplog.at_level(logging.WARNING, "headrace.cache"),
        headrace.DataLoader(Pairs(), 4, num_workers=0, cache=cache) as loader,
    ):
        epochs = [[(data.tolist(), label.tolist()) for data, label in loader] for _ in range(2)]
        assert epochs == [[([0, 1, 2, 3], [0, -1, -2, -3])]] * 2
        assert loader.stats().cache.decoded == 0
    (told,) = [record.getMessage() for record in caplog.records if "not kept" in record.getMessage()]
    assert told.startswith("what decode gives is not kept: sample is a tests.loader.test_kept.Pair, which cannot be")
