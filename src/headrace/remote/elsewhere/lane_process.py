"""A process on another host that makes samples for one stream: forked from the host's, it never speaks to Ray."""

import os
import select
import socket
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NoReturn

import torch
from torch.utils.data._utils import worker as torch_worker

from headrace.cache.backends.entry_word import NOWHERE
from headrace.cache.entries.codec import NotKept
from headrace.engine.worker.failure import LEAVING
from headrace.engine.worker.randomness import generators, seeding
from headrace.engine.worker.startup.worker_main import set_name
from headrace.remote import messages
from headrace.remote.elsewhere import sample_entry
from headrace.remote.messages import EntryKind, Head, Request, Subject
from headrace.staging.stages import Stages, staged

SHOW_SECONDS = 10.0
"""So long a stranger may take to show the token."""


@dataclass(frozen=True, slots=True)
class LaneWork:
    """The work that a host's lanes have in common."""

    dataset: Any
    worker_init_fn: Callable[[int], Any] | None
    token: bytes
    first: int
    """The number of the first lane here, as ``worker_init_fn`` is told."""
    lanes: int
    """How many there are, of all hosts and the trainer's own."""
    node: str
    """The address of this one."""
    pickled: Callable[[Any], bytes] | None = None
    """Pickles what no entry can hold; None: that is refused."""


def serve(connection: socket.socket, work: LaneWork, lane: int, host: int) -> NoReturn:
    """Make samples until the stream is closed or the process ``host``, which is watched by its pidfd, has ended."""
    try:
        _follow(host)
        set_name("headrace-lane")
        connection.settimeout(SHOW_SECONDS)
        shown = _read(connection, messages.TOKEN)
        if messages.same_token(bytes(shown), work.token):
            connection.settimeout(None)
            ServingLane(connection, work, lane).run()
    except (ConnectionError, TimeoutError):
        pass  # nobody listens any more, or a stranger did not show the token
    except BaseException:  # noqa: BLE001  (the process ends here: on its host's standard error)
        traceback.print_exc()
    finally:
        os._exit(0)  # what was inherited is not this process' to end


def _follow(host: int) -> None:
    def wait() -> None:
        poll = select.poll()
        poll.register(host, select.POLLIN)
        poll.poll()
        os._exit(1)

    threading.Thread(target=wait, name="headrace-host", daemon=True).start()


def _read(connection: socket.socket, size: int) -> bytearray:
    found = bytearray(size)
    view = memoryview(found)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise ConnectionResetError
        view = view[count:]
    return found


class ServingLane:
    """The lane that makes one stream's samples."""

    def __init__(self, connection: socket.socket, work: LaneWork, lane: int) -> None:
        """Start with nothing sent."""
        self._connection, self._work, self._number = connection, work, work.first + lane
        self._codec = sample_entry.codec()
        self._node = work.node.encode()
        self._stages: Stages | None = None
        self._sends = threading.Lock()  # one message at a time

    def run(self) -> None:
        """Answer requests in their order, until the stream is closed."""
        refusal = self._begin()
        if refusal is not None:
            self._send([messages.words(Subject.REFUSAL, refusal)])
            return
        self._send([messages.words(Subject.HELLO, str(os.getpid()))])
        threading.Thread(target=self._beat, name="headrace-beat", daemon=True).start()
        while True:
            head = Head.read(_read(self._connection, messages.HEAD.size))
            self._send(self._answered(head.number, messages.read_request(_read(self._connection, head.size))))

    def _begin(self) -> str | None:
        """Become a worker like those beside the trainer; gives why that is impossible."""
        work = self._work
        torch.set_num_threads(1)
        torch_worker._worker_info = torch_worker.WorkerInfo(  # noqa: SLF001  (what get_worker_info() reads)
            id=self._number, num_workers=work.lanes, seed=torch.initial_seed(), dataset=work.dataset
        )
        if work.worker_init_fn is None:
            return None
        seeds = generators.SeedWatch()
        try:
            work.worker_init_fn(self._number)
        except LEAVING:
            raise
        except BaseException as error:  # noqa: BLE001  (the user's function; told to the trainer)
            return f"worker_init_fn raised {type(error).__name__}: {error}"
        if seeds.seeded():
            return (
                "worker_init_fn seeds random numbers, so samples depend on the worker that makes them: leave that to "
                "the loader, which seeds every sample, or remote= out"
            )
        return None

    def _beat(self) -> None:
        beat = Head(Subject.BEAT).packed()
        while True:
            time.sleep(messages.BEAT_SECONDS)
            # While an answer is sent there is no need, and no room.
            if self._sends.acquire(blocking=False):
                try:
                    self._connection.sendall(beat)
                except OSError:
                    os._exit(0)  # nobody listens; whatever is being made is for nobody
                finally:
                    self._sends.release()

    def _send(self, pieces: "list[bytes | bytearray] | list[bytes]") -> None:
        with self._sends:
            for piece in pieces:
                self._connection.sendall(piece)

    def _answered(self, number: int, wanted: Request) -> list[bytes | bytearray]:
        began = time.monotonic_ns()
        forms = wanted.forms or repeat(NOWHERE)
        made = [self._made(wanted, index, form) for index, form in zip(wanted.indices, forms, strict=False)]
        return messages.answer(number, time.monotonic_ns() - began, made)

    def _made(self, wanted: Request, index: Any, form: int) -> tuple[EntryKind, bytes | bytearray]:
        """A sample, or the form of it that is wanted; a form that cannot be carried comes as a sample."""
        seeding.seed_sample(wanted.seed, wanted.epoch, index)
        try:
            if form:
                stamp, value = self._stage(index, form)
                try:
                    return EntryKind.STAGE, sample_entry.packed(self._codec, (stamp, value), self._node)
                except NotKept:
                    seeding.seed_sample(wanted.seed, wanted.epoch, index)
            sample = self._work.dataset[index]
        except LEAVING:
            raise
        except BaseException as error:  # noqa: BLE001  (the user's dataset; made again beside the trainer, which raises)
            return EntryKind.FAILED, f"{type(error).__name__}: {error}".encode("utf-8", "replace")
        try:
            return EntryKind.VALUE, sample_entry.packed(self._codec, sample, self._node)
        except NotKept as error:
            return self._unfit(sample, error)

    def _stage(self, index: Any, form: int) -> tuple[list[int] | None, Any]:
        """The state of the sample's file before it was read, and the form of it that a cache is to keep."""
        if self._stages is None:
            self._stages = staged(self._work.dataset, ("", "", ""))
        stamp = self._stages.stamp(index)
        return None if stamp is None else list(stamp), self._stages.upto(index, form)

    def _unfit(self, sample: Any, why: NotKept) -> tuple[EntryKind, bytes]:
        if self._work.pickled is None:
            return EntryKind.UNFIT, str(why).encode("utf-8", "replace")
        try:
            return EntryKind.PICKLED, self._work.pickled(sample)
        except Exception as error:  # noqa: BLE001  (of many kinds)
            return EntryKind.UNFIT, f"cannot be pickled ({type(error).__name__}: {error})".encode("utf-8", "replace")
