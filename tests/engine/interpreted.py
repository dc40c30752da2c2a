"""``TRITON_INTERPRET=1 python -m tests.engine.interpreted``: the device's kernels and what calls them, on the host.

Triton's interpreter runs the kernels, and a stand-in for ``torch.cuda`` has streams and events that do nothing.
"""

import io
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image
from torchvision import transforms as v1

import headrace
from headrace.ondevice.cuda import CudaRenderer
from headrace.ondevice.host_renderer import Host
from headrace.ondevice.pixels import decoders
from headrace.ondevice.pixels.prepared import Prepared, collated, first_bundle
from tests.engine.pictures import picture

CPU = torch.device("cpu")


class Event:
    """Is reached at once."""

    def __init__(self, **_):
        self.record = self.synchronize = lambda *_: None

    def query(self):
        return True

    def elapsed_time(self, _other):
        return 1.0


class Scenes(torch.utils.data.Dataset):
    """Files, pixels and a broken file, each with a mask, boxes and a label."""

    def __init__(self, transform, kinds):
        self.transform, self.kinds = transform, kinds

    def __len__(self):
        return len(self.kinds)

    def fetch(self, index):
        out = io.BytesIO()
        picture(30 + index, 40, index).save(out, "PNG" if self.kinds[index] == "PNG" else "JPEG")
        content = out.getvalue()
        if self.kinds[index] == "broken":
            content = content.replace(b"\xff\xdb", b"\xff\xfe")
        mask = np.full((30 + index, 40), index, np.uint8)
        return content, mask, index

    def decode(self, encoded):
        return Image.open(io.BytesIO(encoded[0])).convert("RGB"), *encoded[1:]

    def augment(self, decoded):
        return decoded

    def on_device(self):
        return headrace.Pixels(self.transform, mask=1)


def stand_in():
    stream = SimpleNamespace(wait_event=lambda _: None, synchronize=lambda: None)
    pool = SimpleNamespace(snapshot=lambda: [{"total_size": 7}])
    return SimpleNamespace(
        Stream=lambda _: stream,
        MemPool=lambda: pool,
        Event=Event,
        current_stream=lambda _: stream,
        device=lambda _: nullcontext(),
        stream=lambda _: nullcontext(),
        use_mem_pool=lambda *_: nullcontext(),
    )


def in_planes(files):
    """As the device's decoder gives them."""
    return [levels.contiguous() for levels in decoders.on_host(files)]


def renderers(transforms, kinds, memory=2**31):
    """The one for CUDA makes what the host's makes, of whatever a batch holds."""
    dataset = Prepared(Scenes(v1.Compose(transforms), kinds), headrace.OnDevice(memory=memory))
    torch.manual_seed(3)
    bundle = collated([dataset[index] for index in range(len(kinds))])
    decoders.on_cuda = lambda _: in_planes
    ours, host = CudaRenderer(dataset, CPU, first_bundle(dataset)), Host(dataset)
    ours._cuda = stand_in()
    ours.prepare()  # a batch of its own
    found, wanted = ours.begin(bundle), host.begin(bundle)
    ours.run(found)
    host.run(wanted)
    bad = [at for at, kind in enumerate(kinds) if kind == "broken"]
    assert [at for at, _ in found.failed] == [at for at, _ in wanted.failed] == bad
    keep = [at for at in range(len(kinds)) if at not in bad]
    away = (found.out[keep].float() - wanted.out[keep].float()).abs()
    scale = dataset.recipe.scale[0]
    assert away.max() <= 4.1 * scale, (transforms, away.max())
    assert away.mean() <= 0.2 * scale, (transforms, away.mean())
    assert torch.equal(found.masks[keep], wanted.masks[keep])
    assert found.rest[0][2].tolist() == wanted.rest[0][2].tolist() == list(range(len(kinds)))
    for name in ("pictures", "by_workers", "one_by_one"):
        assert getattr(found.use, name) == getattr(wanted.use, name), name
    ours.finish()


def main():
    crop, flip, to_tensor = v1.RandomResizedCrop(8, scale=(0.05, 0.2)), v1.RandomHorizontalFlip(), v1.ToTensor()
    renderers([crop, flip, to_tensor], ["JPEG"] * 2)
    renderers([crop, v1.ColorJitter(0.4, 0.4, 0.4, 0.1), to_tensor], ["JPEG", "broken", "PNG"])
    renderers([v1.Pad(5, padding_mode="reflect"), v1.RandomCrop(8), v1.RandomVerticalFlip(1.0)], ["JPEG", "PNG"], 9000)
    return 0


if __name__ == "__main__":
    sys.exit(main())
