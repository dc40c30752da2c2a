"""A loader's figures as OpenTelemetry metrics, for any backend it exports to (Prometheus among them)."""

import weakref
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from headrace.core.stats import Stats

COUNTERS: dict[str, tuple[str, str, Callable[[Stats], float]]] = {
    "headrace.epochs": ("{epoch}", "Iterations started", lambda stats: stats.epochs),
    "headrace.batches": ("{batch}", "Batches delivered", lambda stats: stats.batches),
    "headrace.samples": ("{sample}", "Samples delivered", lambda stats: stats.samples),
    "headrace.wait": ("s", "Time the trainer was blocked", lambda stats: stats.wait_seconds),
    "headrace.slow": ("{sample}", "Samples over the threshold", lambda stats: stats.slow),
    "headrace.hand_offs": ("{hand-off}", "Places handed over", lambda stats: stats.hand_offs),
    "headrace.restarts": ("{worker}", "Workers replaced after their death", lambda stats: stats.restarts),
    "headrace.repeats": ("{sample}", "Samples made again after a death", lambda stats: stats.repeats),
    "headrace.skipped": ("{sample}", "Samples left out after an error", lambda stats: stats.failed),
}
GAUGES: dict[str, tuple[str, str, Callable[[Stats], float]]] = {
    "headrace.workers": ("{worker}", "Worker processes", lambda stats: stats.workers),
    "headrace.lanes": ("{lane}", "Workers that may work at once", lambda stats: stats.lanes),
    "headrace.threshold": ("s", "Cost from which a sample is slow", lambda stats: stats.threshold_seconds),
    "headrace.slab": ("By", "Shared memory that batches have touched", lambda stats: stats.slab_bytes),
}


_observed: "weakref.WeakKeyDictionary[Meter, list[tuple[weakref.ref[Any], str]]]" = weakref.WeakKeyDictionary()
"""The loaders of each meter: a metric exists once, whatever the number of loaders that report it."""


def observe(loader: Any, name: str, meter: Meter | None = None) -> None:
    """Report the loader's ``stats()`` under ``loader=name`` whenever metrics are collected, for as long as it lives.

    ``meter``: of the provider to report to; without one, the application's global provider.
    """
    meter = _default() if meter is None else meter
    known = _observed.get(meter)
    if known is None:
        known = _observed[meter] = []
        for metric, (unit, text, figure) in COUNTERS.items():
            meter.create_observable_counter(metric, [_collector(known, figure)], unit, text)
        for metric, (unit, text, figure) in GAUGES.items():
            meter.create_observable_gauge(metric, [_collector(known, figure)], unit, text)
    known.append((weakref.ref(loader), name))


@cache
def _default() -> Meter:
    return metrics.get_meter("headrace")


def _collector(
    known: "list[tuple[weakref.ref[Any], str]]", figure: Callable[[Stats], float]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def collect(_: CallbackOptions) -> Iterable[Observation]:
        living = [(loader(), name) for loader, name in known]
        return [Observation(figure(loader.stats()), {"loader": name}) for loader, name in living if loader is not None]

    return collect
