"""A traced loader: every sample, operation, batch and wait, in every way of running, and nothing else changes."""

import os
import signal
import time

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from torchvision.transforms import v2

import headrace
from headrace.observing import tracing_observer
from headrace.observing.run_queue import queued_ns
from headrace.trace.analysis.without_a_core import without_a_core
from headrace.trace.reader import read

COUNT, BATCH = 96, 8


class Images(Dataset):
    def __init__(self):
        self.transform = v2.Compose([v2.ToDtype(torch.float32), v2.Normalize([1.0] * 3, [2.0] * 3)])

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return self.transform(torch.full((3, 4, 4), index % 200, dtype=torch.uint8)), index


class Bulk(Images):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Fewer(Images):
    """Leaves out what it cannot make."""

    def __getitems__(self, indices):
        return [self[index] for index in indices if index % 4]


class Numbers(IterableDataset):
    def __init__(self):
        self.transform = v2.Compose([v2.Identity(), torch.abs])

    def __iter__(self):
        info = get_worker_info()
        lane, lanes = (0, 1) if info is None else (info.id, info.num_workers)
        for value in range(lane, COUNT, lanes):
            yield self.transform(torch.tensor(float(value)))


class Breaks(Images):
    def __getitem__(self, index):
        if index == 5:
            raise ValueError("bad sample")
        return super().__getitem__(index)


class KillsOnce(Images):
    """Sample 40 takes its worker down the first time it is made."""

    def __init__(self, flag):
        super().__init__()
        self.flag = flag

    def __getitem__(self, index):
        if index == 40 and not self.flag.exists():
            self.flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def listed(samples):
    return torch.stack([image for image, _ in samples]), [index for _, index in samples]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.trace"


def batches(table):
    return sorted(zip(table["run"].tolist(), table["batch"].tolist(), strict=True))


def consistent(trace, *, epochs=1, per_sample=2):
    """Every sample of every epoch once, in one batch that was delivered once, each with its operations."""
    samples = trace.samples[~trace.samples["failed"] & (trace.samples["run"] >= 0)]  # -1: of an epoch not begun
    for run in range(len(trace.runs)):
        assert sorted(samples["index"][samples["run"] == run].tolist()) == list(range(COUNT))
    assert len(trace.runs) == epochs
    assert (samples["batch"] >= 0).all()
    assert batches(trace.batches) == sorted(set(batches(samples)))
    counts = np.unique(samples[["run", "batch"]], return_counts=True)[1]
    assert sorted(counts.tolist()) == sorted(trace.batches["samples"].tolist())
    assert len(trace.operations) == per_sample * len(trace.samples)
    inside = trace.samples[trace.operations["sample"]]
    assert (trace.operations["start"] >= inside["start"]).all()
    ends = trace.operations["start"] + trace.operations["elapsed"]
    assert (ends <= inside["start"] + inside["elapsed"]).all()


WAYS = {
    "in order": {"num_workers": 2, "in_order": True},
    "as ready": {"num_workers": 2, "in_order": False, "shuffle": True},
    "collated": {"num_workers": 2, "collate_fn": listed},
    "as ready, collated": {"num_workers": 2, "collate_fn": listed, "in_order": False, "shuffle": True},
    "persistent": {"num_workers": 2, "persistent_workers": True},
    "here": {"num_workers": 0},
    "spawned": {"num_workers": 1, "multiprocessing_context": "spawn"},
}


class TestLoader:
    @pytest.mark.parametrize("way", WAYS)
    def test_everything_is_there(self, path, way):
        with headrace.DataLoader(Images(), BATCH, trace=path, **WAYS[way]) as loader:
            for _ in range(2):
                assert sum(len(indices) for _, indices in loader) == COUNT
        trace = read(path)
        consistent(trace, epochs=2)
        assert set(trace.names) >= {"ToDtype", "Normalize"}
        assert [run.epoch for run in trace.runs] == [0, 1]
        assert (trace.samples["bytes_out"] == 3 * 4 * 4 * 4).all()
        assert (trace.samples["cpu"] >= 0).all()
        if WAYS[way]["num_workers"]:
            roles = {trace.streams[stream].role for stream in set(trace.samples["stream"].tolist())}
            assert roles == {"worker"}

    def test_a_batch_is_delivered_after_it_was_made(self, path):
        with headrace.DataLoader(Images(), BATCH, trace=path, num_workers=2) as loader:
            list(loader)
        trace = read(path)
        written = trace.rows["start"] + trace.rows["elapsed"]
        for delivered in trace.batches:
            ready = written[trace.rows["batch"] == delivered["batch"]].max()
            assert ready <= delivered["start"] + delivered["elapsed"]

    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize("batch_size", [BATCH, None])
    def test_iterable_datasets(self, path, workers, batch_size):
        with headrace.DataLoader(Numbers(), batch_size, trace=path, num_workers=workers) as loader:
            assert sum(1 if batch_size is None else len(batch) for batch in loader) == COUNT
        trace = read(path)
        assert len(trace.samples) == COUNT
        assert batches(trace.batches) == sorted(set(batches(trace.samples)))
        assert len(trace.operations) == 2 * COUNT

    @pytest.mark.parametrize("workers", [0, 1])
    def test_a_dataset_that_gives_fewer_samples_than_asked_for(self, path, workers):
        with headrace.DataLoader(Fewer(), BATCH, trace=path, num_workers=workers) as loader:
            assert sum(len(indices) for _, indices in loader) == COUNT - COUNT // 4
        assert sorted(read(path).samples["index"].tolist()) == list(range(COUNT))

    @pytest.mark.parametrize("workers", [0, 2])
    def test_samples_made_in_bulk(self, path, workers):
        with headrace.DataLoader(Bulk(), BATCH, trace=path, num_workers=workers) as loader:
            list(loader)
        trace = read(path)
        assert sorted(trace.samples["index"].tolist()) == list(range(COUNT))
        assert batches(trace.batches) == sorted(set(batches(trace.samples)))
        assert len(trace.operations) == 2 * COUNT

    @pytest.mark.parametrize("workers", [0, 2])
    def test_failures_are_marked(self, path, workers):
        options = {"num_workers": workers, "on_error": headrace.Skip(max_fraction=0.1)}
        with headrace.DataLoader(Breaks(), BATCH, trace=path, **options) as loader:
            list(loader)
        samples = read(path).samples
        assert samples["index"][samples["failed"]].tolist() == [5]
        assert sorted(samples["index"][~samples["failed"]].tolist()) == [i for i in range(COUNT) if i != 5]

    def test_a_killed_worker_s_samples_are_made_again_and_marked(self, path, tmp_path):
        dataset = KillsOnce(tmp_path / "killed")
        with headrace.DataLoader(dataset, BATCH, trace=path, num_workers=2) as loader:
            list(loader)
        trace = read(path)
        again = trace.samples[trace.samples["index"] == 40]
        assert again["repeated"].tolist() == [True]
        assert {mark.name for mark in trace.records("marks")} >= {"death", "repeat"}
        assert set(trace.samples["index"][trace.samples["batch"] >= 0].tolist()) == set(range(COUNT))

    def test_several_loaders_share_a_file_and_are_told_apart(self, path):
        train = headrace.DataLoader(Images(), BATCH, trace=path, num_workers=1)
        test = headrace.DataLoader(Images(), BATCH, trace=path, num_workers=0)
        for ours, theirs in zip(train, test, strict=True):
            assert len(ours[1]) == len(theirs[1])
        consistent(read(path), epochs=2)
        assert len({run.loader for run in read(path).runs}) == 2

    def test_without_a_trace_the_dataset_of_this_process_is_not_touched(self):
        dataset = Images()
        before = [type(transform) for transform in dataset.transform.transforms]
        loader = headrace.DataLoader(dataset, BATCH, num_workers=0)
        next(iter(loader))
        assert [type(transform) for transform in dataset.transform.transforms] == before

    def test_a_traced_dataset_of_this_process_is_as_before_afterwards(self, path):
        dataset = Images()
        list(headrace.DataLoader(dataset, BATCH, num_workers=0, trace=path))
        assert type(dataset.transform.transforms[0]) is v2.ToDtype

    def test_bad_paths_are_named_when_the_loader_is_made(self, tmp_path):
        with pytest.raises(headrace.TraceError, match="does not exist"):
            headrace.DataLoader(Images(), trace=tmp_path / "no" / "t")
        with pytest.raises(headrace.TraceError, match="directory"):
            headrace.DataLoader(Images(), trace=tmp_path)
        with pytest.raises(TypeError, match="trace= takes a path"):
            headrace.DataLoader(Images(), trace=3)


class Slow(Images):
    def __getitem__(self, index):
        time.sleep(0.03)
        return super().__getitem__(index)


class TestCoresOfOthers:
    def test_workers_say_how_long_they_had_no_core(self, path, monkeypatch):
        monkeypatch.setattr(tracing_observer, "queued_ns", lambda: time.monotonic_ns() // 2)  # half of all time
        list(headrace.DataLoader(Slow(), batch_size=8, num_workers=1, trace=path, sampler=range(16)))
        assert 0.5 <= without_a_core(read(path)) <= 1

    def test_the_trainer_s_own_process_does_not(self, path):
        list(headrace.DataLoader(Slow(), batch_size=8, num_workers=0, trace=path, sampler=range(8)))
        assert without_a_core(read(path)) is None

    def test_the_system_counts_it(self):
        first = queued_ns()
        assert first is None or 0 <= first <= queued_ns()


class TestTracing:
    def test_loaders_within_are_recorded_and_spans_of_one_s_own(self, path):
        loader = headrace.DataLoader(Images(), BATCH, num_workers=1)
        list(loader)
        with headrace.tracing(path) as session:
            for _ in loader:
                with session.span("step"):
                    pass
        list(loader)
        trace = read(path)
        consistent(trace)
        assert [span.name for span in trace.records("spans")] == ["step"] * (COUNT // BATCH)

    def test_the_environment_can_ask_for_it(self, path, monkeypatch):
        monkeypatch.setenv("HEADRACE_TRACE", str(path))
        list(headrace.DataLoader(Images(), BATCH, num_workers=0))
        consistent(read(path))


class TestTorch:
    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize("batch_size", [BATCH, None])
    @pytest.mark.parametrize("kind", [Images, Bulk, Numbers])
    def test_torch_s_loader_is_recorded_and_gives_the_same(self, path, workers, batch_size, kind):
        loader = TorchDataLoader(kind(), batch_size, num_workers=workers)
        recorded = headrace.traced(loader, path)
        for _ in range(2):
            for ours, theirs in zip(list(recorded), list(loader), strict=True):
                torch.testing.assert_close(ours, theirs)
        trace = read(path)
        assert all(run.facts["torch"] for run in trace.runs)
        assert len(trace.samples) == 2 * COUNT
        assert batches(trace.batches) == sorted(set(batches(trace.samples)))
        assert len(trace.operations) == 4 * COUNT
        assert type(loader.dataset) is kind

    def test_persistent_workers_and_shuffling(self, path):
        loader = TorchDataLoader(Images(), BATCH, num_workers=2, shuffle=True, persistent_workers=True)
        recorded = headrace.traced(loader, path)
        for _ in range(2):
            assert sorted(index for _, indices in recorded for index in indices.tolist()) == list(range(COUNT))
        consistent(read(path), epochs=2)
        del recorded

    def test_without_a_path_it_is_just_the_loader(self):
        loader = TorchDataLoader(Images(), BATCH)
        assert len(list(headrace.traced(loader))) == len(loader) == len(headrace.traced(loader))
        assert headrace.traced(loader).batch_size == BATCH

    def test_other_things_are_refused(self):
        with pytest.raises(TypeError, match="takes a torch"):
            headrace.traced([1, 2])
        with pytest.raises(TypeError, match="trace="):
            headrace.traced(headrace.DataLoader(Images()))
