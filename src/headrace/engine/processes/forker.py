"""The trainer's side of the forker: the process that workers are forked from once an epoch is under way."""

import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.context import BaseContext

from headrace.engine.step import ALL, held
from headrace.engine.worker.startup import forking
from headrace.engine.worker.startup.job import Job
from headrace.sched.resume import Resume

ANSWER_SECONDS = 30.0
"""After this long without an answer it is given up: somebody stopped it, or it waits for an inherited lock."""


one_fork = threading.Lock()
"""Lock for one fork at a time, whatever thread asks for it. Libraries that guard their locks and descriptors across
forks may refuse a second one that begins meanwhile, as filelock does, which comes with torch.
"""


def _renew() -> None:
    """Renew the lock in a new process: there it is nobody's."""
    global one_fork  # noqa: PLW0603  (one process, one lock)
    one_fork = threading.Lock()


os.register_at_fork(after_in_child=_renew)


class ForkerGone(Exception):
    """The forker was killed, or does not answer. Its workers go on, but how they end can no longer be told."""


class Forker:
    """Forked when made. Not thread-safe; of no use in a process forked from this one."""

    def __init__(self, context: BaseContext, job: Job, workers: list[int]) -> None:
        """``job``: what every worker is told, but for its lane and what it resumes from. Signals must be held.

        ``workers``: pidfds of those that are there already, and shall not outlive this process.
        """
        self._channel, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._serial = 0
        self._gone = False
        for stream in (sys.stdout, sys.stderr):  # or the workers it forks would write again what is in these buffers
            with suppress(AttributeError, ValueError):  # there is none, or it is closed
                stream.flush()
        with there:
            try:
                with one_fork:
                    self.pid = os.fork()
            except BaseException:
                self._channel.close()
                raise
            if self.pid == 0:
                self._channel.close()  # the trainer's end: that nobody has it any more says that the trainer is gone
                _serve(there, context, job, workers)
            try:
                self._watch = os.pidfd_open(self.pid)
            except OSError:
                os.kill(self.pid, signal.SIGKILL)
                _reap(self.pid)
                self._channel.close()
                raise

    def start(self, lane: int, bell: int, resume: Resume) -> tuple[int, int]:
        """Have a worker forked that is rung by ``bell``; OSError when the system does not allow it.

        Returns its process and a pidfd of that, which is the caller's. It begins once it is known here: one whose
        forker died before it said so ends instead, and the lane gets another.
        """
        permit, grant = os.pipe2(os.O_CLOEXEC)
        try:
            with os.fdopen(os.memfd_create("headrace-resume", os.MFD_CLOEXEC), "w+b") as told:
                pickle.dump(resume, told)
                told.seek(0)
                answer, fds = self._ask(forking.START, lane, [bell, told.fileno(), permit])
            if answer < 0:
                raise OSError(-answer, os.strerror(-answer))
            os.write(grant, forking.KNOWN)
            return answer, fds[0]
        finally:
            os.close(grant)
            os.close(permit)

    def reap(self, pid: int) -> int | None:
        """The exit code of a worker that ended (negative: the signal), None when it cannot be told."""
        code, _ = self._ask(forking.REAP, pid)
        return None if code == forking.UNKNOWN else code

    def _ask(self, kind: int, subject: int, fds: list[int] | None = None) -> tuple[int, list[int]]:
        if self._gone:
            raise ForkerGone
        with held(ALL):
            self._serial += 1  # before it is sent: whatever interrupts this, no answer to it is taken for another's
            try:
                socket.send_fds(self._channel, [forking.REQUEST.pack(self._serial, kind, subject)], fds or [])
                return self._answer()
            except (ConnectionError, ForkerGone) as error:
                self._give_up()
                raise ForkerGone from error

    def _answer(self) -> tuple[int, list[int]]:
        """The answer to the last request; one that was interrupted may have left its answer before it."""
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._watch, select.POLLIN)
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            ready = [fd for fd, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1000)]
            if self._channel.fileno() not in ready:
                raise ForkerGone
            message, fds, _, _ = socket.recv_fds(self._channel, forking.ANSWER.size, 1, socket.MSG_CMSG_CLOEXEC)
            if len(message) < forking.ANSWER.size:
                raise ForkerGone
            serial, answer = forking.ANSWER.unpack(message)
            if serial == self._serial:
                return answer, fds
            for fd in fds:  # nobody knows this worker
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
                os.close(fd)

    def _give_up(self) -> None:
        self._gone = True
        self._kill()
        _reap(self.pid)

    def _kill(self) -> None:
        with suppress(OSError):  # it has ended
            signal.pidfd_send_signal(self._watch, signal.SIGKILL)

    @property
    def has_ended(self) -> bool:
        """True if somebody killed the forker, which nobody notices who asks it nothing."""
        return self._ends(0.0)

    def _ends(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._watch, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def dismiss(self) -> None:
        """End it already, if it has no workers: that takes as long as theirs, and need not come after it.

        It is not asked: with nobody to wait for it has nothing left to do, and somebody may have stopped it.
        """
        if self._serial == 0:
            self._kill()

    def close(self) -> None:
        """End it once its workers have; idempotent."""
        if self._watch < 0:
            return
        if not self._gone:
            with suppress(OSError):
                self._channel.send(forking.REQUEST.pack(self._serial + 1, forking.END, 0))
            self._ends(ANSWER_SECONDS)
            self._give_up()
        self._channel.close()
        os.close(self._watch)
        self._watch = -1


def _serve(channel: socket.socket, context: BaseContext, job: Job, workers: list[int]) -> None:
    """Run the forker in the new process; does not return."""
    try:
        forking.serve(channel, context, job, workers)
    finally:
        os._exit(0)


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):  # somebody else waited for it
        os.waitpid(pid, 0)
