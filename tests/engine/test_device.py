"""Copying ahead: which memory may be used again when, who gets which batch, and what counts as delivered."""

import gc
import sys
import weakref
from collections import OrderedDict, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import NamedTuple

import pytest
import torch

import headrace
from headrace.devices import device_part
from headrace.devices.ahead import AHEAD, Ahead
from headrace.engine.memory.containers import mapped
from headrace.engine.memory.pieces import no_slab
from headrace.engine.memory.slab import Registrar
from headrace.engine.step import IterationStep
from headrace.sched.hand import NOT_YET, Delivered, Hand
from tests.engine.scripted_device import ScriptedAccelerator, ScriptedMark
from tests.loader.data import Numbers, Pairs, Raises, listed
from tests.parity.datasets import Squares
from tests.parity.support import raises, samples


class ScriptedRun:
    """A run whose outcomes were written down: batches, errors, NOT_YET, and interrupts, which are raised."""

    def __init__(self, *script):
        self.script, self.settled, self.abandoned = list(script), 0, False
        self.hands: deque[Hand[None]] = deque()
        self.blocked: list[bool] = []

    def next(self, *, block=True):
        self.blocked.append(block)
        while self.hands and self.hands[0].load is None:
            self.hands.popleft()
            self.settled += 1
        while self.script:
            outcome = self.script.pop(0)
            if outcome is NOT_YET:
                if block:
                    continue
                return NOT_YET
            if isinstance(outcome, BaseException) and not isinstance(outcome, Exception):
                raise outcome
            load = outcome if isinstance(outcome, Exception) else (outcome,)
            self.hands.append(Hand(load, None, Delivered()))
            return self.hands[-1]
        raise StopIteration

    @property
    def taken(self):
        return self.settled + len(self.hands)

    def progress(self):
        return {"taken": self.settled + sum(hand.load is None for hand in self.hands)}

    def abandon(self):
        self.abandoned = True
        self.hands.clear()


def delivered(ahead, *, block=True):
    """What an iteration does with the hand it is given."""
    hand = ahead.next(block=block)
    if hand is NOT_YET:
        return hand
    load, hand.load = hand.load, None
    if isinstance(load, BaseException):
        raise load
    return load[0]


def batch(value):
    return torch.full((2,), float(value))


def broken():
    raise RuntimeError("the device is broken")


def interrupted(*_):
    raise KeyboardInterrupt


class Interruption:
    """Raises KeyboardInterrupt before the n-th instruction of the module that copies ahead."""

    def __init__(self, n):
        self.left, self.struck = n, False

    def __call__(self, frame, event, argument):
        if not frame.f_code.co_filename.endswith("devices/ahead.py") or self.struck:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left < 0:
                self.struck = True
                raise KeyboardInterrupt
        return self


def interrupted_at(n, *, light):
    """(What was delivered of six batches, whether the interrupt came)."""
    # An exception where the interpreter itself raises none may leave the one before it on the thread's stack of those
    # that are being handled, for good: every later one, and every forked process, would show it as its cause.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_interrupted_at, n, light=light).result()


def _interrupted_at(n, *, light):
    device = ScriptedAccelerator()
    device.light = light
    ahead = Ahead(ScriptedRun(*[batch(i) for i in range(6)]), device, IterationStep())
    got, interruption = [], Interruption(n)
    before = sys.gettrace()
    while True:
        sys.settrace(None if interruption.struck else interruption)
        try:
            there = delivered(ahead)
        except KeyboardInterrupt:
            sys.settrace(before)
            assert ahead.progress() == {"taken": len(got)}
            continue
        except StopIteration:
            break
        finally:
            sys.settrace(before)
        got.append(there)
        if len(got) % 2:
            device.advance(2)
    device.finish()
    assert ahead.progress() == {"taken": 6}
    return [there[0].item() for there in got], interruption.struck


@contextmanager
def collected_garbage():
    """What only the garbage collector finds of what is let go of inside."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    garbage = []
    try:
        yield garbage
        gc.collect()
        garbage += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        gc.collect()


@pytest.fixture
def device():
    return ScriptedAccelerator()


class TestAhead:
    def test_batches_are_sent_ahead_and_handed_over_in_order(self, device):
        ahead = Ahead(ScriptedRun(*map(batch, range(4))), device, IterationStep())
        got = [delivered(ahead) for _ in range(4)]
        device.finish()
        assert [there.tolist() for there in got] == [[float(i)] * 2 for i in range(4)]
        handed = [number for what, number in device.log if what == "hand over"]
        assert handed == [0, 1, 2, 3]
        for number in range(4 - AHEAD):  # each was under way before the one ahead of it was handed over
            before = device.log.index(("copy", number + AHEAD - 1))
            assert before < device.log.index(("hand over", number))

    def test_small_ones_are_sent_a_few_at_a_time(self, device):
        device.light = True
        run = ScriptedRun(*map(batch, range(8)))
        ahead = Ahead(run, device, IterationStep())
        sent, got = [], []
        for _ in range(8):
            got.append(delivered(ahead))
            sent.append(run.taken)
            device.advance(8)
        assert sent == [6, 6, 6, 6, 6, 8, 8, 8]
        assert [there[0].item() for there in got] == list(range(8))

    def test_without_workers_nothing_is_made_early_however_small(self, device):
        device.light = True
        run = ScriptedRun(*map(batch, range(3)))
        ahead = Ahead(run, device, IterationStep(), ahead=1)
        for taken in range(1, 4):
            delivered(ahead)
            assert run.taken == taken

    def test_handing_over_does_not_wait(self, device):
        ahead = Ahead(ScriptedRun(*map(batch, range(5))), device, IterationStep())
        for _ in range(5):
            delivered(ahead)
        assert device.under_way == 5
        assert not [what for what, _ in device.log if what == "finish"]

    def test_host_memory_is_kept_until_its_copy_is_done(self, device):
        hosts = [batch(i) for i in range(6)]
        alive = [weakref.ref(host) for host in hosts]
        ahead = Ahead(ScriptedRun(*hosts), device, IterationStep())
        del hosts
        for _ in range(4):
            delivered(ahead)
        assert [ref() is not None for ref in alive] == [True] * 6
        device.advance(3)
        delivered(ahead)
        assert [ref() is not None for ref in alive[:4]] == [False, False, False, True]

    def test_what_is_on_its_way_is_not_delivered(self, device):
        run = ScriptedRun(*map(batch, range(4)))
        ahead = Ahead(run, device, IterationStep())
        assert ahead.progress() == {"taken": 0}
        for number in range(1, 5):
            delivered(ahead)
            assert ahead.progress() == {"taken": number}
        assert run.taken == 4

    def test_an_error_comes_after_the_batches_before_it(self, device):
        ahead = Ahead(ScriptedRun(batch(0), batch(1), ValueError("third"), batch(3)), device, IterationStep())
        assert delivered(ahead) is not None
        assert delivered(ahead) is not None
        assert ahead.progress() == {"taken": 2}
        with raises(ValueError, match="third"):
            delivered(ahead)
        assert ahead.progress() == {"taken": 3}
        delivered(ahead)
        with pytest.raises(StopIteration):
            delivered(ahead)
        with pytest.raises(StopIteration):
            delivered(ahead)

    @pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
    def test_an_interrupt_comes_at_once(self, device, kind):
        ahead = Ahead(ScriptedRun(batch(0), batch(1), kind(), batch(2)), device, IterationStep())
        got = [delivered(ahead)]
        with raises(kind):
            delivered(ahead)
        assert ahead.progress() == {"taken": 1}
        got += [delivered(ahead), delivered(ahead)]
        device.finish()
        assert [there[0].item() for there in got] == [0.0, 1.0, 2.0]

    @pytest.mark.parametrize("light", [False, True], ids=["large", "small"])
    def test_an_interrupt_at_any_step_loses_and_repeats_nothing(self, light):
        """Raises before the n-th instruction of the module, for every n there is."""
        n, struck = 0, True
        while struck:
            got, struck = interrupted_at(n, light=light)
            assert got == [float(i) for i in range(6)], f"interrupted at instruction {n}"
            n += 1
        assert n > 500

    def test_a_copy_that_arrived_although_sending_was_interrupted_is_made_again(self, device, monkeypatch):
        """The interrupt comes between the copy and the store that puts the batch there into the hand."""
        ahead = Ahead(ScriptedRun(*map(batch, range(3))), device, IterationStep())
        with monkeypatch.context() as patch:
            patch.setattr(device, "is_light", interrupted)
            with raises(KeyboardInterrupt):
                ahead.next()
        device.advance(1)
        got = [delivered(ahead) for _ in range(3)]
        device.finish()
        assert [there[0].item() for there in got] == [0.0, 1.0, 2.0]

    def test_errors_that_wait_keep_no_batch_alive(self, device):
        """What a traceback or a cycle keeps may be collected in a forked child, which must not destroy an event."""
        with collected_garbage() as garbage:
            ahead = Ahead(ScriptedRun(batch(0), batch(1), ValueError("third"), batch(3)), device, IterationStep())
            for _ in range(6):
                try:
                    delivered(ahead)
                except (ValueError, StopIteration):
                    continue
            ahead.abandon()
            del ahead
        assert [found for found in garbage if isinstance(found, (ScriptedMark, torch.Tensor))] == []

    def test_abandoning_goes_on_when_the_device_fails(self, device):
        run = ScriptedRun(*map(batch, range(4)))
        ahead = Ahead(run, device, IterationStep())
        delivered(ahead)
        device.before_finish = broken
        with raises(RuntimeError, match="broken"):
            ahead.abandon()
        assert run.abandoned

    def test_it_waits_only_when_it_has_nothing(self, device):
        run = ScriptedRun(batch(0), NOT_YET, batch(1), NOT_YET)
        ahead = Ahead(run, device, IterationStep())
        delivered(ahead)
        assert run.blocked == [True, False]
        delivered(ahead)
        assert run.blocked[2:] == [True, False]

    def test_nothing_yet(self, device):
        ahead = Ahead(ScriptedRun(NOT_YET, batch(0)), device, IterationStep())
        assert delivered(ahead, block=False) is NOT_YET
        assert delivered(ahead, block=False) is not NOT_YET

    def test_abandoning_waits_for_copies_before_memory_goes_back(self, device):
        run = ScriptedRun(*map(batch, range(4)))
        ahead = Ahead(run, device, IterationStep())
        delivered(ahead)
        seen = []
        device.before_finish = lambda: seen.append((device.under_way, run.abandoned))
        ahead.abandon()
        assert seen == [(2, False)]
        assert run.abandoned
        assert device.under_way == 0


class TestRegistrar:
    def test_memory_is_registered_once(self, device):
        registrar = Registrar(device, 1 << 20)
        for size in (5000, 100, 8192):
            registrar.ensure(1 << 20, size)
        assert device.registered == {1 << 20: 8192}
        assert device.log == [("register", 8192)]

    def test_a_slot_that_grew_is_registered_anew_once_copies_are_done(self, device):
        registrar = Registrar(device, 1 << 20)
        registrar.ensure(1 << 20, 4096)
        device.copy(batch(1), no_slab)
        registrar.ensure(1 << 20, 4097)
        assert device.log[-3:] == [("finish", 1), ("unregister", 4096), ("register", 8192)]

    def test_a_slot_that_grew_does_not_reach_into_the_next_one(self, device):
        registrar = Registrar(device, 1 << 20)
        registrar.ensure(2 << 20, 4096)
        registrar.ensure(1 << 20, 900_000)
        registrar.ensure(1 << 20, 1_000_000)
        assert device.registered == {1 << 20: 1 << 20, 2 << 20: 4096}

    def test_closing_undoes_everything(self, device):
        registrar = Registrar(device, 1 << 20)
        registrar.ensure(1 << 20, 1)
        registrar.ensure(2 << 20, 1)
        device.copy(batch(1), no_slab)
        registrar.close()
        assert device.registered == {}
        assert device.under_way == 0
        registrar.close()

    @pytest.mark.parametrize("fails", ["finish", "unregister"])
    def test_what_raises_keeps_nothing_registered(self, device, fails, monkeypatch):
        registrar, unregister = Registrar(device, 1 << 20), device.unregister
        registrar.ensure(1 << 20, 1)
        registrar.ensure(2 << 20, 1)

        def first_unregister(address):
            unregister(address)
            if len(device.registered) == 1:
                broken()

        if fails == "finish":
            device.before_finish = broken
        else:
            monkeypatch.setattr(device, "unregister", first_unregister)
        with raises(RuntimeError, match="broken"):
            registrar.close()
        assert device.registered == {}

    def test_memory_that_cannot_be_registered_is_tried_again(self, device, monkeypatch):
        registrar = Registrar(device, 1 << 20)
        with monkeypatch.context() as patch:
            patch.setattr(device, "register", lambda *_: broken())
            with raises(RuntimeError, match="broken"):
                registrar.ensure(1 << 20, 1)
        registrar.ensure(1 << 20, 1)
        assert device.registered == {1 << 20: 4096}
        registrar.close()


class Point(NamedTuple):
    x: torch.Tensor
    y: int


class TestMapped:
    @pytest.mark.parametrize(
        "value",
        [
            torch.ones(2),
            [torch.ones(2), "text", b"bytes", 3],
            (torch.ones(2), None),
            {"a": torch.ones(2), "b": [torch.zeros(1)]},
            Point(torch.ones(2), 4),
            OrderedDict(a=torch.ones(1), b=5),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_containers_keep_their_types(self, value):
        moved = mapped(value, lambda tensor: tensor + 1)
        assert type(moved) is type(value)
        assert str(mapped(moved, lambda tensor: tensor - 1)) == str(value)


@pytest.fixture
def scripted(monkeypatch, device):
    """Loaders with ``device="cuda"`` use the scripted accelerator."""
    monkeypatch.setattr(device_part, "accelerator", lambda name, **options: device)
    return device


each_order = pytest.mark.parametrize("in_order", [True, False], ids=["in order", "as ready"])


class TestLoader:
    @each_order
    @pytest.mark.parametrize("collate", [None, listed])
    def test_memory_is_not_used_again_before_its_copy_is_done(self, scripted, in_order, collate):
        """Copies arrive late and in dribs; whatever was overwritten in the meantime would arrive wrong."""
        loader = headrace.DataLoader(Pairs(80), 4, num_workers=2, in_order=in_order, device="cuda", collate_fn=collate)
        got = []
        for number, there in enumerate(loader):
            got.append(there)
            if number % 3 == 2:
                scripted.advance(2)
        scripted.finish()
        assert sorted(index for indices, _ in got for index in indices.tolist()) == list(range(80))
        for indices, values in got:
            for index, value in zip(indices.tolist(), values, strict=True):
                assert value.tolist() == [10.0 * index, 10.0 * index + 1, 10.0 * index + 2]

    @each_order
    def test_slots_come_back_as_copies_are_done(self, scripted, in_order):
        loader = headrace.DataLoader(
            Squares(400), 4, num_workers=2, in_order=in_order, device="cuda", prefetch_factor=2
        )
        for _ in loader:
            scripted.advance(scripted.under_way)
        used = loader.stats().slab_bytes
        assert len(scripted.registered) <= 4 + AHEAD + 2
        assert used <= 64 * (4 + AHEAD + 2)
        assert loader.stats().copied_out == 0

    @pytest.mark.parametrize("num_workers", [0, 2])
    @pytest.mark.parametrize("dataset", [Squares(20), Numbers(20)], ids=["map-style", "iterable"])
    def test_state_counts_what_is_on_its_way_as_undelivered(self, scripted, dataset, num_workers):
        whole = samples(headrace.DataLoader(dataset, 2, num_workers=num_workers))
        loader = headrace.DataLoader(dataset, 2, num_workers=num_workers, device="cuda")
        iterator = iter(loader)
        found = [next(iterator) for _ in range(3)]
        assert sum(what == "copy" for what, _ in scripted.log) >= 3
        state = loader.state_dict()
        del iterator
        scripted.finish()
        resumed = headrace.DataLoader(dataset, 2, num_workers=num_workers)
        resumed.load_state_dict(state)
        assert samples(found) + samples(resumed) == whole

    def test_errors_keep_their_place(self, scripted):
        dataset = Pairs(8, hook=Raises(lambda: ValueError("bad"), 4))
        iterator = iter(headrace.DataLoader(dataset, 2, num_workers=1, in_order=True, device="cuda"))
        found = [next(iterator), next(iterator)]
        with raises(ValueError, match="bad"):
            next(iterator)
        found.append(next(iterator))
        with pytest.raises(StopIteration):
            next(iterator)
        scripted.finish()
        assert [indices.tolist() for indices, _ in found] == [[0, 1], [2, 3], [6, 7]]

    def test_leaving_early_waits_for_copies_and_closing_unregisters(self, scripted):
        loader = headrace.DataLoader(Squares(40), 4, num_workers=1, device="cuda")
        for there in loader:
            kept = there
            break
        assert scripted.under_way == 0
        assert kept.tolist() == [0, 1, 4, 9]
        assert scripted.registered
        loader.close()
        assert scripted.registered == {}

    def test_a_device_that_fails_keeps_no_worker_and_no_memory(self, scripted):
        loader = headrace.DataLoader(Squares(40), 4, num_workers=2, device="cuda")
        iterator = iter(loader)
        next(iterator)

        def failing():
            scripted.advance(scripted.under_way)
            broken()

        scripted.before_finish = failing
        with raises(RuntimeError, match="broken"):
            loader.close()
        assert scripted.registered == {}
        scripted.before_finish = None
        loader.close()

    @pytest.mark.parametrize("left", ["at the end", "early", "after an error"])
    def test_nothing_of_the_device_is_in_a_cycle(self, scripted, left):
        """A child forked later that collects garbage must not find events: destroying one there ends it."""
        hook = Raises(lambda: ValueError("bad"), 20) if left == "after an error" else None
        dataset = Pairs(40) if hook is None else Pairs(40, hook=hook)
        with collected_garbage() as garbage:
            loader = headrace.DataLoader(
                dataset, 4, num_workers=2, in_order=True, device="cuda", persistent_workers=True
            )
            for _ in range(2):
                with suppress(ValueError):
                    for number, _ in enumerate(loader):
                        scripted.advance(1)
                        if left == "early" and number == 3:
                            break
            loader.close()
            assert scripted.marks == []
            del loader
        assert [found for found in garbage if isinstance(found, ScriptedMark)] == []

    def test_registered_memory_is_used_by_the_next_epoch(self, scripted):
        loader = headrace.DataLoader(Squares(40), 4, num_workers=1, device="cuda")
        for _ in range(3):
            for _ in loader:
                scripted.advance(scripted.under_way)
        registers = sum(what == "register" for what, _ in scripted.log)
        assert registers == len(scripted.registered)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_cpu_is_a_device_too(num_workers):
    loader = headrace.DataLoader(Squares(4), 2, num_workers=num_workers, device="cpu")
    assert samples(loader) == [0, 1, 4, 9]
    assert samples(headrace.DataLoader(Squares(4), num_workers=0, device=torch.device("cpu"))) == [0, 1, 4, 9]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.parametrize("name", ["cuda", "cuda:1", torch.device("cuda"), 0])
def test_no_cuda_here(name):
    with raises(headrace.DeviceUnavailable, match="no CUDA device is available"):
        iter(headrace.DataLoader(Squares(4), num_workers=0, device=name))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
class TestCuda:
    @each_order
    def test_batches_arrive_there(self, in_order):
        loader = headrace.DataLoader(Pairs(64), 4, num_workers=2, in_order=in_order, device="cuda")
        found = {}
        for indices, values in loader:
            assert indices.is_cuda
            assert values.is_cuda
            found |= dict(zip(indices.tolist(), values.tolist(), strict=True))
        assert found == {index: [10.0 * index + i for i in range(3)] for index in range(64)}

    def test_one_that_is_not_there(self):
        with raises(headrace.DeviceUnavailable, match="numbered from 0"):
            iter(headrace.DataLoader(Squares(4), num_workers=0, device="cuda:77"))
