"""An epoch as the trainer sees it, written to the trace."""

import time
from collections.abc import Mapping

from headrace.core.stats import Division
from headrace.core.story import INCIDENTS
from headrace.engine.trainer.counters import LoaderCounters
from headrace.observing.tracing_observer import TracingObserver
from headrace.sched.hand import Delivered
from headrace.trace import format as F
from headrace.trace.trace_file import Recording

COUNTERS = ("lanes", "aside", "workers")
EVENTS = {"hand_offs": "hand-off", "restarts": "death", "repeats": "repeat"}


class RunTrace:
    """Records what happens to the batches of one run. ``number`` is what workers call the run."""

    def __init__(
        self, recording: Recording, counters: LoaderCounters, dataset: object, number: int, facts: Mapping[str, object]
    ) -> None:
        """``facts``: what else the trace says of the loader and the epoch."""
        self.number, self.recording, self._counters = number, recording, counters
        kind = type(dataset).__name__
        self._stream = stream = recording.stream()
        stream.describe(F.STREAM_TEXT, {"role": "main", "lane": -1})
        stream.describe(F.RUN_TEXT, {"run": number, "loader": f"{kind} {counters.number}", "dataset": kind, **facts})
        stream.run(self.number, time.monotonic_ns())
        self._seen: dict[str, float] = {name: getattr(counters, name) for name in EVENTS}
        self._division = Division()
        self._told = counters.story.told

    def delivered(self, batch: Delivered, start: int) -> None:
        """Note that the trainer asked at ``start`` and has the batch now."""
        now, stream, counters, seen = time.monotonic_ns(), self._stream, self._counters, self._seen
        stream.run(self.number, now)
        stream.batch(*batch, start, now - start)
        for name in COUNTERS:
            value = getattr(counters, name)
            if seen.get(name) != value:
                seen[name] = value
                stream.counter(name, value, now)
        if seen.get("threshold") != counters.threshold_seconds:
            seen["threshold"] = counters.threshold_seconds
            stream.counter("threshold_ns", int(counters.threshold_seconds * 1e9), now)
        division = counters.cache.division
        if division.why and division != self._division:
            if (division.split, division.why) != (self._division.split, self._division.why):
                stream.event(f"{F.DIVIDED}{'-'.join(map(str, division.split))}: {division.why}", 0, now)
            self._division = division
        for name, event in EVENTS.items():
            value = getattr(counters, name)
            if seen[name] != value:
                stream.event(event, int(value - seen[name]), now)
                seen[name] = value
        self._tell(now)

    def _tell(self, now: int) -> None:
        """Tell those events of the story that the trace does not have from samples and batches, by the sample's
        number.
        """
        story, told = self._counters.story, self._told
        if story.told > told:
            self._told = story.told
            for event in story.since(told):
                if event.what in INCIDENTS:
                    for index in event.indices or (0,):
                        self._stream.event(f"{event.who}: {event.what}", index if type(index) is int else 0, now)

    def copied(self, batch: Delivered, size: int, start: int, elapsed: int) -> None:
        self._stream.copy(batch.batch, size, start, elapsed)

    def span(self, name: str, start: int, elapsed: int) -> None:
        """The device was at this for so long."""
        self._stream.span(name, start, elapsed)

    def observer(self, dataset: object) -> TracingObserver:
        """The observer of samples that the trainer makes itself."""
        return TracingObserver(dataset, self.recording, run=self.number)

    def ended(self) -> None:
        self._tell(time.monotonic_ns())
        self._stream.event("epoch end", 0, time.monotonic_ns())
