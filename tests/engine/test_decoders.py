"""Who decodes JPEG files: the first that can, and all of them alike. On the CPU; what needs CUDA is scripted."""

import logging
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from headrace import DeviceUnavailable
from headrace.ondevice.pixels import decoders
from headrace.ondevice.pixels.decoders import FirstThatWorks, JpegDecoder, by_torchcodec, chosen, decoded, on_host
from tests.engine.pictures import encoded, picture

HERE = torch.device("cpu")
ORIENTATION = 0x112


def tensor(content):
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def turned(orientation, **options):
    image = picture(30, 50, orientation)
    exif = image.getexif()
    exif[ORIENTATION] = orientation
    return encoded(image, exif=exif, **options)


class TestTorchcodec:
    """The same function as for CUDA, with its decoder for the CPU."""

    @pytest.fixture(autouse=True)
    def there(self):
        pytest.importorskip("torchcodec")

    @pytest.mark.parametrize("options", [{}, {"subsampling": 0}, {"subsampling": 1}, {"quality": 20}])
    def test_decodes_what_pillow_decodes(self, options):
        files = [tensor(encoded(picture(30 + seed, 61 - seed, seed), **options)) for seed in range(6)]
        grey = tensor(encoded(picture(33, 40).convert("L")))
        for ours, theirs in zip(by_torchcodec(HERE)([*files, grey]), on_host([*files, grey]), strict=True):
            assert ours.dtype is torch.uint8
            assert torch.equal(ours, theirs)

    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_rotates_nothing(self, orientation):
        content = turned(orientation)
        file = tensor(content)
        (ours,), (theirs,) = by_torchcodec(HERE)([file]), on_host([file])
        assert ours.shape == (3, 30, 50)
        assert torch.equal(ours, theirs)
        assert file.numpy().tobytes() == content, "it is not ours to change"

    def test_would_rotate_if_it_were_let(self):
        from torchcodec.decoders import decode_jpeg

        assert decode_jpeg(tensor(turned(6))).shape == (3, 50, 30)

    def test_a_broken_one_fails_alone(self):
        files = [encoded(picture(30, 40, seed)) for seed in range(3)]
        files[1] = files[1].replace(b"\xff\xdb", b"\xff\xfe")
        found, again = decoded([tensor(file) for file in files], 3 * [(30, 40)], by_torchcodec(HERE), HERE)
        assert again
        assert [isinstance(each, Exception) for each in found] == [False, True, False]
        assert np.array_equal(found[2].permute(1, 2, 0), Image.open(_opened(files[2])))


def _opened(content):
    import io

    return io.BytesIO(content)


def test_no_bytes_break_the_search_for_rotations():
    whole = turned(3)
    draw = np.random.default_rng(5)
    for size in range(len(whole) % 97, len(whole), 97):
        decoders._upright(tensor(whole[:size]) if size else torch.empty(0, dtype=torch.uint8))
    for _ in range(300):
        damaged = np.frombuffer(whole, np.uint8).copy()
        damaged[draw.integers(2, 400, 12)] = draw.integers(0, 256, 12)
        decoders._upright(torch.from_numpy(damaged))


class TestChoice:
    """By stand-ins: one refuses as a library does that was built without CUDA, one decodes."""

    def refuses(self, files):
        self.asked += 1
        raise RuntimeError("not compiled with CUDA")

    def decodes(self, files):
        if any(len(file) == 0 for file in files):
            raise ValueError("broken")
        return [file + 1 for file in files]

    @pytest.fixture
    def both(self):
        self.asked = 0
        return FirstThatWorks([JpegDecoder("new", self.refuses), JpegDecoder("old", self.decodes)])

    def test_one_that_cannot_is_left_for_good_and_why_is_kept(self, both, caplog):
        with caplog.at_level(logging.WARNING, "headrace.device"):
            assert both([torch.tensor([1])])[0].item() == 2
        assert (both.name, both.passed_over) == ("old", ["new: not compiled with CUDA"])
        assert "old decodes, for this failed: new: not compiled with CUDA" in caplog.text
        both([torch.tensor([1])])
        assert self.asked == 1

    def test_files_that_nobody_can_decode_decide_nothing(self, both):
        with pytest.raises(ValueError, match="broken"):
            both([torch.empty(0)])
        assert (both.name, both.passed_over) == ("new", [])

    def test_one_that_could_once_is_not_left_for_a_broken_file(self):
        new = FirstThatWorks([JpegDecoder("new", self.decodes), JpegDecoder("old", on_host)])
        new([torch.tensor([1])])
        with pytest.raises(ValueError, match="broken"):
            new([torch.empty(0)])
        assert new.name == "new"

    def test_want_of_memory_is_nobodys_fault(self):
        def full(files):
            raise torch.cuda.OutOfMemoryError("full")

        new = FirstThatWorks([JpegDecoder("new", full), JpegDecoder("old", self.decodes)])
        with pytest.raises(torch.cuda.OutOfMemoryError):
            new([torch.tensor([1])])
        assert new.name == "new"

    def test_what_is_not_installed_is_passed_over(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "torchcodec", None)
        found = chosen({"torchcodec": by_torchcodec, "other": lambda _: self.decodes}, HERE)
        assert found.name == "other"
        assert found.passed_over[0].startswith("torchcodec: ")
        with pytest.raises(DeviceUnavailable, match=r"headrace\[vision\]'\): torchcodec: "):
            chosen({"torchcodec": by_torchcodec}, HERE)
