"""Ends a process whose test takes too long: ``python watcher.py PID REPORT``, which hears on its input what runs.

A process of its own, because a test that hangs in C may hold the interpreter's lock for ever. The one it watches has
``faulthandler`` on: it is aborted, which writes the stacks of all its threads, and killed if that does not end it.
What it started goes with it, but for what began a session of its own: servers that others use too.
"""

import os
import select
import signal
import sys
import time
from pathlib import Path

PATIENCE_S = 10.0
"""How long a process may take to write its stacks and end."""


def watch(pid: int, report: int) -> None:
    """Until that process ends, or lets go of our input. A line is "SECONDS TEST", or "0" between tests."""
    process = os.pidfd_open(pid)
    deadline, running, heard = float("inf"), "", b""
    while True:
        left = None if deadline == float("inf") else max(0.0, deadline - time.monotonic())
        readable = select.select([0, process], [], [], left)[0]
        if process in readable:
            return
        if not readable:
            _end(process, pid, report, running)
            return
        more = os.read(0, 65536)
        if not more:
            return
        *lines, heard = (heard + more).split(b"\n")
        for line in lines:
            seconds, _, running = line.decode().partition(" ")
            deadline = time.monotonic() + float(seconds) if float(seconds) else float("inf")


def _end(process: int, pid: int, report: int, running: str) -> None:
    signal.pidfd_send_signal(process, signal.SIGSTOP)  # or it might start one more
    family = _descendants(pid)
    os.write(report, f"{running}\n".encode())
    signal.pidfd_send_signal(process, signal.SIGABRT)
    signal.pidfd_send_signal(process, signal.SIGCONT)
    if not select.select([process], [], [], PATIENCE_S)[0]:
        signal.pidfd_send_signal(process, signal.SIGKILL)
    for child in family:
        signal.pidfd_send_signal(child, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    """Handles of the processes in this one's session that it started, and of those they started."""
    session, parents = os.getsid(pid), {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[3]) == session:
            parents[int(entry.name)] = int(fields[1])
    family = {pid}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    handles = []
    for child in family - {pid}:
        try:
            handles.append(os.pidfd_open(child))
        except ProcessLookupError:
            continue
    return handles


if __name__ == "__main__":
    if os.fork():  # nobody's child: tests look at theirs
        os._exit(0)
    watch(int(sys.argv[1]), int(sys.argv[2]))
