"""The process on another host that lanes are forked from: a fresh interpreter that unpickles the dataset once.

It has one thread, never speaks to Ray, and ends with the actor that started it, and its lanes with it: one is forked
for every stream that the fetcher opens.
"""

import gc
import json
import os
import pickle
import select
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from headrace.remote.elsewhere.actor_orders import SIZE, HostOrders
from headrace.remote.elsewhere.lane_process import LaneWork, serve
from headrace.remote.elsewhere.shipped import DatasetBundle

SPARE = 4
"""So many more lanes than there should be may be there: one that hangs is replaced before it is gone."""


def main(channel: int) -> None:
    """Serve until the actor at the other end of ``channel`` is gone. The first answer is JSON: a port, or an error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=channel) as actor:
        orders: HostOrders = pickle.loads(_received(actor))  # noqa: S301  (from the process that started this one)
        try:
            work = _unpacked(orders)
            listener = socket.create_server((orders.address, 0), backlog=orders.lanes + SPARE)
        except Exception as error:  # noqa: BLE001  (told to the trainer)
            _say(actor, {"error": f"{type(error).__name__}: {error}"})
            return
        with listener:
            _say(actor, {"port": listener.getsockname()[1], "pid": os.getpid()})
            gc.freeze()  # lanes share it
            _LaneHost(listener, actor, work, orders.lanes + SPARE).run()


def _unpacked(orders: HostOrders) -> LaneWork:
    bundle: DatasetBundle = pickle.loads(orders.bundle)  # noqa: S301  (from this run's trainer, through Ray)
    differences = bundle.facts.differences()
    if differences:
        raise RuntimeError("samples made here could differ: " + "; ".join(differences))
    dataset, worker_init_fn = pickle.loads(bundle.packed)  # noqa: S301  (the same)
    address, pickled = orders.address, _pickled(bundle)
    return LaneWork(dataset, worker_init_fn, orders.token, orders.first, orders.total, address, pickled)


def _pickled(bundle: DatasetBundle) -> Callable[[Any], bytes] | None:
    """The pickler for samples, as Ray serialises them: classes that only the trainer's program has are found there."""
    if not bundle.pickled:
        return None
    from headrace.remote.ray_driver import by_value  # noqa: PLC0415  (imports Ray, where the user wants it)

    return by_value


def _received(channel: socket.socket) -> bytes:
    with channel.makefile("rb") as file:
        (size,) = SIZE.unpack(file.read(SIZE.size))
        return file.read(size)


def _say(channel: socket.socket, what: dict[str, Any]) -> None:
    channel.sendall(json.dumps(what).encode() + b"\n")


class _LaneHost:
    """The listener and the lanes."""

    def __init__(self, listener: socket.socket, actor: socket.socket, work: LaneWork, most: int) -> None:
        self._listener, self._actor, self._work, self._most = listener, actor, work, most
        self._lanes: dict[int, tuple[int, int]] = {}  # pidfd -> process, and which lane it is

    def run(self) -> None:
        """Fork a lane for every stream; end them with the actor."""
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._actor, select.POLLIN)
        own = os.pidfd_open(os.getpid())
        while True:
            ready = [fd for fd, _ in poll.poll()]
            if self._actor.fileno() in ready:
                break  # it says nothing any more: it is gone
            for lane in [fd for fd in ready if fd in self._lanes]:
                poll.unregister(lane)
                self._reap(lane)
            if self._listener.fileno() in ready:
                forked = self._accept(own)
                if forked is not None:
                    poll.register(forked, select.POLLIN)
        for fd in list(self._lanes):
            with suppress(OSError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            self._reap(fd)

    def _reap(self, fd: int) -> None:
        pid, _ = self._lanes.pop(fd)
        os.close(fd)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)

    def _accept(self, own: int) -> int | None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # whoever it was is gone
            return None
        with connection:
            if len(self._lanes) >= self._most:
                return None
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            taken = {number for _, number in self._lanes.values()}
            number = next(each for each in range(self._most) if each not in taken)
            pid = os.fork()
            if not pid:
                self._listener.close()
                self._actor.close()
                serve(connection, self._work, number, own)
        fd = os.pidfd_open(pid)
        self._lanes[fd] = pid, number
        return fd
