"""Batches on an accelerator: the slab registered once, batches copied ahead on a side stream."""

import copy
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from headrace.core.errors import DeviceUnavailable
from headrace.engine.consumer.hand import Hands
from headrace.engine.consumer.order import NOT_YET
from headrace.engine.consumer.tracing import Delivered, RunTrace

AHEAD = 2
"""Batches that are on the device or on their way before they are asked for."""


class Accelerator(Protocol):
    """What the loader needs of a device. Used from the consumer's thread only."""

    def register(self, address: int, size: int) -> None:
        """Page-lock host memory, so that copies from it run beside the host."""

    def unregister(self, address: int) -> None:
        """Undo ``register``; no copy from there is under way."""

    def copy(self, batch: Any) -> tuple[Any, Any]:
        """Start copying a host batch; (device batch, a mark that is reached when it is there)."""

    def hand_over(self, batch: Any, mark: Any) -> None:
        """Make the consumer's stream (not the host) wait for the mark, and tell who uses the memory from now on."""

    def reached(self, mark: Any) -> bool:
        """Whether the copy is done, without waiting."""

    def took(self, mark: Any) -> int | None:
        """Nanoseconds that a copy took which is done; None where that is not known."""

    def finish(self) -> None:
        """Wait for every copy that was started."""


class Cuda:
    """One CUDA device."""

    def __init__(self, device: torch.device, *, timed: bool = False) -> None:
        """A stream of its own. ``timed``: let the device tell how long copies take."""
        self._timed = timed
        index: int | None = device.index
        self._device = torch.device("cuda", torch.cuda.current_device() if index is None else index)
        self._cuda: Any = torch.cuda  # its own annotations are incomplete
        self._stream = self._cuda.Stream(self._device)

    def register(self, address: int, size: int) -> None:
        """See ``Accelerator``."""
        self._cuda.check_error(int(self._cuda.cudart().cudaHostRegister(address, size, 0)))

    def unregister(self, address: int) -> None:
        """See ``Accelerator``."""
        self._cuda.check_error(int(self._cuda.cudart().cudaHostUnregister(address)))

    def copy(self, batch: Any) -> tuple[Any, Any]:
        """See ``Accelerator``.

        The memory is the consumer's stream's own, so it needs no ``record_stream``: what that stream did with it before
        is done when the copy starts, and the copy is done before that stream touches it. A recorded tensor would end a
        forked worker that inherits it and lets go of it.
        """
        there = mapped(batch, lambda tensor: torch.empty_like(tensor, device=self._device))
        consumer = self._cuda.current_stream(self._device)
        self._stream.wait_stream(consumer)
        with self._cuda.stream(self._stream):
            began = self._cuda.Event(enable_timing=True) if self._timed else None
            if began is not None:
                began.record(self._stream)
            pairs = zip(tensors(there), tensors(batch), strict=True)
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
            mark = self._cuda.Event(enable_timing=self._timed)
            mark.record(self._stream)
        return there, (mark, consumer, began)

    def hand_over(self, batch: Any, mark: Any) -> None:
        """See ``Accelerator``."""
        event, expected, _ = mark
        stream = self._cuda.current_stream(self._device)
        stream.wait_event(event)
        if stream != expected:
            for tensor in tensors(batch):
                tensor.record_stream(stream)

    def reached(self, mark: Any) -> bool:
        """See ``Accelerator``."""
        return bool(mark[0].query())

    def took(self, mark: Any) -> int | None:
        """See ``Accelerator``."""
        event, _, began = mark
        return None if began is None else int(began.elapsed_time(event) * 1e6)

    def finish(self) -> None:
        """See ``Accelerator``."""
        self._stream.synchronize()


def accelerator(device: Any, *, timed: bool = False) -> Accelerator | None:
    """What ``device=`` names; None for the CPU. Raises ``DeviceUnavailable``."""
    try:
        chosen = torch.device(device)
    except TypeError as error:
        msg = f"device= takes a name, a number or a torch.device, not {device!r}"
        raise TypeError(msg) from error
    except RuntimeError as error:
        msg = f"device={str(device)!r}: {error}"
        raise DeviceUnavailable(msg) from error
    if chosen.type == "cpu":
        return None
    if chosen.type != "cuda":
        msg = f"device={str(device)!r}: only CUDA devices are supported; leave device out and move batches yourself"
        raise DeviceUnavailable(msg)
    if not torch.cuda.is_available():
        msg = (
            f"device={str(device)!r}: no CUDA device is available to this process; leave device out to stay on the CPU"
        )
        raise DeviceUnavailable(msg)
    index: int | None = chosen.index
    if index is not None and index >= torch.cuda.device_count():
        msg = f"device={str(device)!r}: this process sees {torch.cuda.device_count()} CUDA device(s), numbered from 0"
        raise DeviceUnavailable(msg)
    return Cuda(chosen, timed=timed)


class Registrar:
    """Keeps the memory of slots registered; a slot that grew is registered anew."""

    def __init__(self, device: Accelerator) -> None:
        """Nothing is registered yet."""
        self._device = device
        self._registered: dict[int, int] = {}

    def ensure(self, address: int, size: int) -> None:
        """The ``size`` bytes from ``address`` on are registered."""
        known = self._registered.get(address, 0)
        if known >= size:
            return
        if known:
            self._device.finish()
            self._device.unregister(address)
        wanted = -(-(size + (size // 4 if known else 0)) // 4096) * 4096
        self._device.register(address, wanted)
        self._registered[address] = wanted

    def close(self) -> None:
        """Unregister everything, once all copies are done."""
        self._device.finish()
        while self._registered:
            self._device.unregister(self._registered.popitem()[0])


class Ahead:
    """Takes batches from a run a little early and sends them to the device. Is a run itself.

    What was taken is in the run's hands until it is delivered, so it counts as not delivered until then.
    """

    def __init__(self, run: Any, device: Accelerator, trace: RunTrace | None = None) -> None:
        """``run``: where host batches come from."""
        self._run, self._device, self._trace = run, device, trace
        self._copying: deque[tuple[Any, Any, Delivered, int]] = deque()

    @property
    def hands(self) -> Hands[Any]:
        """None of them is returned without its copy: see ``next``."""
        return deque()

    def progress(self) -> dict[str, Any]:
        """As of the last batch handed out: what is on its way counts as not delivered."""
        progress: dict[str, Any] = self._run.progress()
        return progress

    def abandon(self) -> None:
        """Give up the rest of the epoch; host memory is free once its copies are done."""
        self._device.finish()
        self._copying.clear()
        self._run.abandon()

    def next(self, *, block: bool = True) -> Any:
        """The next batch, on the device or on its way there."""
        self._release()
        hands = [hand for hand in self._run.hands if hand.load is not None]
        while len(hands) < AHEAD and not (hands and isinstance(hands[-1].load, BaseException)):
            try:
                hand = self._run.next(block=block and not hands)
            except StopIteration:
                if not hands:
                    raise
                break
            if hand is NOT_YET:
                break
            hands.append(hand)
            self._send(hand)
        if not hands:
            return NOT_YET
        for hand in hands:
            self._send(hand)  # unless it was: an interrupt may have come before
        if isinstance(hands[0].load, tuple):
            self._device.hand_over(*hands[0].load)
        return hands[0]

    def _send(self, hand: Any) -> None:
        """Start copying, once; from then on the hand holds the batch on the device and its mark."""
        if isinstance(hand.load, BaseException) or len(hand.load) > 1:
            return
        began, host = time.monotonic_ns(), hand.load[0]
        there, mark = self._device.copy(host)
        self._copying.append((mark, host, hand.delivered, began))
        hand.load = there, mark

    def _release(self) -> None:
        """Let go of host batches whose copies are done."""
        while self._copying and self._device.reached(self._copying[0][0]):
            mark, host, batch, began = self._copying.popleft()
            if self._trace is not None:
                took = self._device.took(mark)
                size = sum(tensor.nbytes for tensor in tensors(host))
                self._trace.copied(batch, size, began, time.monotonic_ns() - began if took is None else took)


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors that ``mapped`` visits, in its order."""
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    mapped(value, note)
    return found


def mapped(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """``value`` with ``function`` applied to the tensors in its containers, whose types are kept."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, (str, bytes)):
        return value
    if isinstance(value, Mapping):
        pairs = {key: mapped(item, function) for key, item in value.items()}
        return pairs if type(value) is dict else _filled(value, pairs, lambda clone: clone.update(pairs))
    if isinstance(value, tuple):
        items = [mapped(item, function) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, Sequence):
        items = [mapped(item, function) for item in value]
        return items if type(value) is list else _filled(value, items, lambda clone: _assign(clone, items))
    return value


def _assign(clone: Any, items: list[Any]) -> None:
    for i, item in enumerate(items):
        clone[i] = item


def _filled(value: Any, plain: Any, fill: Callable[[Any], None]) -> Any:
    try:
        clone = copy.copy(value)
        fill(clone)
    except (TypeError, AttributeError):
        return plain
    return clone
