"""The process that later workers are forked from. Forked last in ``iter()``, with work handed out; idle until asked.

A process forked in mid-epoch would inherit every lock that some thread of the trainer holds at that moment, with nobody
to release it. This one has a single thread, runs nothing of the user's, and stays as the trainer was at ``iter()``.
"""

import gc
import os
import pickle
import select
import signal
import socket
import struct
import sys
from contextlib import suppress
from dataclasses import replace
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

from headrace.engine.memory.lock import Bell
from headrace.engine.worker.startup import worker_main
from headrace.engine.worker.startup.job import Job
from headrace.sched.resume import Resume

NAME = "headrace-forker"
REQUEST = struct.Struct("<qqq")  # serial; START, REAP or END; the lane or the process it is about
ANSWER = struct.Struct("<qq")  # serial; a process id, an exit code, or an error number, negated
GONE, START, REAP, END = 0, 1, 2, 3
UNKNOWN = 1 << 32
"""In place of an exit code: it cannot be told."""
KNOWN = b"k"
"""What a new worker reads when the trainer has its number; it reads nothing where the trainer never heard of it."""


def serve(channel: socket.socket, context: BaseContext, job: Job, workers: list[int]) -> None:
    """Serve until told to end, or until the trainer is gone; ``job`` is what every worker is told, but for its lane.

    Signals are held: those of the group are the trainer's business, and a worker gets the trainer's mask. With the
    trainer end its ``workers`` (pidfds) and those forked here: one that is in C code and keeps the GIL cannot see it.
    """
    collects = gc.isenabled()
    gc.freeze()
    gc.disable()
    worker_main.set_name(NAME)
    ended = _ForkServer(channel, context, job, collects=collects).run()
    for worker in workers if ended else ():
        with suppress(OSError):  # it has ended
            signal.pidfd_send_signal(worker, signal.SIGKILL)


class _ForkServer:
    def __init__(self, channel: socket.socket, context: BaseContext, job: Job, *, collects: bool) -> None:
        self._channel, self._context, self._job, self._collects = channel, context, job, collects
        self._streams = sys.stdout, sys.stderr
        # What other threads had in these buffers would be written again by whoever flushes them.
        sys.stdout = sys.stderr = None
        self._children: dict[int, BaseProcess] = {}

    def run(self) -> bool:
        """Serve requests until told to end or the trainer ends; True if it was the trainer that ended."""
        try:
            trainer = os.pidfd_open(self._job.parent)
        except ProcessLookupError:
            return True
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(trainer, select.POLLIN)
        kind = START
        while kind not in (END, GONE):
            ready = [fd for fd, _ in poll.poll()]
            try:
                kind = GONE if trainer in ready else self._serve()
            except ConnectionError:  # it died before it was answered
                kind = GONE
        for child in self._children.values():
            if kind == GONE:
                child.kill()
            child.join()
        return kind == GONE

    def _serve(self) -> int:
        """Answer one request; which one it was. ``GONE``: a trainer that dies lets go of its end first."""
        message, fds, _, _ = socket.recv_fds(self._channel, REQUEST.size, 3, socket.MSG_CMSG_CLOEXEC)
        if len(message) < REQUEST.size:
            return GONE
        serial: int
        kind: int
        subject: int
        serial, kind, subject = REQUEST.unpack(message)
        if kind == START:
            watch = -1
            try:
                pid = self._start(subject, *fds)
                watch = os.pidfd_open(pid)
                socket.send_fds(self._channel, [ANSWER.pack(serial, pid)], [watch])
            except OSError as error:
                self._channel.send(ANSWER.pack(serial, -(error.errno or 1)))
            finally:
                for fd in (*fds, watch):
                    if fd >= 0:
                        os.close(fd)
        elif kind == REAP:
            self._channel.send(ANSWER.pack(serial, self._reap(subject)))
        return kind

    def _start(self, lane: int, bell: int, resume: int, permit: int) -> int:
        with os.fdopen(resume, "rb", closefd=False) as file:
            told: Resume = pickle.load(file)  # noqa: S301  (written by the trainer for us)
        job = replace(self._job, lane=lane, bell=Bell(bell), resume=told)
        child: BaseProcess = self._context.Process(  # type: ignore[attr-defined]
            target=self._born, args=(job, permit), daemon=True
        )
        child.start()
        assert child.pid is not None
        self._children[child.pid] = child
        return child.pid

    def _reap(self, pid: int) -> int:
        child = self._children.pop(pid, None)
        if child is None:
            return UNKNOWN
        child.join()
        code = child.exitcode
        child.close()
        return UNKNOWN if code is None else code

    def _born(self, job: Job, permit: int) -> None:
        """A worker's beginning."""
        self._channel.close()
        if os.read(permit, len(KNOWN)) != KNOWN:
            return  # whoever is in this lane is another
        os.close(permit)
        # From here on the user's code runs, which may print.
        sys.stdout, sys.stderr = self._streams
        if self._collects:
            gc.enable()
        worker_main.main(job)
