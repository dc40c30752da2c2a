"""Batches are the user's: never overwritten, given back when dropped, and never more than asked for."""

import gc
import multiprocessing
import os
import platform
import resource
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

import headrace
from tests.loader.data import Numbers, Pairs, listed, wrapped
from tests.loader.support import MODES
from tests.parity.datasets import Blocking, Squares
from tests.parity.support import wait_until

each_order = pytest.mark.parametrize("in_order", [True, False], ids=["in order", "as ready"])
ROW = 1000


def wide(index):
    return torch.full((ROW,), float(index))


def check(indices, values):
    for index, value in zip(indices.tolist(), values, strict=True):
        assert value.shape == (ROW,)
        assert bool((value == index).all())


LIMITS = {"no limit": None, "a few batches": 5 * 4 * ROW * 4, "nothing": 1}


PARTS = {
    "row": lambda values: values[2],
    "slice": lambda values: values[1:3, 5:],
    "numpy": lambda values: values.numpy(),
    "part of numpy": lambda values: values.numpy()[1:],
    "view": lambda values: values.view(-1),
    "transposed": lambda values: values.t(),
    "other dtype": lambda values: values.view(torch.int32),
    "iterator": iter,
    "dlpack": np.from_dlpack,
    "memoryview": lambda values: memoryview(values.numpy()),
}


class Previous:
    """Returns the batch before this one beside it; the first is its own."""

    def __init__(self):
        self.kept = None

    def __call__(self, batch):
        made = wrapped(batch)[1]
        before, self.kept = made if self.kept is None else self.kept, made
        return made[:, 0].clone(), before[:, 0].clone()


class TestKeeping:
    @each_order
    @pytest.mark.sampled(2)
    @pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
    @pytest.mark.parametrize("collate", [None, listed, wrapped])
    def test_kept_batches_are_never_overwritten(self, collate, limit, in_order):
        loader = headrace.DataLoader(
            Pairs(120, wide),
            4,
            num_workers=2,
            in_order=in_order,
            collate_fn=collate,
            loading=headrace.Loading(memory_limit=limit),
        )
        kept = list(loader)
        assert sorted(index for indices, _ in kept for index in indices.tolist()) == list(range(120))
        for indices, values in kept:
            check(indices, values)
        stats = loader.stats()
        assert (stats.copied_out > 0) == (limit is not None)
        if limit is not None:
            # Past the limit there is one slot more than two lanes can hold, which is one to fill and one to collate;
            # each has rows and their collated copy.
            assert stats.slab_bytes <= limit + 5 * (2 * 4 * ROW * 4 + 1024)

    def test_kept_batches_of_a_stream(self):
        loader = headrace.DataLoader(
            Numbers(200), 4, num_workers=2, loading=headrace.Loading(memory_limit=1), in_order=True
        )
        kept = list(loader)
        assert sorted(value for batch in kept for value in batch.tolist()) == list(range(200))
        assert loader.stats().copied_out > 0

    @each_order
    def test_kept_over_epochs(self, in_order):
        with headrace.DataLoader(
            Pairs(40, wide), 4, num_workers=2, in_order=in_order, persistent_workers=True
        ) as loader:
            kept = [batch for _ in range(4) for batch in loader]
        for indices, values in kept:
            check(indices, values)

    @pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
    def test_any_part_of_a_batch_keeps_it(self, part):
        loader = headrace.DataLoader(Pairs(160, wide), 4, num_workers=2, in_order=True)
        kept = []
        for indices, values in loader:
            kept.append((indices.clone(), part(values), part(values.clone())))
        for _, found, expected in kept:
            if hasattr(found, "__next__"):
                assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
            else:
                assert np.asarray(found).tobytes() == np.asarray(expected).tobytes()

    def test_writing_to_a_batch_changes_no_other(self):
        loader = headrace.DataLoader(Pairs(120, wide), 4, num_workers=2, in_order=True)
        kept = []
        for indices, values in loader:
            values.add_(1000)
            kept.append((indices, values))
        for indices, values in kept:
            check(indices, values - 1000)

    def test_collate_may_keep_what_it_made(self):
        """A collate_fn that mixes each batch with the one before it."""
        loader = headrace.DataLoader(Pairs(40, wide), 4, num_workers=1, prefetch_factor=1, collate_fn=Previous())
        for now, before in loader:
            assert before.tolist() == [max(value - 4, value % 4) for value in now.tolist()]
            del now, before

    @pytest.mark.parametrize("kept", [0, 1, 3])
    def test_slots_go_round(self, kept):
        """The memory touched does not grow with the number of batches."""
        loader = headrace.DataLoader(Pairs(800, wide), 4, num_workers=2, in_order=True, prefetch_factor=2)
        held, sizes = [], []
        for number, batch in enumerate(loader):
            held = [*held, batch][-kept:] if kept else []
            if number in (50, 190):
                sizes.append(loader.stats().slab_bytes)
            del batch
        slot = -(-4 * ROW * 4 // 64) * 64 + 64
        assert sizes[0] == sizes[1] <= (4 + kept + 3) * slot
        assert loader.stats().copied_out == 0

    def test_the_next_epoch_uses_the_same_memory(self):
        loader = headrace.DataLoader(Pairs(200, wide), 4, num_workers=2, in_order=True, prefetch_factor=2)
        sizes = []
        for _ in range(4):
            for _ in loader:
                pass
            sizes.append(loader.stats().slab_bytes)
        assert sizes[-1] == sizes[1]


class TestAfterTheLoader:
    @each_order
    @pytest.mark.parametrize(
        ("end", "persistent"),
        [("close", True), ("del", True), ("del", False), ("leave", False), ("leave", True), ("context", True)],
    )
    def test_batches_stay_valid(self, end, persistent, in_order, workers):
        loader = headrace.DataLoader(
            Pairs(40, wide), 4, num_workers=2, in_order=in_order, persistent_workers=persistent
        )
        if end == "context":
            with loader:
                kept = list(loader)
        elif end == "leave":
            kept = []
            for batch in loader:
                kept.append(batch)
                if len(kept) == 4:
                    break
        else:
            kept = list(loader)
            if end == "close":
                loader.close()
        del loader
        gc.collect()
        assert wait_until(lambda: not workers())
        noise = [torch.full((4, ROW), -1.0) for _ in range(8)]
        for indices, values in kept:
            check(indices, values)
        assert len(noise) == 8

    def test_closing_is_idempotent_and_not_the_end(self, workers):
        loader = headrace.DataLoader(Squares(8), 2, num_workers=2, persistent_workers=True)
        loader.close()
        for _ in range(2):
            assert [batch.tolist() for batch in loader] == [[0, 1], [4, 9], [16, 25], [36, 49]]
            assert len(workers()) == 2
            loader.close()
            loader.close()
            assert not workers()

    def test_the_end_of_the_block_ends_persistent_workers(self, workers):
        with headrace.DataLoader(Squares(8), num_workers=2, persistent_workers=True) as loader:
            list(loader)
            assert len(workers()) == 2
        assert not workers()

    def test_closing_in_the_middle_ends_the_workers(self, workers):
        loader = headrace.DataLoader(Squares(80), num_workers=2)
        iterator = iter(loader)
        next(iterator)
        loader.close()
        assert not workers()

    def test_closing_ends_every_iteration(self, workers):
        loader = headrace.DataLoader(Squares(80), num_workers=1)
        first, second = iter(loader), iter(loader)
        next(first)
        next(second)
        loader.close()
        left = workers()
        del first, second
        assert not left

    @pytest.mark.parametrize("how", ["close", "del"])
    def test_nobody_waits_for_a_sample_that_does_not_end(self, how, tmp_path, workers):
        release = multiprocessing.get_context("fork").Event()
        loader = headrace.DataLoader(Blocking(str(tmp_path), release), num_workers=2)
        iterator = iter(loader)
        assert wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        if how == "close":
            loader.close()
        else:
            del iterator
        assert not release.is_set()
        assert wait_until(lambda: not workers())


def mapped_or_open(pid):
    """What of /dev/shm a process has mapped or opened."""
    found = {line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/dev/shm" in line}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith("/dev/shm"):
            found.add(target)
    return found


class Passing:
    """Samples made of sixteen blocks that are let go together; a sample is the page faults that took."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        blocks = [bytes([index]) * 600_000 for _ in range(16)]
        del blocks
        return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


class TestSystem:
    @pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have rules of their own")
    def test_what_samples_leave_is_kept_for_the_next(self):
        """None of its pages is faulted in again."""
        loader = headrace.DataLoader(Passing(), 1, num_workers=1, in_order=True)
        faults = [int(batch) for batch in loader]
        pages = 16 * 600_000 // resource.getpagesize()
        assert max(faults[2:]) < pages / 4

    @each_order
    @pytest.mark.parametrize("collate", [None, listed, wrapped])
    def test_no_shared_memory_files(self, collate, in_order, workers):
        before = mapped_or_open(os.getpid())
        loader = headrace.DataLoader(Pairs(60, wide), 4, num_workers=2, in_order=in_order, collate_fn=collate)
        kept = []
        for number, batch in enumerate(loader):
            kept.append(batch)
            if number in (2, 8):
                for pid in (os.getpid(), *(worker.pid for worker in workers())):
                    assert mapped_or_open(pid) <= before

    @pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
    def test_descriptors_do_not_depend_on_the_number_of_batches(self, mode, workers):
        gc.collect()  # what earlier tests left open shall not close now
        loader = mode.loader(300)
        counts, kept = [], []
        for number, batch in enumerate(loader):
            kept.append(batch)
            if number in (4, 55):
                counts.append(max(process.num_fds() for process in (psutil.Process(), *workers())))
        assert counts[1] - counts[0] < 5  # a worker may still be starting at the first count

    def test_a_batch_larger_than_ever_before(self):
        """Slots grow with what is in them."""
        sizes = [1, 1000, 10, 300_000, 5]
        loader = headrace.DataLoader(sizes, batch_size=None, collate_fn=torch.ones, num_workers=1)
        assert [len(batch) for batch in loader] == sizes
        assert all(bool((batch == 1).all()) for batch in loader)
