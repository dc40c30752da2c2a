"""``PYTHONPATH=src python -m tests.engine.check_cuda``: what matters on a CUDA device, with torch and nothing else.

The same claims as ``test_cuda.py`` in about two minutes, for machines without the test tools. Prints a line for each
and exits with 1 if one does not hold.
"""

import gc
import sys
import time
import traceback

import torch

import headrace

KERNEL = 100_000_000  # cycles: some fifty milliseconds


class Filled(torch.utils.data.Dataset):
    def __init__(self, size, shape, *, collects=False):
        self.size, self.shape, self.collects = size, shape, collects

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if self.collects:
            gc.collect()
        return torch.full(self.shape, float(index)), index


def epochs(loader, size, streams, *, moves):
    """Two epochs, a long kernel in front of every eighth copy, tensors let go at once; contents compared."""
    streams = [torch.cuda.default_stream(), *[torch.cuda.Stream() for _ in range(streams - 1)]]
    for _ in range(2):
        there = []
        for number, (values, indices) in enumerate(loader):
            assert not moves or (values.is_pinned() and indices.is_pinned()), "not pinned"
            with torch.cuda.stream(streams[number % len(streams)] if moves else torch.cuda.current_stream()):
                if number % 8 < len(streams):
                    torch.cuda._sleep(KERNEL)
                values = values.to("cuda", non_blocking=True)  # noqa: PLW2901
                indices = indices.to("cuda", non_blocking=True)  # noqa: PLW2901
                there.append((values.flatten(1).amin(1), values.flatten(1).amax(1), indices * 1))
            del values, indices
        torch.cuda.synchronize()
        wrong = sum(not (torch.equal(a, i.float()) and torch.equal(b, i.float())) for a, b, i in there)
        seen = sorted(index for _, _, indices in there for index in indices.tolist())
        assert wrong == 0, f"{wrong} of {len(there)} batches are not what was made"
        assert seen == list(range(size)), "samples are lost or come twice"


def contents(way, shape, size, in_order, streams):
    with headrace.DataLoader(
        Filled(size, shape), 16, num_workers=8, in_order=in_order, persistent_workers=True, **way
    ) as loader:
        epochs(loader, size, streams, moves="pin_memory" in way)


def forked_workers(_attempt):
    loader = headrace.DataLoader(Filled(320, (64,)), 16, num_workers=2, device="cuda")
    for _ in loader:
        pass
    loader.close()
    theirs = torch.utils.data.DataLoader(Filled(64, (4,), collects=True), 8, num_workers=4)
    assert sum(len(indices) for _, indices in theirs) == 64


def garbage():
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        loader = headrace.DataLoader(Filled(320, (64,)), 16, num_workers=2, device="cuda", persistent_workers=True)
        for _ in range(2):
            for _ in loader:
                pass
        loader.close()
        del loader
        gc.collect()
        found = [type(thing) for thing in gc.garbage if isinstance(thing, (torch.cuda.Event, torch.cuda.Stream))]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.collect()
    assert not found, f"the garbage collector found {found}"


def checks():
    for name, way in (("pin_memory", {"pin_memory": True}), ("device", {"device": "cuda"})):
        for shape, size in (((64,), 1600), ((3, 224, 224), 320)):
            for in_order in (True, False):
                for streams in (1, 3) if name == "pin_memory" else (1,):
                    title = f"{name}, samples of {shape}, {'in order' if in_order else 'as ready'}, {streams} stream(s)"
                    yield title, contents, (way, shape, size, in_order, streams)
    yield "no event in a cycle", garbage, ()
    for attempt in range(10):
        yield f"torch's forked workers after a device loader, {attempt + 1} of 10", forked_workers, (attempt,)


def main():
    failed = 0
    for title, check, arguments in checks():
        began = time.monotonic()
        try:
            check(*arguments)
            outcome = "holds"
        except Exception:  # noqa: BLE001  (every claim is tried)
            traceback.print_exc()
            outcome, failed = "DOES NOT HOLD", failed + 1
        print(f"{outcome:>14}  {time.monotonic() - began:5.1f} s  {title}", flush=True)  # noqa: T201
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
