"""How a run treats its user."""

from dataclasses import dataclass

from headrace.engine.consumer.counters import Errors, LoaderCounters


@dataclass(frozen=True, slots=True)
class Service:
    """What a run makes of failures, what it counts, and how long it lets him wait."""

    errors: Errors
    counters: LoaderCounters
    timeout: float = 0.0
    """Seconds without a batch after which it raises; 0: it waits."""
