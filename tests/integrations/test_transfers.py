"""What a program copies to its device itself is seen in the trace of torch's loader, and nothing else is."""

import threading

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import headrace
from headrace.integrations import transfers
from headrace.trace.calibrate import calibrate
from headrace.trace.reader import read
from headrace.trace.report import report


def test_copies_are_recorded_with_their_batches(tmp_path):
    """The device ``meta`` stands for any."""
    data, own = TensorDataset(torch.zeros(24, 2), torch.arange(24)), torch.Tensor.to
    loader = headrace.traced(DataLoader(data, 8, num_workers=1), tmp_path / "torch.trace")
    for values, labels in loader:
        assert values.to("meta").device.type == "meta"
        assert labels.to(torch.int32).dtype == torch.int32  # goes nowhere
        elsewhere = threading.Thread(target=values.to, args=("meta",))
        elsewhere.start()
        elsewhere.join()
    values.to("meta")  # after the epoch
    assert torch.Tensor.to is own
    trace = read(tmp_path / "torch.trace")
    assert trace.copies["batch"].tolist() == [0, 1, 2]
    assert trace.copies["bytes"].tolist() == [64, 64, 64]
    (found,) = report(trace, calibrate()).loaders
    assert found.figures.copies.count == 3


def test_loaders_that_are_iterated_together(tmp_path):
    data = TensorDataset(torch.arange(8))
    both = [headrace.traced(DataLoader(data, 2), tmp_path / f"{name}.trace") for name in "ab"]
    for (first,), (second,) in zip(*both, strict=True):
        (first + second).to("meta")
    assert [len(read(tmp_path / f"{name}.trace").copies) for name in "ab"] == [0, 4]
    torch.zeros(1).to("meta")
    assert len(read(tmp_path / "b.trace").copies) == 4


def test_an_iteration_that_is_left_leaves_nothing_behind(tmp_path):
    own = torch.Tensor.to
    iteration = iter(headrace.traced(DataLoader(TensorDataset(torch.arange(8)), 2), tmp_path / "torch.trace"))
    next(iteration)
    assert torch.Tensor.to is not own
    del iteration
    assert torch.Tensor.to is own


def test_what_a_copy_gives_and_raises_is_torchs_own():
    seen = []
    with transfers.watched(), transfers.noted(lambda *what: seen.append(what[0])):
        assert torch.zeros(3).to(device="meta", dtype=torch.float64).dtype == torch.float64
        assert torch.zeros(3).to(torch.zeros(1, device="meta")).is_meta
        with pytest.raises(RuntimeError, match="nowhere"):
            torch.zeros(3).to("nowhere")
    assert seen == [12, 12]
