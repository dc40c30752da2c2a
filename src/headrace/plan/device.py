"""Gain from a device that decodes and augments: predicted from its rates, or bounded without them."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from headrace.plan import splitting
from headrace.plan.parameters import Parameters, check
from headrace.plan.splitting import LEFT_TO_DEVICE, Measured, SplitPrediction


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """Rates of a node's devices, in pictures per second."""

    t_da: float
    """That its devices decode and augment."""
    t_a: float
    """That they only augment."""
    t_bring: float | None = None
    """That its CPUs bring there: headers are read, numbers drawn, bytes put together. None: not known, no limit."""

    @classmethod
    def of(cls, values: object) -> "DeviceRates":
        """The rates at ``device`` in a JSON object of parameters; ``ValueError`` says what is wrong with it."""
        names = [field.name for field in fields(cls)]
        if not isinstance(values, Mapping) or set(values) - set(names) or {"t_da", "t_a"} - set(values):
            raise ValueError(
                f'parameter device takes an object such as {{"t_da": 9000, "t_a": 250000}}, with {", ".join(names)}'
            )
        for name, value in values.items():
            check(f"device.{name}", value)
        if values["t_a"] < values["t_da"]:
            raise ValueError(
                "parameter device.t_a is less than device.t_da: augmenting alone takes no longer than both"
            )
        return cls(**values)

    def data(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


UNLIMITED = DeviceRates(math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class OnDevicePlan:
    """Choice and rate of a loader with ``on_device=True``."""

    known: bool
    """Whether the device's rates are; if not, it gets ``chosen.throughput`` at most."""
    chosen: SplitPrediction
    form: str
    """In which most of the room is: encoded or decoded."""
    whole: float
    """Bytes of all samples in that form."""
    needs: float
    """Pictures per second that the device has to decode for that."""


def measured(given: Parameters, jobs: float, rates: DeviceRates) -> Measured:
    """The planner's input with so many jobs at one speed whose pixels devices do."""
    without = splitting.of_parameters(given, jobs)
    return splitting.left_to_device(without, given.n * rates.t_da, given.n * rates.t_a, rates.t_bring or math.inf)


def planned(given: Parameters, jobs: float, rates: DeviceRates | None) -> OnDevicePlan:
    """The plan for ``jobs`` at one speed. Without ``rates`` all else that limits them is what is said."""
    there = measured(given, jobs, rates or UNLIMITED)
    move = splitting.move(there, LEFT_TO_DEVICE)
    chosen = splitting.predict(there, LEFT_TO_DEVICE) if move is None else move.after
    decoded = chosen.split.decoded > chosen.split.encoded
    size = given.m * given.s_data if decoded else given.s_data
    needs = chosen.throughput * splitting.encoded_share(there, chosen.split)
    return OnDevicePlan(rates is not None, chosen, "decoded" if decoded else "encoded", size * given.n_total, needs)
