"""``on_device=`` with the plain torch twin on the CPU: the same batches, once each, whatever breaks on the way."""

import multiprocessing
import signal
import threading
import time

import numpy as np
import pytest
import torch
from torch.utils.data import Subset
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.transforms import v2

import headrace
from headrace.cache.backends import shm
from headrace.caching import dividing, stagetimes
from headrace.plan.splitting import DeviceStages
from headrace.store import Record
from headrace.testing.scripted import ScriptedStore
from headrace.trace.reader import read
from tests.engine.pictures import DEVIATIONS, MEANS, encoded, picture
from tests.loader.steps import at_check
from tests.names import new_name
from tests.test_dataset import filled

HERE = {"device": "cpu", "on_device": True}
TRAIN = [v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEANS, DEVIATIONS)]


@pytest.fixture
def folder(tmp_path):
    """Twenty pictures, most of them JPEG."""
    for number in range(20):
        path = tmp_path / f"class{number % 3}" / f"{number:02}"
        path.parent.mkdir(exist_ok=True)
        image = picture(40 + number, 70 - number, number)
        if number % 5 == 4:
            path.with_suffix(".png").write_bytes(encoded(image, "PNG"))
        else:
            path.with_suffix(".jpg").write_bytes(encoded(image, progressive=number % 5 == 3))
    return datasets.ImageFolder(tmp_path, v1.Compose(TRAIN))


class Files(torch.utils.data.Dataset):
    """Encoded pictures with their numbers."""

    def __init__(self, files, transform=None, **pixels):
        self.files, self.transform, self.pixels = files, transform or v1.Compose(TRAIN), pixels

    def __len__(self):
        return len(self.files)

    def fetch(self, index):
        return self.files[index], index

    def decode(self, encoded):
        from headrace.staging.opening import picture as opened

        return opened(encoded[0]), encoded[1]

    def augment(self, decoded):
        return self.transform(decoded[0]), decoded[1]

    def __getitem__(self, index):
        return self.augment(self.decode(self.fetch(index)))

    def on_device(self):
        return headrace.Pixels(self.transform, **self.pixels)


def files(count):
    return [encoded(picture(40 + number, 60 - number, number)) for number in range(count)]


def epochs(dataset, count=1, size=4, **options):
    torch.manual_seed(11)
    with headrace.DataLoader(dataset, size, **options) as loader:
        found = [[part.clone() for part in batch] for _ in range(count) for batch in loader]
        return found, loader.stats()


def alike(ours, theirs, levels=2.5):
    assert len(ours) == len(theirs)
    scale = 255 * torch.tensor(DEVIATIONS)[:, None, None]
    for (images, labels), (others, their_labels) in zip(ours, theirs, strict=True):
        assert torch.equal(labels, their_labels)
        assert images.dtype is others.dtype
        assert ((images - others) * scale).abs().max() <= levels


@pytest.mark.parametrize("workers", [0, 2])
def test_a_folders_batches_are_the_same(folder, workers):
    wanted, _ = epochs(folder, 2, shuffle=True, num_workers=workers)
    found, stats = epochs(folder, 2, shuffle=True, num_workers=workers, **HERE)
    alike(found, wanted)
    assert stats.device.pictures == 40
    assert stats.device.by_workers == 16
    assert stats.device.peak_bytes > 0
    assert stats.samples == 40


def test_parts_of_folders_and_target_transforms(folder):
    folder.target_transform = lambda target: 10 * target
    part = Subset(folder, [3, 17, 5, 2, 9, 11])
    alike(epochs(part, num_workers=0, **HERE)[0], epochs(part, num_workers=0)[0])


@pytest.mark.parametrize("kind", [bytearray, np.ndarray, torch.Tensor])
def test_encoded_bytes_as_arrays_and_tensors(kind):
    class Arrays(Files):
        def fetch(self, index):
            found = bytearray(self.files[index])
            if kind is not bytearray:
                found = (
                    np.frombuffer(found, np.uint8) if kind is np.ndarray else torch.frombuffer(found, dtype=torch.uint8)
                )
            return found, index

        def decode(self, encoded):
            return super().decode((bytes(memoryview(np.asarray(encoded[0]))), encoded[1]))

        def on_device(self):
            return super().on_device()

    odd = files(8)
    odd[3] = encoded(picture(43, 57, 3), "PNG")  # which workers decode
    alike(epochs(Arrays(odd), num_workers=0, **HERE)[0], epochs(Arrays(odd), num_workers=0)[0])


def test_batches_of_those_that_come_first(folder):
    found, _ = epochs(Files(files(30)), 2, shuffle=True, num_workers=2, in_order=False, **HERE)
    seen = [label for _, labels in found for label in labels.tolist()]
    assert sorted(seen) == sorted(2 * list(range(30)))
    same, _ = epochs(Files(files(30)), num_workers=0)
    singles = {label.item(): image for images, labels in same for image, label in zip(images, labels, strict=True)}
    torch.manual_seed(11)
    again, _ = epochs(Files(files(30)), num_workers=0, **HERE)
    for images, labels in again:
        for image, label in zip(images, labels, strict=True):
            assert (image - singles[label.item()]).abs().max() < 0.05


def test_a_store(tmp_path):
    url = filled(tmp_path / "pictures.db", 12, payload=lambda number: encoded(picture(40 + number, 60, number)))
    floats = v2.ToDtype(torch.float32, scale=True)
    transform = v2.Compose([v2.RandomResizedCrop(24), floats, v2.Normalize(MEANS, DEVIATIONS)])
    with headrace.StoreDataset(url, augment=transform) as dataset:
        alike(epochs(dataset, num_workers=2, **HERE)[0], epochs(dataset, num_workers=2)[0])
    known = {"transform": v1.Compose([v1.Resize(30), *TRAIN[1:]]), "target_transform": lambda label: 5 * label}
    known["transform"].transforms.insert(1, v1.CenterCrop(24))
    with headrace.StoreDataset(url, **known) as dataset:
        alike(epochs(dataset, num_workers=2, **HERE)[0], epochs(dataset, num_workers=2)[0])
    with (
        headrace.StoreDataset(url, transform=v1.Compose(TRAIN), keys=True) as dataset,
        headrace.DataLoader(dataset, 4, num_workers=0, **HERE) as loader,
    ):
        _, labels, about = next(iter(loader))
        assert labels.tolist() == [0, 1, 2, 3]
        assert about["key"] == dataset.keys[:4]
    refused = pytest.raises(headrace.NotOnDevice, match="decoded by the default decoder")
    with headrace.StoreDataset(url, decode=len) as dataset, refused:
        headrace.DataLoader(dataset, **HERE)


@pytest.mark.parametrize("kept", [False, True])
def test_a_store_behind_a_network(cache, kept):
    records = [Record(f"k{number:03}", payload, number, {}) for number, payload in enumerate(files(16))]
    options = {"num_workers": 2, "shuffle": True}
    if kept:
        options["cache"] = headrace.Cache(cache, size="16MiB")
    with headrace.StoreDataset(ScriptedStore(records), transform=v1.Compose(TRAIN)) as dataset:
        wanted, _ = epochs(dataset, 2, num_workers=0, shuffle=True)
        found, stats = epochs(dataset, 2, **options, **HERE)
    alike(found, wanted)
    assert stats.network.rows == (16 if kept else 32)
    assert stats.cache.encoded == (16 if kept else 0)


def test_types_and_formats(folder):
    half = headrace.OnDevice(dtype=torch.bfloat16, memory_format=torch.channels_last)
    found, _ = epochs(folder, num_workers=0, device="cpu", on_device=half)
    wanted, _ = epochs(folder, num_workers=0)
    for (images, _), (others, _) in zip(found, wanted, strict=True):
        assert images.dtype is torch.bfloat16
        assert (images.float() - others).abs().max() < 0.05
    with headrace.DataLoader(folder, 4, num_workers=0, device="cpu", on_device=half) as loader:
        assert next(iter(loader))[0].is_contiguous(memory_format=torch.channels_last)


def test_masks_and_boxes_move_with_the_picture():
    from torchvision import tv_tensors

    transform = v2.Compose([v2.RandomResizedCrop(20), v2.RandomHorizontalFlip(), v2.ToImage()])

    class Scenes(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def fetch(self, index):
            mask = np.arange(40 * 50, dtype=np.int32).reshape(40, 50)
            boxes = np.array([[5.0, 6, 30, 31, index], [10, 2, 45, 39, 7]], np.float32)
            return {"picture": encoded(picture(40, 50, index)), "mask": mask, "boxes": boxes, "label": index}

        def decode(self, encoded):
            raise AssertionError("the device does")

        def augment(self, decoded):
            raise AssertionError("the device does")

        def on_device(self):
            return headrace.Pixels(transform, picture="picture", mask="mask", boxes="boxes")

    with headrace.DataLoader(Scenes(), 4, num_workers=0, **HERE) as loader:
        batches = list(loader)
        seeds = loader._latest.base_seed
    from headrace.engine.worker.randomness import seeding

    for batch in batches:
        assert set(batch) == {"picture", "mask", "boxes", "label"}
        for place, index in enumerate(batch["label"].tolist()):
            scene = Scenes().fetch(index)
            seeding.seed_sample(seeds, 0, index)
            boxes = tv_tensors.BoundingBoxes(scene["boxes"][:, :4], format="XYXY", canvas_size=(40, 50))
            image = tv_tensors.Image(torch.zeros(3, 40, 50, dtype=torch.uint8))
            _, mask, moved = transform(image, tv_tensors.Mask(torch.from_numpy(scene["mask"])), boxes)
            assert torch.equal(batch["mask"][place], mask)
            assert torch.allclose(batch["boxes"][place][:, :4], moved.as_subclass(torch.Tensor), atol=1e-3)
            assert batch["boxes"][place][:, 4].tolist() == [index, 7]


def broken(count=12):
    found = files(count)
    found[2] = found[2][: len(found[2]) // 2]  # the worker's to find
    found[7] = found[7].replace(b"\xff\xdb", b"\xff\xfe")  # the decoder's: it has no quantization tables
    at = found[9].index(b"\xff\xc0") + 5
    found[9] = found[9][:at] + b"\xea\x60\xea\x60" + found[9][at + 4 :]  # 60,000 × 60,000
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_broken_pictures_fail_by_name_and_alone(workers):
    skip = headrace.Skip(max_fraction=0.5)
    found, stats = epochs(Files(broken()), num_workers=workers, on_error=skip, **HERE)
    seen = sorted(label for _, labels in found for label in labels.tolist())
    assert seen == [0, 1, 3, 4, 5, 6, 8, 10, 11]
    assert sorted(each.index for each in stats.skipped) == [2, 7, 9]
    assert stats.samples == 9
    wanted, _ = epochs(Files(files(12)), num_workers=workers)
    good = {label.item(): image for images, labels in wanted for image, label in zip(images, labels, strict=True)}
    for images, labels in found:
        for image, label in zip(images, labels, strict=True):
            assert (image - good[label.item()]).abs().max() < 0.05
    refused = next(each.error for each in stats.skipped if each.index == 9)
    assert "60000 × 60000" in str(refused)


def test_a_broken_picture_raises_where_it_stands_and_the_rest_comes():
    damaged = files(12)
    damaged[5] = broken()[7]
    with headrace.DataLoader(Files(damaged), 4, num_workers=2, **HERE) as loader:
        batches = iter(loader)
        assert next(batches)[1].tolist() == [0, 1, 2, 3]
        with pytest.raises(OSError) as raised:
            next(batches)
        assert "headrace: sample 5" in raised.value.__notes__
        assert next(batches)[1].tolist() == [8, 9, 10, 11]
        with pytest.raises(StopIteration):
            next(batches)


def test_a_batch_of_which_nothing_is_left():
    damaged = files(12)
    damaged[4:8] = 4 * [broken()[7]]
    found, stats = epochs(Files(damaged), num_workers=2, on_error=headrace.Skip(max_fraction=0.5), **HERE)
    assert [labels.tolist() for _, labels in found] == [[0, 1, 2, 3], [8, 9, 10, 11]]
    assert stats.failed == 4


def test_memory_is_bounded_by_parts():
    small = headrace.OnDevice(memory=5000)
    found, stats = epochs(Files(files(12)), num_workers=0, device="cpu", on_device=small)
    wanted, whole = epochs(Files(files(12)), num_workers=0, **HERE)
    for (images, _), (others, _) in zip(found, wanted, strict=True):
        assert torch.equal(images, others)
    assert stats.device.peak_bytes < 3 * 52 * 48 + 5000 < whole.device.peak_bytes


def test_state_and_resume():
    dataset = Files(files(20))
    with headrace.DataLoader(dataset, 4, shuffle=True, num_workers=2, **HERE) as loader:
        batches = iter(loader)
        first = [next(batches)[1].tolist() for _ in range(2)]
        state = loader.state_dict()
    with headrace.DataLoader(dataset, 4, shuffle=True, num_workers=0, **HERE) as loader:
        loader.load_state_dict(state)
        rest = [labels.tolist() for _, labels in loader]
    assert sorted(label for labels in first + rest for label in labels) == list(range(20))


class Interrupt(BaseException):
    """What a handler raises."""


def interrupt(*_):
    raise Interrupt


@pytest.fixture
def handled():
    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("handled")
@pytest.mark.parametrize("workers", [0, 2])
def test_an_interrupt_anywhere_in_next_loses_nothing(workers):
    dataset = Files(files(9), v1.Compose([v1.CenterCrop(8), v1.ToTensor()]))
    step, done = 1, False
    while not done:
        seen, interrupted = [], False
        with headrace.DataLoader(dataset, 3, num_workers=workers, **HERE) as loader:
            batches = iter(loader)
            seen += next(batches)[1].tolist()  # with it, the last process is started
            while True:
                try:
                    if interrupted or len(seen) == 9:  # then it ends the workers
                        seen += next(batches)[1].tolist()
                        continue
                    with at_check(step, lambda: signal.raise_signal(signal.SIGUSR1)):
                        batch = next(batches)
                    seen += batch[1].tolist()
                except Interrupt:
                    interrupted = True
                except StopIteration:
                    break
        assert seen == list(range(9))
        done = not interrupted
        step += 701 if workers else 307


def test_closed_by_another_thread(folder):
    loader = headrace.DataLoader(folder, 2, num_workers=2, **HERE)
    batches = iter(loader)
    next(batches)
    closing = threading.Thread(target=loader.close)
    closing.start()
    with pytest.raises(headrace.LoaderClosed):
        for _ in range(20):
            next(batches)
    closing.join()


def test_a_spawned_worker(folder):
    options = {"num_workers": 1, "multiprocessing_context": multiprocessing.get_context("spawn")}
    alike(epochs(folder, **options, **HERE)[0], epochs(folder, num_workers=0)[0])


@pytest.fixture
def cache():
    name = new_name()
    yield f"shm://{name}"
    shm.remove(name)


@pytest.mark.parametrize(("split", "form"), [((100, 0, 0), "encoded"), ((0, 100, 0), "decoded")])
def test_what_a_cache_keeps_is_brought_to_the_device(folder, cache, split, form):
    wanted, _ = epochs(folder, 2, num_workers=2)
    options = {"num_workers": 2, "cache": headrace.Cache(cache, size="16MiB", split=split)}
    found, stats = epochs(folder, 2, **options, **HERE)
    alike(found, wanted)
    assert getattr(stats.cache, form) >= 20


@pytest.fixture
def eager(monkeypatch):
    """A loader that looks at what is measured with every request; what the device takes for a sample is set."""
    monkeypatch.setattr(dividing, "machine", lambda: (0.0, 64))
    monkeypatch.setattr(dividing, "own_cores", lambda: 64.0)
    monkeypatch.setattr(dividing, "LOOK", 0.0)
    monkeypatch.setattr(stagetimes, "TELL_NS", 0)

    def takes(decode, pixels):
        stages = DeviceStages(decode, pixels)
        known = dividing.device_stages
        monkeypatch.setattr(dividing, "device_stages", lambda *given: None if known(*given) is None else stages)

    return takes


@pytest.mark.parametrize("workers", [0, 2])
def test_a_cache_is_planned_with_what_the_device_takes(cache, eager, workers):
    """Its decoder is made so slow that it pays to have everything decoded once: workers do that, and it is served."""
    eager(decode=5.0, pixels=1e-6)
    dataset, options = Files(3 * files(30)), {"num_workers": workers, "shuffle": True}
    wanted, _ = epochs(dataset, 5, num_workers=0, shuffle=True)
    torch.manual_seed(11)
    with headrace.DataLoader(dataset, 4, cache=headrace.Cache(cache, size="64MiB"), **options, **HERE) as loader:
        found, batches = [], iter(loader)
        found.append([part.clone() for part in next(batches)])
        began = loader.stats().cache.division
        found += [[part.clone() for part in batch] for batch in batches]
        for _ in range(4):
            found += [[part.clone() for part in batch] for batch in loader]
        use, device = loader.stats().cache, loader.stats().device
    alike(found, wanted)
    assert began.split == (100, 0, 0)
    assert began.why.startswith("to begin with")
    assert use.division.split == (0, 100, 0)
    assert use.division.why.endswith("against 0 with 100-0-0")
    assert use.decoded > 0
    assert device.by_workers >= use.decoded
    known = dict(use.division.measured)
    assert known["decode_seconds"] == 0
    assert known["decoded_bytes"] > known["encoded_bytes"] > 1000


def test_a_cache_is_left_encoded_where_the_device_is_fast(cache, eager):
    eager(decode=1e-9, pixels=1e-9)

    class Distant(Files):
        def fetch(self, index):
            time.sleep(0.001)
            return super().fetch(index)

    options = {"num_workers": 0, "cache": headrace.Cache(cache, size="64MiB")}
    _, stats = epochs(Distant(3 * files(30)), 3, **options, **HERE)
    assert stats.cache.division.split[0] == 100
    assert stats.cache.division.why != "fixed by the user"
    assert (stats.cache.encoded, stats.cache.decoded) == (2 * 90, 0)
    assert stats.device.by_workers == 0


def test_what_the_device_could_not_go_on_with_is_never_kept_decoded(cache, eager):
    eager(decode=5.0, pixels=1e-6)

    class Floats(Files):
        def decode(self, encoded):
            return v1.functional.to_tensor(super().decode(encoded)[0]), encoded[1]

        def on_device(self):
            return super().on_device()

    options = {"num_workers": 0, "cache": headrace.Cache(cache, size="64MiB")}
    found, stats = epochs(Floats(3 * files(30)), 3, **options, **HERE)
    assert sum(len(labels) for _, labels in found) == 3 * 90
    assert stats.cache.division.split == (100, 0, 0)
    assert stats.cache.decoded == 0


def test_a_trace_knows_the_devices_operations(folder, tmp_path):
    where = tmp_path / "device.trace"
    with headrace.DataLoader(folder, 4, num_workers=2, trace=where, **HERE) as loader:
        list(loader)
    trace = read(where)
    spans = {trace.names[name] for name in trace.spans["name"].tolist()}
    assert {"device decode", "device pixels"} <= spans


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device": None}, "needs device="),
        ({"collate_fn": list}, "leave collate_fn out"),
        ({"batch_size": None}, "batch_size=None"),
    ],
)
def test_arguments_that_do_not_go_together(folder, options, said):
    with pytest.raises(headrace.NotOnDevice, match=said):
        headrace.DataLoader(folder, **{"on_device": True, "device": "cpu"} | options)


def test_what_is_refused_is_refused_at_once(folder):
    with pytest.raises(TypeError, match="on_device= takes True"):
        headrace.DataLoader(folder, device="cpu", on_device="cuda")
    with pytest.raises(headrace.NotOnDevice, match="TensorDataset cannot be made on the device"):
        headrace.DataLoader(torch.utils.data.TensorDataset(torch.zeros(3)), **HERE)
    folder.transform = v1.Compose([v1.RandomRotation(3)])
    with pytest.raises(headrace.NotOnDevice, match="RandomRotation"):
        headrace.DataLoader(folder, **HERE)
    folder.transform, folder.loader = None, lambda path: path
    with pytest.raises(headrace.NotOnDevice, match="loader="):
        headrace.DataLoader(folder, **HERE)


def test_pictures_of_several_sizes_make_no_batch(folder):
    folder.transform = v1.Compose([v1.Resize(20), v1.ToTensor()])
    with (
        headrace.DataLoader(folder, 4, num_workers=0, **HERE) as loader,
        pytest.raises(headrace.NotOnDevice, match="one size"),
    ):
        next(iter(loader))


@pytest.mark.parametrize("options", [{"dtype": torch.int8}, {"max_pixels": 0}, {"memory": -1}, {"memory_format": 3}])
def test_options_are_checked(options):
    with pytest.raises(ValueError, match=f"OnDevice.{next(iter(options))}="):
        headrace.OnDevice(**options)
