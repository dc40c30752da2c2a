"""A device: what is registered with it, the stream that copies to it, and the events that say how far it is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from headrace.core.errors import DeviceUnavailable
from headrace.engine.memory.containers import tensors
from headrace.engine.memory.pieces import Flat, Move, moved

SMALL_BYTES = 256 << 10
"""Bytes of a batch that the trainer's own stream copies: the device takes less time for them than the host would take
to have another stream do it and to make the two wait for each other."""


stream_name: Any = getattr(torch._C, "_cuda_getCurrentStream", None)  # noqa: SLF001  (what current_stream() asks)
"""What torch calls the stream that is a device's current one; None where torch was built without CUDA."""


class Carrier(Protocol):
    """Brings batches somewhere, in the order in which they were given to it. Used from the trainer's thread only."""

    def copy(self, batch: Any, flat: Flat) -> tuple[Any, Any]:
        """Start copying a host batch; (the batch there, a mark that is reached when it is there).

        The host's memory must stay as it is until then. Interrupted, it has kept alive what a copy may write to until
        ``finish``, and may be called again after that.
        """

    def is_light(self, mark: Any) -> bool:
        """True for a batch so small that it makes no difference how many like it are there early."""

    def waits_for(self, mark: Any) -> Callable[[], object] | None:
        """A function that waits until ``hand_over`` would not wait; None if it would not wait now."""

    def hand_over(self, batch: Any, mark: Any) -> Any:
        """The batch, usable from now on by the caller that asked last. Does nothing new when called again.

        Where it could not be made there, an error, or ``GONE`` where nothing of it is left.
        """

    def reached(self, mark: Any) -> bool:
        """True once the copy is done. Does not wait."""

    def took(self, mark: Any) -> int | None:
        """Nanoseconds that a copy took which is done; None where that is not known."""

    def spans(self, mark: Any) -> list[tuple[str, int]]:
        """Other work for a batch that is there, in order, with the nanoseconds it took."""

    def release(self, mark: Any) -> None:
        """Forget a mark that was reached and its batch handed over."""

    def finish(self) -> None:
        """Wait for every copy that was started, then let go of whatever copies need; also when waiting raises."""


class Accelerator(Carrier, Protocol):
    """A device that reads registered host memory. Handing over makes the trainer's stream wait, not the host."""

    def register(self, address: int, size: int) -> None:
        """Page-lock host memory, so that copies from it run beside the host."""

    def unregister(self, address: int) -> None:
        """Undo ``register``; no copy from there is under way."""


@dataclass(slots=True, eq=False)
class Mark:
    """A batch on its way: reached with ``done``, from ``began`` on if copies are timed, for ``trainer``'s stream."""

    done: Any
    began: Any
    trainer: Any
    in_turn: bool
    """It is copied by that stream itself, in its turn."""


class Cuda:
    """Carrier to a CUDA device.

    Events and the stream belong to it alone and are gone after ``finish``. An event that garbage collection finds later
    may be found by a forked child, which the driver then ends.
    """

    def __init__(self, device: torch.device, *, timed: bool = False) -> None:
        """``timed``: let the device tell how long copies take."""
        self._timed = timed
        self._device, self._index = numbered(device), numbered(device).index
        self._cuda: Any = torch.cuda  # its own annotations are incomplete
        self._stream: Any = None
        self._asked: Any = None  # reached when the trainer's stream has done what came before a copy
        self._known: dict[Any, Any] = {}  # streams that were the trainer's, by what torch calls them
        self._trainers: list[Any] = []  # those that copied in their turn
        self._unused: list[Any] = []
        self._targets: Any = None  # of copies that no mark stands for yet

    def register(self, address: int, size: int) -> None:
        """See ``Accelerator``."""
        self._cuda.check_error(int(self._cuda.cudart().cudaHostRegister(address, size, 0)))

    def unregister(self, address: int) -> None:
        """See ``Accelerator``."""
        self._cuda.check_error(int(self._cuda.cudart().cudaHostUnregister(address)))

    def copy(self, batch: Any, flat: Flat) -> tuple[Any, Mark]:
        """See ``Carrier``.

        The memory is the trainer's stream's own, so it needs no ``record_stream``: what that stream did with it before
        is done when the copy starts, and the copy is done before that stream touches it. A recorded tensor would end a
        forked worker that inherits it and lets go of it.
        """
        single: list[Move] = []

        def alone(tensor: torch.Tensor) -> torch.Tensor:
            target = torch.empty_like(tensor, device=self._device)
            single.append((target, tensor))
            return target

        there, moves = moved(batch, flat, self._block, alone)
        self._targets = there
        moves += single
        trainer = self._current()
        size = 0
        for _, source in moves:
            size += source.nbytes
        in_turn = size <= SMALL_BYTES
        mark = Mark(self._event(), self._event() if self._timed else None, trainer, in_turn)
        if in_turn:
            if trainer not in self._trainers:
                self._trainers.append(trainer)
            self._run(moves, mark, trainer)
        else:
            self._run_beside(moves, mark)
        self._targets = None
        return there, mark

    def _block(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(count, dtype=dtype, device=self._device)

    def _current(self) -> Any:
        """The stream that is the trainer's now: the same object for the same stream, since making one takes long."""
        if not self._known:
            self._cuda.init()  # what torch.cuda.current_stream() sees to each time
        name = stream_name(self._index)
        stream = self._known.get(name)
        if stream is None:
            number, index, kind = name
            stream = self._known[name] = self._cuda.Stream(stream_id=number, device_index=index, device_type=kind)
        return stream

    def _run_beside(self, moves: list[Move], mark: Mark) -> None:
        """Run the moves on a stream of its own, while the trainer's is at work on other batches."""
        if self._stream is None:
            self._asked, self._stream = self._cuda.Event(), self._cuda.Stream(self._device)
        self._asked.record(mark.trainer)
        self._stream.wait_event(self._asked)
        with self._cuda.stream(self._stream):
            self._run(moves, mark, self._stream)

    def _run(self, moves: list[Move], mark: Mark, stream: Any) -> None:
        """Run the moves on the current stream, which is ``stream``."""
        if mark.began is not None:
            mark.began.record(stream)
        for target, source in moves:
            target.copy_(source, non_blocking=True)
        mark.done.record(stream)

    def _event(self) -> Any:
        return self._unused.pop() if self._unused else self._cuda.Event(enable_timing=self._timed)

    def is_light(self, mark: Mark) -> bool:
        """See ``Carrier``."""
        return mark.in_turn

    def waits_for(self, mark: Mark) -> None:
        """See ``Carrier``: the device waits, not the trainer."""

    def hand_over(self, batch: Any, mark: Mark) -> Any:
        """See ``Carrier``."""
        stream = self._current()
        same = stream is mark.trainer or stream == mark.trainer  # another object after ``finish``
        if not (same and mark.in_turn):
            stream.wait_event(mark.done)
        if not same:
            for tensor in tensors(batch):
                tensor.record_stream(stream)
        return batch

    def reached(self, mark: Mark) -> bool:
        """See ``Carrier``."""
        return bool(mark.done.query())

    def took(self, mark: Mark) -> int | None:
        """See ``Carrier``."""
        return None if mark.began is None else int(mark.began.elapsed_time(mark.done) * 1e6)

    def spans(self, mark: Mark) -> list[tuple[str, int]]:
        """See ``Carrier``: nothing."""
        return []

    def release(self, mark: Mark) -> None:
        """See ``Carrier``."""
        self._unused.append(mark.done)
        if mark.began is not None:
            self._unused.append(mark.began)

    def finish(self) -> None:
        """See ``Carrier``."""
        try:
            for stream in (self._stream, *self._trainers):
                if stream is not None:
                    stream.synchronize()
        finally:
            self._stream = self._asked = self._targets = None
            self._known.clear()
            self._trainers.clear()
            self._unused.clear()


def numbered(device: torch.device) -> torch.device:
    """A CUDA device with the number that it has for the calling thread."""
    index: int | None = device.index
    return torch.device("cuda", torch.cuda.current_device() if index is None else index)


def accelerator(device: Any, *, timed: bool) -> Accelerator | None:
    """The device that ``device=`` names; None for the CPU. Raises ``DeviceUnavailable``."""
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
