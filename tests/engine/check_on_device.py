"""``PYTHONPATH=src python -m tests.engine.check_on_device [quick]``: the device's stages on a CUDA device.

With torch, torchvision and Pillow and nothing else. Prints a line for each claim and exits with 1 if one does not hold.
``quick``: those that a change to the kernels or to what calls them could break, in half a minute.
"""

import gc
import os
import random
import struct
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch
from torchvision import datasets
from torchvision import transforms as v1

import headrace
from headrace.ondevice.pixels import reference
from headrace.ondevice.pixels import view as V
from headrace.ondevice.pixels.recipe import recipe
from tests.engine.pictures import DEVIATIONS, LISTS, MEANS, compose, encoded, levels, picture

KERNEL = 100_000_000  # cycles: some fifty milliseconds
TRAIN = [v1.RandomResizedCrop(96), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEANS, DEVIATIONS)]


def kernels_and_twin(name):
    from headrace.ondevice.pixels import launches

    made = recipe(compose(name), pillow=True)
    pictures, rows = [], []
    for seed in range(40):
        size = random.Random(seed)
        height, width = size.randint(36, 300), size.randint(36, 300)
        torch.manual_seed(seed)
        numbers = made.numbers(height, width)
        if not rows or numbers[V.OUT_H : V.OUT_W + 1] == rows[0][V.OUT_H : V.OUT_W + 1]:
            pictures.append(levels(picture(height, width, seed)))
            rows.append(numbers)
    rows = torch.tensor(rows)
    shape = len(pictures), made.channels, int(rows[0, V.OUT_H]), int(rows[0, V.OUT_W])
    for form, dtype in ((torch.contiguous_format, made.dtype), (torch.channels_last, torch.bfloat16)):
        if dtype is torch.bfloat16 and not made.dtype.is_floating_point:
            continue
        wanted = torch.empty(shape, dtype=torch.float32 if made.dtype.is_floating_point else made.dtype)
        reference.render(pictures, rows, made, wanted)
        out = torch.empty(shape, dtype=dtype, device="cuda", memory_format=form)
        there = [each.cuda() for each in pictures]
        kept = launches.render(launches.table(there, rows.numpy(), shape[3], out.device), made, out)
        torch.cuda.synchronize()
        del kept
        away = (out.cpu().float() - wanted.float()) / torch.tensor(made.scale)[:, None, None]
        # A level at ties; colours and the final type make more of it.
        size = wanted.abs().max().item() / made.scale[0] * {torch.bfloat16: 2**-8, torch.float16: 2**-10}.get(dtype, 0)
        bound = (0.1 if not made.rounds else 4.1 if made.operations else 2.1) + size
        assert away.abs().max() <= bound, (name, dtype, away.abs().max().item(), bound)
        assert away.abs().mean() <= 0.05 + size, (name, dtype, away.abs().mean().item())


def nearest_and_twin():
    from headrace.ondevice.pixels import launches

    made = recipe(v1.Compose([v1.Pad(3, fill=7), v1.RandomResizedCrop(40), v1.RandomHorizontalFlip()]), pillow=True)
    for dtype in (torch.uint8, torch.int16, torch.int32):
        masks, rows = [], []
        for seed in range(20):
            size = 30 + 3 * seed, 90 - 2 * seed
            masks.append(torch.randint(0, 120, size, generator=torch.Generator().manual_seed(seed)).to(dtype))
            rows.append(made.numbers(*size))
        rows = torch.tensor(rows)
        wanted, out = torch.empty((20, 40, 40), dtype=dtype), torch.empty((20, 40, 40), dtype=dtype, device="cuda")
        reference.nearest(masks, rows, made.before, made.after, wanted)
        there = [mask.cuda() for mask in masks]
        table = launches.table(there, rows.numpy(), 40, out.device)
        launches.nearest(table, made.before, made.after, out)
        assert torch.equal(out.cpu(), wanted)


def folder(where, count, suffix=".jpg"):
    for number in range(count):
        path = Path(where) / f"class{number % 3}" / f"{number:05}{suffix}"
        path.parent.mkdir(exist_ok=True)
        size = random.Random(number)
        image = picture(size.randint(80, 300), size.randint(80, 300), number)
        path.write_bytes(encoded(image, "JPEG" if suffix == ".jpg" else "PNG"))
    return datasets.ImageFolder(where, v1.Compose(TRAIN))


def same_batches(workers, device="cuda", suffix=".jpg", bound=3.0):
    with tempfile.TemporaryDirectory() as where:
        dataset = folder(where, 120, suffix)
        found = []
        for way in ({}, {"device": device, "on_device": True}):
            torch.manual_seed(7)
            with headrace.DataLoader(dataset, 16, shuffle=True, num_workers=workers, **way) as loader:
                found.append([[each.cpu() for each in batch] for _ in range(2) for batch in loader])
    assert len(found[0]) == len(found[1]) == 16
    scale = torch.tensor(DEVIATIONS)[:, None, None] * 255
    for (ours, labels), (theirs, others) in zip(*found, strict=True):
        assert torch.equal(labels, others), "other labels"
        away = ((ours - theirs) * scale).abs()
        assert away.mean() < bound, f"{away.mean().item():.2f} levels apart in the mean"


def long_kernels():
    """Freed blocks that queued kernels still read must not be decoded into."""
    with tempfile.TemporaryDirectory() as where:
        dataset = folder(where, 192)
        streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
        with headrace.DataLoader(dataset, 16, num_workers=2, device="cuda", on_device=True) as loader:
            sums = []
            for number, (images, _) in enumerate(loader):
                with torch.cuda.stream(streams[number % 3]):
                    streams[number % 3].wait_stream(torch.cuda.default_stream())
                    blocks = [
                        torch.full((size,), number % 250, dtype=torch.uint8, device="cuda")
                        for size in (60_000, 120_000, 240_000, 700_000, 2_000_000)
                        for _ in range(8)
                    ]
                    torch.cuda._sleep(KERNEL)
                    sums.append((number % 250, [(block.amin(), block.amax()) for block in blocks], images))
                    del blocks  # free for others, and read later
                    images.record_stream(streams[number % 3])
            torch.cuda.synchronize()
    for value, pairs, _ in sums:
        assert all(low.item() == value == high.item() for low, high in pairs), (
            "a block was written to while it was read"
        )


def let_go_at_once():
    """Batches that are dropped while kernels that read them are queued."""
    with tempfile.TemporaryDirectory() as where:
        dataset = folder(where, 240)
        with headrace.DataLoader(dataset, 16, num_workers=2, device="cuda", on_device=True) as loader:
            wanted = [images.double().sum((1, 2, 3)).cpu() for images, _ in loader]
        with headrace.DataLoader(dataset, 16, num_workers=2, device="cuda", on_device=True) as loader:
            found = []
            loader._kept.epoch = 0
            for number, (images, _) in enumerate(loader):
                if number % 4 == 0:
                    torch.cuda._sleep(KERNEL)
                found.append(images.double().sum((1, 2, 3)))
                del images
        assert len(found) == len(wanted)


class Files(torch.utils.data.Dataset):
    def __init__(self, files, transform):
        self.files, self.transform = files, transform

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
        return headrace.Pixels(self.transform)


def odd(number):
    """One of twelve kinds: good ones, and those that are broken, strange, or lie about themselves."""
    draw = random.Random(number)
    image = picture(draw.randint(20, 120), draw.randint(20, 120), number)
    exif = image.getexif()
    exif[0x0112] = 6
    whole = encoded(image, quality=85)
    at = whole.index(b"\xff\xc0") + 5
    damaged = bytearray(whole)
    for _ in range(6):
        damaged[draw.randrange(len(whole) // 2, len(whole) - 2)] = draw.randrange(256)
    return [
        whole,
        whole[: draw.randint(1, len(whole) - 1)],
        bytes(damaged),
        whole[:at] + struct.pack(">HH", 60000, 60000) + whole[at + 4 :],
        encoded(image.convert("CMYK")),
        encoded(image.convert("L")),
        encoded(image.convert("P"), "PNG"),
        encoded(image, progressive=True),
        encoded(image, exif=exif),
        b"",
        draw.randbytes(500),
        encoded(image, subsampling=0),
    ][number % 12]


def odd_pictures(count, device="cuda"):
    """No crash, nobody's neighbour is wrong, and what fails is what fails on the CPU."""
    files = [odd(number) for number in range(count)]
    transform = v1.Compose([v1.RandomResizedCrop(32), v1.ToTensor()])
    dataset, skip = Files(files, transform), headrace.Skip(max_fraction=1.0)
    torch.manual_seed(5)
    with headrace.DataLoader(dataset, 32, num_workers=2, on_error=skip) as loader:
        wanted = dict(each for images, indices in loader for each in zip(indices.tolist(), images.clone(), strict=True))
    torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(5)
    with headrace.DataLoader(dataset, 32, num_workers=2, on_error=skip, device=device, on_device=True) as loader:
        found = dict(each for images, indices in loader for each in zip(indices.tolist(), images.cpu(), strict=True))
        stats = loader.stats()
    assert all(number % 12 in {1, 2, 3, 9, 10} or number in found for number in range(count)), "a good one is missing"
    assert not any(number % 12 in {3, 9, 10} for number in found), "one that is none was let through"
    assert stats.failed + len(found) == count, (stats.failed, len(found))
    away = {number: (image - wanted[number]).abs().mean().item() for number, image in found.items() if number in wanted}
    # Chroma of half the size is interpolated by libjpeg-turbo and repeated by the device's decoder: with pictures as
    # small as these that came to 0.022 at most where the CPU was made to repeat it, and to nothing in the others.
    bounds = {0: 0.03, 2: 1.0, 8: 0.03}
    far = [f"{number}: {mean:.3f}" for number, mean in away.items() if mean > bounds.get(number % 12, 0.01)]
    assert not far, f"{len(far)} are not what they are on the CPU: {far[:8]}"
    return f"{stats.failed} failed, {stats.device}, {torch.cuda.max_memory_allocated() >> 20} MiB"


def two_loaders():
    with tempfile.TemporaryDirectory() as where:
        dataset = folder(where, 120)
        options = {"num_workers": 2, "device": "cuda", "on_device": headrace.OnDevice(dtype=torch.bfloat16)}
        with headrace.DataLoader(dataset, 8, **options) as one, headrace.DataLoader(dataset, 8, **options) as two:
            other = torch.cuda.Stream()
            for (a, labels), (b, others) in zip(one, two, strict=True):
                with torch.cuda.stream(other):
                    other.wait_stream(torch.cuda.default_stream())
                    b.sum()
                assert torch.equal(labels, others)
                assert a.shape == b.shape == (8, 3, 96, 96)
                assert a.dtype is torch.bfloat16


def one_ends_while_another_decodes():
    """torch ends a process that gives a pool back while a thread allocates from another one."""
    with tempfile.TemporaryDirectory() as where:
        dataset = folder(where, 120)
        options = {"num_workers": 2, "device": "cuda", "on_device": True}
        with headrace.DataLoader(dataset, 40, **options) as long:
            batches = iter(long)
            for _ in range(3):
                next(batches)  # the others are being decoded
                with headrace.DataLoader(dataset, 8, **options) as short:
                    assert len(next(iter(short))[0]) == 8
                torch.cuda.empty_cache()


def in_parts():
    """A bound so small that a batch is done in parts."""
    with tempfile.TemporaryDirectory() as where:
        dataset = folder(where, 48)
        found = []
        for memory in (2**31, 300_000):
            torch.manual_seed(3)
            way = {"device": "cuda", "on_device": headrace.OnDevice(memory=memory, memory_format=torch.channels_last)}
            with headrace.DataLoader(dataset, 16, num_workers=2, **way) as loader:
                found.append(torch.cat([images.cpu() for images, _ in loader]))
        assert torch.equal(*found)


def forked_workers(_attempt):
    with tempfile.TemporaryDirectory() as where:
        loader = headrace.DataLoader(folder(where, 64), 16, num_workers=2, device="cuda", on_device=True)
        for _ in loader:
            pass
        loader.close()
        kept = next(iter(loader))
        theirs = torch.utils.data.DataLoader(Collecting(), 8, num_workers=4)
        assert sum(len(indices) for indices in theirs) == 64
        del kept
        loader.close()


class Collecting(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        gc.collect()
        return index


def left_early():
    with tempfile.TemporaryDirectory() as where:
        dataset = folder(where, 240)
        loader = headrace.DataLoader(dataset, 8, num_workers=2, device="cuda", on_device=True)
        batches = iter(loader)
        first = [labels for _, labels in (next(batches), next(batches))]
        state = loader.state_dict()
        loader.close()
        del batches
        other = headrace.DataLoader(dataset, 8, num_workers=2, device="cuda", on_device=True)
        other.load_state_dict(state)
        rest = [labels for _, labels in other]
        other.close()
        assert len(torch.cat(first + rest)) == 240


def accuracy(seed, way):
    """Of a small network after some epochs of blobs of three colours on coloured ground."""
    torch.manual_seed(seed)
    draw = random.Random(100)
    files = []
    for number in range(600):
        image = picture(draw.randint(60, 90), draw.randint(60, 90), number)
        for _ in range(6):
            x, y, size = draw.randint(0, 50), draw.randint(0, 50), draw.randint(8, 14)
            tone = [60, 60, 60]
            tone[number % 3] += 45
            image.paste(tuple(tone), (x, y, x + size, y + size))
        files.append(encoded(image, quality=92))
    crop = v1.RandomResizedCrop(32, scale=(0.5, 1.0))
    transform = v1.Compose([crop, v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEANS, DEVIATIONS)])
    train, test = Files(files[:450], transform), Files(files[450:], v1.Compose([v1.Resize((32, 32)), *TRAIN[2:]]))
    model = torch.nn.Sequential(
        *(torch.nn.Conv2d(3, 16, 5, 2), torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 3, 2), torch.nn.ReLU()),
        *(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(128, 3)),
    ).cuda()
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    options = {"num_workers": 4, "persistent_workers": True, "device": "cuda"} | way
    with headrace.DataLoader(train, 32, shuffle=True, **options) as loader:
        for _ in range(20):
            for images, numbers in loader:
                loss = torch.nn.functional.cross_entropy(model(images), numbers % 3)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
    with headrace.DataLoader(test, 50, **options) as loader, torch.no_grad():
        right = sum((model(images).argmax(1) == numbers % 3).sum().item() for images, numbers in loader)
    return right / 150


def same_accuracy():
    found = [[accuracy(seed, way) for seed in range(5)] for way in ({}, {"on_device": True})]
    means = [sum(each) / 5 for each in found]
    assert means[0] > 0.6, f"it learns nothing: {found}"
    assert abs(means[0] - means[1]) < 0.05, found
    return f"on the CPU {found[0]}, on the device {found[1]}"


QUICK = ("crop and flip", "colours of Pillow", "reflected", "new, cubic")


def checks(*, quick):
    for name in QUICK if quick else LISTS:
        yield f"kernels and twin: {name}", kernels_and_twin, (name,)
    yield "masks and twin", nearest_and_twin, ()
    for workers in (2,) if quick else (0, 2):
        yield f"the same batches as on the CPU, {workers} workers", same_batches, (workers,)
    yield "the same batches as on the CPU, PNG", same_batches, (2, "cuda", ".png", 0.2)
    yield "done in parts", in_parts, ()
    yield "long kernels on freed blocks", long_kernels, ()
    yield "batches let go at once", let_go_at_once, ()
    yield "two loaders, two streams", two_loaders, ()
    yield "one ends while another decodes", one_ends_while_another_decodes, ()
    yield "left early, resumed", left_early, ()
    for attempt in range(1 if quick else 3):
        yield f"forked workers afterwards, {attempt + 1}", forked_workers, (attempt,)
    if not quick:
        yield "accuracy of five seeds", same_accuracy, ()
    yield "odd pictures", odd_pictures, (int(os.environ.get("ODD", "600" if quick else "10000")),)


def main():
    failed = 0
    for title, check, arguments in checks(quick="quick" in sys.argv):
        began = time.monotonic()
        said = None
        try:
            said = check(*arguments)
            outcome = "holds"
        except Exception:  # noqa: BLE001  (every claim is tried)
            traceback.print_exc()
            outcome, failed = "DOES NOT HOLD", failed + 1
        print(f"{outcome:>14}  {time.monotonic() - began:5.1f} s  {title}  {said or ''}", flush=True)  # noqa: T201
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
