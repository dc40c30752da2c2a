"""Whose call of an iteration is under way: one at a time, whatever thread it comes from."""

import sys
import threading
import time
from types import FrameType

LOOK_SECONDS = 0.001


class OneCall(dict[int, object]):
    """Empty, or under 0 the call that is under way: whoever is the first to ``setdefault(0, call)`` has it.

    Left by ``del calls[0]``. No signal handler can run between that and the steps around it, as it could with a lock's
    ``release()``. A call that an interrupt kept from leaving is not under way any more, which its thread's frames show:
    a call is also a local variable ``call`` of whoever makes it.
    """

    def wait(self, call: object, seconds: float | None = None) -> bool:
        """Until this call is under way, or time is up; False at once inside another call of this thread.

        That is where a signal handler runs: the other call goes on when it returns.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        while (other := self.setdefault(0, call)) is not call:
            thread = _thread(other)
            if thread == threading.get_ident() or (deadline is not None and time.monotonic() >= deadline):
                return False
            if thread is None:
                self.leave(other)
            else:
                # There is nothing to sleep on: whoever leaves does so by ``del``, and calls nobody.
                time.sleep(LOOK_SECONDS)
        return True

    def leave(self, call: object) -> None:
        """It is over, if it was under way at all."""
        if self.get(0) is call:
            del self[0]


def _thread(wanted: object) -> int | None:
    """Which one is in a call."""
    for thread, top in sys._current_frames().items():  # noqa: SLF001  (which is documented)
        frame: FrameType | None = top
        while frame is not None:
            if "call" in frame.f_code.co_varnames and frame.f_locals.get("call") is wanted:
                return thread
            frame = frame.f_back
    return None
