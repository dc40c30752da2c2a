"""The trainer's handlers of signals, in a process forked from it: they never run there."""

import signal
from collections.abc import Iterable

TIMERS = frozenset({signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF})
"""Sent by a timer that a process set for itself: the handler it inherited is the one it expects."""
FATAL = frozenset({signal.SIGTERM, signal.SIGCHLD})
"""What these mean to a process is the system's business, whatever the trainer does about them."""


def disown(mask: Iterable[int]) -> None:
    """Forget, in a new process, the handlers of the one it was forked from, then let signals in as ``mask`` says.

    The trainer decides about what is sent to the whole group, as it does about Ctrl-C, so what it handles is ignored
    here; SIGTERM ends the process. Signals must have been held since before the fork.
    """
    signal.set_wakeup_fd(-1)  # an event loop's of the trainer, which would take our signals for its own
    for kind in signal.valid_signals():
        if callable(signal.getsignal(kind)) and kind not in TIMERS:
            signal.signal(kind, signal.SIG_DFL if kind in FATAL else signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
