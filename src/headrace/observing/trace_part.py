"""A trace's part in an iteration: workers and the trainer record what happens to samples and batches."""

from typing import Any

from headrace.engine.plugs import EpochRecord, Part, PartFacts
from headrace.engine.worker.memory import WorkerMemory
from headrace.engine.worker.observer import Observer, Observing
from headrace.observing.operations import Operations
from headrace.observing.tracing import RunTrace
from headrace.observing.tracing_observer import TracingObserver
from headrace.trace.trace_file import Recording


class RecordPart(Part):
    """See ``Part``."""

    def __init__(self, facts: PartFacts, recording: Recording) -> None:
        self._facts, self._recording = facts, recording

    def observing(self, observing: Observing) -> Observing:
        """See ``Part``."""
        return RecordedObserving(self._recording)

    def operations(self) -> list[str]:
        """See ``Part``."""
        return Operations(self._facts.settings.dataset).names

    def record(self, number: int, facts: dict[str, Any]) -> EpochRecord:
        """See ``Part``."""
        own = self._facts
        return RunTrace(self._recording, own.counters, own.settings.given, number, facts)


class RecordedObserving(Observing):
    """The orders by which a worker records its samples."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def observer(self, dataset: Any, memory: WorkerMemory) -> Observer:
        """See ``Observing``."""
        return TracingObserver(dataset, self._recording, memory)
