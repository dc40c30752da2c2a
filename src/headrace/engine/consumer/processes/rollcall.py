"""Notices workers that never come to work, and samples that never end, while the consumer waits for them."""

import time
import warnings

from headrace.sched.roster import LaneStates

START_SECONDS = 60.0
"""Starting takes a second or two, with imports over a network perhaps ten."""
SAMPLE_SECONDS = 600.0


class RollCall:
    """Of one pool's workers. Each is complained of once; the consumer decides how long it waits (``timeout``)."""

    def __init__(self, roster: LaneStates) -> None:
        """Nobody has been started."""
        self._roster = roster
        self._since: dict[int, tuple[int, float]] = {}  # lane -> its process, when that was started
        self._complained: set[tuple[int, int]] = set()  # process, when its sample was begun (0: before its first)

    def started(self, lane: int, pid: int) -> None:
        """A process was started for this lane."""
        self._roster.started(lane)
        self._since[lane] = pid, time.monotonic()

    def seconds(self) -> float:
        """How long the consumer may sleep before it calls again."""
        return min(START_SECONDS, SAMPLE_SECONDS)

    def late(self) -> list[str]:
        """Of each worker that is not at work yet: which, and where it is."""
        return [self._where(lane) for lane in self._since if not self._roster.is_at_work(lane)]

    def call(self) -> None:
        """Warn about whoever keeps the consumer waiting for too long."""
        now, reports = time.monotonic(), []
        for lane, (pid, since) in self._since.items():
            begun = self._roster.begun(lane)
            if (pid, begun) in self._complained:
                continue
            if not self._roster.is_at_work(lane) and now - since >= START_SECONDS:
                reports.append(
                    f"{self._where(lane)}, {now - since:.0f} seconds after it was started. If it waits for a lock "
                    "that a thread of this process held when it was forked, it will wait for ever: "
                    "multiprocessing_context='forkserver' starts workers without inherited locks"
                )
            elif begun and now - begun / 1e9 >= SAMPLE_SECONDS:
                reports.append(f"DataLoader worker {lane} (pid {pid}) has been making {self._sample(lane)} for "
                               f"{now - begun / 1e9:.0f} seconds")  # fmt: skip
            else:
                continue
            self._complained.add((pid, begun))
        for report in reports:
            warnings.warn(f"{report} (py-spy dump --pid shows where it is; timeout= bounds the wait)", stacklevel=2)

    def _where(self, lane: int) -> str:
        place = "in worker_init_fn" if self._roster.is_initializing(lane) else "starting"
        return f"DataLoader worker {lane} (pid {self._since[lane][0]}) is still {place}"

    def _sample(self, lane: int) -> str:
        index = self._roster.index(lane)
        return "one sample" if index is None else f"sample {index}"
