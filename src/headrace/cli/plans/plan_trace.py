"""Parameters of the cache models as a trace of a staged dataset has them."""

from typing import Any

import numpy as np

from headrace.cli import UsageError
from headrace.trace.reader import Table, Trace

STAGES = ("fetch", "decode", "augment")
DEVICE = ("device decode", "device pixels")
"""Spans of batches whose pixels a device did."""
THERE = "on_device"
"""Stands among the parameters of a trace whose loader had a device decode and augment."""
LANES = "lanes"
"""Stands among the parameters of a trace for the number of lanes that it was recorded with."""
UNLIMITED = {"b_nic": 1e15, "b_pcie": 1e15, "b_cache": 1e15}
"""What no trace says: taken for no limit, unless it is given."""


def parameters(trace: Trace, where: str) -> dict[str, Any]:
    """All but ``s_cache``, of the first loader in the trace with samples in stages.

    Lanes read and work one sample at a time, so their rates are lanes over seconds; what the training takes in is
    counted over the time that it did not wait. With ``on_device``, ``t_da`` and ``t_a`` are the device's, which stand
    at ``device`` too, with what lanes brought.
    """
    first = int(trace.samples["run"][0]) if len(trace.samples) else 0
    loader = trace.runs[first].facts.get("loader") if trace.runs else None
    runs = [at for at, run in enumerate(trace.runs) if run.facts.get("loader") == loader]
    seconds = {name: _mean(trace, trace.operations, name, runs) for name in STAGES}
    there = {name: _mean(trace, trace.spans, name, runs) for name in DEVICE}
    if all(there.values()):
        seconds["decode"] = seconds["decode"] or 1e-9  # the device does it
    missing = [name for name, value in seconds.items() if value is None]
    samples = trace.samples[np.isin(trace.samples["run"], runs) & ~trace.samples["failed"]]
    read = samples[samples["bytes_in"] > 0]
    if missing or not len(read):
        lacks = f"no {', '.join(missing)}" if missing else "no sample that was fetched"
        raise UsageError(
            f"{where}: {lacks}; the models need a trace of a dataset with fetch, decode and augment, not all cached"
        )
    fetch, decode, augment = (value or 1e-9 for value in seconds.values())  # what takes no time limits nothing
    lanes = max(1, len(np.unique(samples["stream"])))
    encoded = float(read["bytes_in"].mean())
    found = UNLIMITED | {
        "t_gpu": _demand(trace, runs),
        "b_storage": lanes * encoded / fetch,
        "s_data": encoded,
        "n_total": float(len(np.unique(samples["index"]))),
        LANES: lanes,
    }
    brought = lanes / (decode + augment)
    if not all(there.values()):
        m = max(float(samples["bytes_out"].mean()), 1.0) / encoded
        return found | {"t_da": brought, "t_a": lanes / augment, "m": m}
    # How large samples are when they are decoded, no worker has seen: m must be given.
    given = float(trace.batches["samples"][np.isin(trace.batches["run"], runs)].mean())
    decoding, pixels = (value or 1e-9 for value in there.values())
    rates = {"t_da": given / (decoding + pixels), "t_a": given / pixels}
    return found | rates | {THERE: True, "device": rates | {"t_bring": brought}}


def _mean(trace: Trace, calls: Table, name: str, runs: list[int]) -> float | None:
    """Seconds of those calls that are called so."""
    mine = calls[(calls["name"] == trace.number(name)) & np.isin(calls["run"], runs)]
    return float(mine["elapsed"].mean()) / 1e9 if len(mine) else None


def _demand(trace: Trace, runs: list[int]) -> float:
    """Samples per second while the training did not wait, over all runs."""
    samples, busy = 0, 0
    for run in runs:
        batches = trace.batches[trace.batches["run"] == run]
        if len(batches) < 2:
            continue
        ends = batches["start"] + batches["elapsed"]
        samples += int(batches["samples"][:-1].sum())
        busy += int(batches["start"][1:].sum() - ends[:-1].sum())
    return 1e9 * samples / max(1, busy) if samples else 1e15
