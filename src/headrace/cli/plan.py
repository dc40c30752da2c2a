"""Predict how fast samples arrive from each form of a cache, and choose its split."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from headrace.cache.cache_options import parse_size
from headrace.cli import UsageError, answer
from headrace.cli.plans import plan_device, plan_elsewhere
from headrace.cli.plans.plan_trace import LANES, THERE, parameters
from headrace.cli.screen import screen, table
from headrace.plan import bottleneck, device, partition, splitting
from headrace.plan.device import DeviceRates
from headrace.plan.parameters import NVLink, Parameters, gradient_bytes
from headrace.plan.partition import Split
from headrace.trace.reader import read

NAMES = {"a": "augmented", "d": "decoded", "e": "encoded", "s": "storage"}
TABLE = """
parameters, in a JSON object: t_gpu, t_da, t_a (samples/s of a node: training; decoding and augmenting; augmenting),
b_nic, b_pcie (bytes/s of a node), b_cache, b_storage (bytes/s of the service), s_cache, s_data (bytes of the cache and
of a mean encoded sample), n_total (samples), m (decoded over encoded size); optional: c_nw, c_pcie (gradient bytes per
sample), n (nodes), device (an object with t_da, t_a, the same of a node's devices with on_device=True, and t_bring,
pictures/s that its CPUs bring there).
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = TABLE
    parser.add_argument("--params", metavar="FILE", help="the parameters, as JSON; - reads them from stdin")
    parser.add_argument(
        "--trace", metavar="FILE", help="take them from a trace of a staged dataset; --params gives others, or the rest"
    )
    parser.add_argument("--cache-size", metavar="SIZE", help="s_cache, such as 8GiB")
    parser.add_argument("--split", metavar="E-D-A", help="predict this split as well, such as 40-60-0")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="jobs that share the cache, at one speed (1)")
    gradients = parser.add_argument_group("gradients", "instead of c_nw and c_pcie")
    gradients.add_argument("--model-bytes", type=float, metavar="BYTES", help="size of the gradients")
    gradients.add_argument("--gpus", type=int, default=1, metavar="K", help="accelerators of a node (1)")
    gradients.add_argument("--batch", type=int, default=1, metavar="B", help="samples a node takes in per step (1)")
    gradients.add_argument("--nvlink", choices=["none", "node", "cluster"], default="none", help="how far it reaches")


def run(options: argparse.Namespace) -> int:
    try:
        values = _given(options)
        there, lanes = values.pop(THERE, False), values.pop(LANES, None)
        rates = DeviceRates.of(values.pop("device")) if "device" in values else None
        given = _parameters(options, values)
        split = None if options.split is None else Split.parse(options.split)
    except ValueError as error:
        raise UsageError(str(error)) from None
    own = _loader(given, options.jobs, rates if there else None)
    there_too = plan_device.computed(given, options.jobs, rates, None if there else own["throughput"])
    found = _computed(given, split, "device" if there else "cpu") | {"loader": own, "on_device": there_too}
    found["elsewhere"] = plan_elsewhere.computed(given, own, lanes)
    answer(options, found, lambda: _show(found))
    return 0


def _parameters(options: argparse.Namespace, values: dict[str, Any]) -> Parameters:
    source = options.params or options.trace
    if options.model_bytes is not None:
        double = sorted({"c_nw", "c_pcie"} & set(values))
        if double:
            raise UsageError(f"{source} gives {' and '.join(double)}: leave them out or leave out --model-bytes")
        given = Parameters.of(values)
        between, within = gradient_bytes(
            options.model_bytes,
            nodes=int(given.n),
            accelerators=options.gpus,
            batch=options.batch,
            nvlink=NVLink(options.nvlink),
        )
        values = values | {"c_nw": between, "c_pcie": within}
    try:
        return Parameters.of(values)
    except ValueError as error:
        raise UsageError(f"{source}: {error}") from None


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """The parameters from the trace, and over it what was said."""
    if options.params is None and options.trace is None:
        raise UsageError("give the parameters with --params FILE, or a trace to take them from with --trace FILE")
    values: dict[str, Any] = {}
    if options.trace is not None:
        values |= parameters(read(options.trace), options.trace)
    if options.params is not None:
        values |= _read(options.params)
    if options.cache_size is not None:
        values["s_cache"] = parse_size(options.cache_size, "--cache-size")
    if options.trace is not None and "s_cache" not in values:
        raise UsageError("a trace does not say how large the cache shall be: add --cache-size 8GiB, say")
    return values


def _read(name: str) -> dict[str, Any]:
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {name}: {getattr(error, 'strerror', None) or 'it is not text'}") from None
    try:
        values = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{name} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise UsageError(f"{name} must hold a JSON object of parameters")
    return values


def _computed(given: Parameters, split: Split | None, cpu: str) -> dict[str, Any]:
    """Results of both models. ``cpu``: who decodes and augments."""
    equations, resources = partition.best(given), bottleneck.best(given)
    allowed = partition.limits(given)

    def called(limit: str) -> str:
        return cpu if limit == "cpu" else limit

    found: dict[str, Any] = {
        "split": list(equations.split),
        "throughput": equations.throughput,
        "rates": partition.rates(given)._asdict(),
        "limits": {form: called(min(limits, key=lambda name: limits[name])) for form, limits in allowed.items()},
        "samples": equations.held._asdict(),
        "bottleneck": {
            "split": list(resources.split),
            "throughput": resources.throughput,
            "rates": {form: rate for form, (rate, _) in bottleneck.forms(given).items()},
            "limits": {form: called(name) for form, (_, name) in bottleneck.forms(given).items()},
            "samples": resources.held._asdict(),
            "limit": called(bottleneck.bottleneck(given, resources.held)),
        },
        "parameters": given.data(),
    }
    if split is not None:
        found["asked"] = {
            "split": list(split),
            "throughput": partition.predict(given, split).throughput,
            "bottleneck": {
                "throughput": bottleneck.predict(given, split).throughput,
                "limit": called(bottleneck.bottleneck(given, partition.held(given, split))),
            },
        }
    return found


def _loader(given: Parameters, jobs: int, rates: DeviceRates | None) -> dict[str, Any]:
    """The split a loader's own planner would choose: its cache serves no augmented sample twice to a job.

    ``rates``: of the device that does its pixels, if one does.
    """
    if jobs < 1:
        raise UsageError("--jobs takes a number of 1 or more")
    measured = splitting.of_parameters(given, jobs) if rates is None else device.measured(given, jobs, rates)
    best, none = splitting.best(measured), splitting.without(measured)
    return {
        "jobs": jobs,
        "split": list(best.split),
        "throughput": best.throughput,
        "limit": best.limit,
        "without_cache": none.throughput,
        "pays": best.throughput > none.throughput * (1 + splitting.GAIN),
    }


def _show(found: dict[str, Any]) -> None:
    out, other = screen(), found["bottleneck"]
    forms = table(
        "samples/s found in one form", "form", "held back by", "held back by ", "equations", "resources", left=3
    )
    for form, name in NAMES.items():
        forms.add_row(
            name,
            found["limits"][form],
            other["limits"][form],
            f"{found['rates'][form]:,.0f}",
            f"{other['rates'][form]:,.0f}",
        )
    out.print(forms)
    splits = table(
        "splits of the cache", "model", "encoded %", "decoded %", "augmented %", "samples/s", "samples not cached"
    )
    total = found["parameters"]["n_total"]
    for name, each in (("equations (Seneca, Eq. 9)", found), ("resources (the busiest)", other)):
        away = f"{each['samples']['s'] / total:.0%}"
        splits.add_row(name, *map(str, each["split"]), f"{each['throughput']:,.0f}", away)
    asked = found.get("asked")
    if asked:
        for name, each in (("asked, equations", asked), ("asked, resources", asked["bottleneck"])):
            splits.add_row(name, *map(str, asked["split"]), f"{each['throughput']:,.0f}", "")
    out.print(splits)
    own = found["loader"]
    jobs = "a job alone" if own["jobs"] == 1 else f"{own['jobs']} jobs"
    if own["pays"]:
        split = "-".join(map(str, own["split"]))
        out.print(
            f"A loader would choose {split} for {jobs}: {own['throughput']:,.0f} samples/s, "
            f"{own['without_cache']:,.0f} without a cache, with {own['limit']} to set the pace."
        )
    else:
        out.print(f"For {jobs} no cache is needed: {own['without_cache']:,.0f} samples/s come without one.")
    out.print(plan_device.told(found["on_device"], found["parameters"]["s_cache"]))
    if found["elsewhere"] is not None:
        out.print(plan_elsewhere.told(found["elsewhere"]))
    out.print(f"With the resources' split, the pace is set by: {other['limit']}.", style="dim")
