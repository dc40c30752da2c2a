"""Report of ``headrace plan`` on ``on_device=True``, with the figures behind it."""

from typing import Any

from headrace.plan import splitting
from headrace.plan.device import DeviceRates, planned
from headrace.plan.parameters import Parameters
from headrace.trace.analysis.advice import H200

MEASURED = f"an H200 decodes {H200} JPEG pictures a second"
LACKING = "nothing says how fast the device decodes"
HOW = (
    'Measured by a trace of a run with on_device=True, or given in --params as "device": {"t_da": ..., "t_a": ...}, '
    "it is predicted."
)


def computed(given: Parameters, jobs: int, rates: DeviceRates | None, instead_of: float | None) -> dict[str, Any]:
    """The figures for ``--json``. ``rates``: None where they are not known; ``instead_of``: samples per second of
    the same loader without a device, where that is known.
    """
    plan = planned(given, jobs, rates)
    found: dict[str, Any] = {
        "known": plan.known,
        "throughput": plan.chosen.throughput,
        "limit": plan.chosen.limit,
        "split": list(plan.chosen.split),
        "keep": plan.form,
        "bytes": plan.whole,
        "needs": plan.needs,
        "instead_of": instead_of,
        "device": None if rates is None else rates.data(),
    }
    if instead_of is not None:
        found["pays"] = plan.chosen.throughput > instead_of * (1 + splitting.GAIN)
    if rates is None:
        found["why"] = f"{LACKING}; {MEASURED}"
    return found


def told(found: dict[str, Any], cache_size: float) -> str:
    """The words for people."""
    rate, before, pace = found["throughput"], found["instead_of"], found["limit"]
    against = "" if before is None else f" instead of {before:,.0f}"
    fits = "fit into the cache" if found["bytes"] <= cache_size else f"take more than its {cache_size / 1e9:,.1f}"
    keep = f"Keep samples {found['keep']}: all of them, {found['bytes'] / 1e9:,.1f} GB, {fits}."
    if not found["known"]:
        return (
            f"What on_device=True would give cannot be known: {LACKING}. One that decodes {found['needs']:,.0f} "
            f"pictures a second would give {rate:,.0f} samples/s{against}, with {pace} to set the pace; a faster "
            f"one no more ({MEASURED}). {keep} {HOW}"
        )
    rates = found["device"]
    bring = rates.get("t_bring")
    cores = f"cores bring {bring:,.0f} there" if bring else "what cores need to bring them there is not known"
    gain = "" if found.get("pays", True) else " It does not pay."
    return (
        f"With on_device=True: {rate:,.0f} samples/s{against}, with {pace} to set the pace.{gain} {keep} Pictures a "
        f"second: the device decodes and augments {rates['t_da']:,.0f}, augments {rates['t_a']:,.0f}; {cores}."
    )
