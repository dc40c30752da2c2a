"""Which streams copy and which wait, without a device: what is asked of torch.cuda is written down."""

from contextlib import nullcontext

import pytest
import torch

from headrace.devices import accelerator
from headrace.devices.accelerator import SMALL_BYTES, Cuda
from headrace.engine.memory.pieces import no_slab


class Stream:
    """Says in ``log`` what was asked of it. Streams of the carrier's own are numbered from 100 on."""

    def __init__(self, log, number):
        self.log, self.number = log, number

    def __eq__(self, other):
        return isinstance(other, Stream) and other.number == self.number

    __hash__ = None

    def wait_event(self, event):
        self.log.append(("wait", self.number, event.stream))

    def synchronize(self):
        self.log.append(("synchronize", self.number))


class Event:
    def __init__(self, log):
        self.log, self.stream = log, None

    def record(self, stream):
        self.stream = stream.number
        self.log.append(("record", stream.number))

    def query(self):
        return True


class FakeCuda:
    """As much of torch.cuda as is used; ``current`` is the trainer's stream."""

    def __init__(self):
        self.log, self.current, self.made = [], 0, 0

    def init(self):
        self.log.append(("init",))

    def Stream(self, device=None, *, stream_id=None, device_index=0, device_type=1):  # noqa: N802  (torch's)
        self.made += 1
        return Stream(self.log, 99 + self.made if stream_id is None else stream_id)

    def Event(self, *, enable_timing=False):  # noqa: N802
        return Event(self.log)

    def stream(self, stream):
        return nullcontext()


@pytest.fixture
def cuda(monkeypatch):
    fake = FakeCuda()
    monkeypatch.setattr(accelerator, "stream_name", lambda index: (fake.current, index, 1))
    return fake


@pytest.fixture
def carrier(cuda):
    carrier = Cuda(torch.device("cuda", 0))
    carrier._cuda, carrier._device = cuda, torch.device("cpu")
    return carrier


SMALL, LARGE = torch.ones(4), torch.ones(SMALL_BYTES)


def waits(cuda):
    return [entry for entry in cuda.log if entry[0] == "wait"]


def test_small_batches_are_copied_and_taken_by_the_trainer_stream_itself(cuda, carrier):
    for _ in range(3):
        there, mark = carrier.copy(SMALL, no_slab)
        assert carrier.is_light(mark)
        carrier.hand_over(there, mark)
    assert cuda.log == [("init",), ("record", 0), ("record", 0), ("record", 0)]
    assert cuda.made == 1


def test_whoever_takes_a_small_batch_on_another_stream_waits_for_it(cuda, carrier, monkeypatch):
    recorded = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: recorded.append(stream.number))
    cuda.current = 7
    there, mark = carrier.copy(SMALL, no_slab)
    cuda.current = 8
    carrier.hand_over(there, mark)
    assert waits(cuda) == [("wait", 8, 7)]
    assert recorded == [8]
    cuda.current = 7
    carrier.hand_over(there, mark)
    assert len(waits(cuda)) == len(recorded) == 1


def test_large_batches_are_copied_beside_and_waited_for(cuda, carrier):
    there, mark = carrier.copy(LARGE, no_slab)
    beside = carrier._stream.number
    assert not carrier.is_light(mark)
    assert waits(cuda) == [("wait", beside, 0)]
    carrier.hand_over(there, mark)
    assert waits(cuda)[1:] == [("wait", 0, beside)]


@pytest.mark.parametrize(("batch", "waited_for"), [(SMALL, [0]), (LARGE, [101])], ids=["small", "large"])
def test_finishing_waits_for_streams_that_copied_and_for_no_others(cuda, carrier, batch, waited_for):
    """The trainer's own work is not waited for where its stream copied nothing."""
    carrier.copy(batch, no_slab)
    carrier.finish()
    assert [entry[1] for entry in cuda.log if entry[0] == "synchronize"] == waited_for


def test_after_finishing_a_batch_is_still_its_streams_own(cuda, carrier):
    there, mark = carrier.copy(SMALL, no_slab)
    carrier.finish()
    carrier.hand_over(there, mark)
    assert waits(cuda) == []


def test_nothing_of_the_device_is_kept_after_finishing(cuda, carrier):
    _, mark = carrier.copy(SMALL, no_slab)
    carrier.copy(LARGE, no_slab)
    carrier.release(mark)
    carrier.finish()
    kept = []
    for value in vars(carrier).values():
        kept += value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
    assert not [each for each in kept if isinstance(each, (Stream, Event))]
