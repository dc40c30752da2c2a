"""Division of a running cache between encoded, decoded and augmented samples, from what its jobs measure.

The model is that of ``bottleneck``: each resource is busy for so long per sample, and the busiest sets the pace. What
is different is what this cache does: forms have sizes of their own, lanes are busy while they read, and an augmented
sample is served once to each *other* job. So it saves nothing for a job that is alone, and for several it is a
hand-over, for which a little room is enough. And cores are counted for themselves: there may be more lanes than cores,
so that some wait while others compute, and training takes its part of the cores too. Where a device decodes and
augments, lanes only bring samples, and the device is one more resource.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.plan.parameters import Parameters
from headrace.plan.partition import PERCENT, Split, splits

GAIN = 0.05
"""By this much a split must be predicted to be faster than the present one, or nothing is moved."""
HAND_OVER = 0.02
"""With room for this share of the dataset, jobs hand to each other 0.9 to 1.0 of what they can (as simulated)."""
LIMITS = ("lanes", "storage", "training", "cpu", "device")
"""What may set the pace: making samples, reading what is not cached, the jobs themselves, the cores of all, and the
device that does their pixels.
"""
LEFT_TO_DEVICE = Split(PERCENT, 0, 0)
"""What jobs whose pixels a device does begin with: most samples fit, and decoding costs no core anything."""
NUDGE = 1e-6
_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Compute:
    """CPU seconds that the stages of a sample take, all else that is done for it, and the cores there are for it."""

    fetch: float
    decode: float
    augment: float
    read: float
    read_byte: float
    besides: float
    cores: float


@dataclass(frozen=True, slots=True)
class DeviceStages:
    """Seconds that a device is busy for a sample, of all that jobs are served: decoding one that comes encoded, and
    with the pixels of any.
    """

    decode: float
    pixels: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of all jobs that share a cache, together. Seconds are those of one lane."""

    samples: float
    """Of the dataset."""
    room: float
    """Bytes for entries."""
    sizes: tuple[float, float, float]
    """Bytes of an entry, encoded, decoded and augmented; infinite for a form that cannot be kept."""
    fetch: float
    decode: float
    augment: float
    read: float
    """Seconds to have an entry, however small."""
    read_byte: float
    """And for each of its bytes."""
    lanes: float
    jobs: float = 1.0
    """As many as there were at the speed of the fastest: all speeds over the highest."""
    demand: float = np.inf
    """Samples per second that they would take if they never waited."""
    storage: float = np.inf
    """Samples per second that can be had from a store that lanes do not read from themselves."""
    cpu: Compute | None = None
    """None: not known, and taken for no limit."""
    device: DeviceStages | None = None
    """None: no device does pixels."""


class SplitPrediction(NamedTuple):
    """Prediction for a split."""

    split: Split
    throughput: float
    """Samples per second, of all jobs."""
    limit: str
    """One of ``LIMITS``."""


class Move(NamedTuple):
    """A move from one split to another."""

    before: SplitPrediction
    after: SplitPrediction


class Found(NamedTuple):
    """The form in which a served sample is found, as shares of all that are served."""

    encoded: _Floats
    decoded: _Floats
    augmented: _Floats
    missed: _Floats


_ALL = np.array(sorted(splits(), key=lambda split: (split.augmented, split.encoded)), np.float64) / PERCENT
"""Of equals, the first: what nobody needs is decoded."""


def found(given: Measured, parts: _Floats) -> Found:
    """The shares found for splits, one in each row of ``parts``, as shares of the room."""
    held = [np.minimum(parts[:, at] * given.room / given.sizes[at], given.samples) for at in range(3)]
    decoded = held[1] / given.samples
    encoded = np.minimum(held[0] / given.samples, 1 - decoded)
    absent = 1 - decoded - encoded
    handed = absent * (1 - 1 / given.jobs)  # brought by another job in the same epoch, and still here
    augmented = handed * np.minimum(1.0, held[2] / (HAND_OVER * given.samples))
    kept = decoded + encoded
    others = np.where(kept > 0, handed - augmented, 0.0)
    mine = np.divide(decoded, kept, out=np.zeros_like(kept), where=kept > 0)
    return Found(encoded + others * (1 - mine), decoded + others * mine, augmented, absent - augmented - others)


def _spent(given: Measured, at: Found, cost: Measured | Compute) -> _Floats:
    """Seconds that the stages of a sample take, each as often as it is run."""
    sizes = [min(size, given.room) for size in given.sizes]  # a form that cannot be kept is never found
    read = [cost.read + cost.read_byte * size for size in sizes]
    return (
        at.missed * (cost.fetch + cost.decode + cost.augment)
        + at.encoded * (read[0] + cost.decode + cost.augment)
        + at.decoded * (read[1] + cost.augment)
        + at.augmented * read[2] * given.jobs / max(given.jobs - 1, 1e-9)  # one writes it for all others
    )


def _busy(given: Measured, parts: _Floats) -> _Floats:
    """Seconds per sample that each of ``LIMITS`` is busy, a row each."""
    at, cpu, device = found(given, parts), given.cpu, given.device
    nothing = np.zeros(len(parts))
    return np.stack(
        [
            _spent(given, at, given) / given.lanes,
            at.missed / given.storage,
            np.full(len(parts), 1 / given.demand),
            nothing if cpu is None else (_spent(given, at, cpu) + cpu.besides) / cpu.cores,
            nothing if device is None else (at.missed + at.encoded) * device.decode + device.pixels,
        ]
    )


def predict(given: Measured, split: Split) -> SplitPrediction:
    """The prediction for a split."""
    busy = _busy(given, np.array([split], np.float64) / PERCENT)[:, 0]
    return SplitPrediction(split, float(1 / busy.max()), LIMITS[int(busy.argmax())])


def best(given: Measured) -> SplitPrediction:
    """The best of all splits in steps of one percent; of several, the one that keeps all resources least busy.

    A job that is alone would only write augmented samples.
    """
    rows = _ALL if given.jobs > 1 else _ALL[_ALL[:, 2] == 0]
    busy = _busy(given, rows)
    worth = (1 / busy.max(axis=0)) * (1 + NUDGE / (1 + busy.sum(axis=0) / busy.max(axis=0)))
    chosen = Split(*(round(part) for part in (PERCENT * rows[int(worth.argmax())]).tolist()))
    return predict(given, chosen)


def of_parameters(given: Parameters, jobs: float) -> Measured:
    """The planner's input for a machine that is described and not measured.

    It is as fast as its CPUs, storage, cache and training are said to be, with so many jobs at one speed.
    """
    return Measured(
        samples=given.n_total,
        room=given.s_cache,
        sizes=(given.s_data, given.m * given.s_data, given.m * given.s_data),
        fetch=0.0,
        decode=max(0.0, 1 / given.t_da - 1 / given.t_a),
        augment=1 / given.t_a,
        read=0.0,
        read_byte=given.n / given.b_cache,
        lanes=given.n,
        jobs=jobs,
        demand=given.n * given.t_gpu,
        storage=given.b_storage / given.s_data,
    )


def left_to_device(given: Measured, both: float, pixels: float, bring: float) -> Measured:
    """The same jobs if devices decode and augment ``both``, or do ``pixels`` alone, for so many samples per second, and
    each lane brings ``bring`` of them. Nothing can be kept augmented then.
    """
    return replace(
        given,
        sizes=(*given.sizes[:2], np.inf),
        decode=0.0,
        augment=1 / bring,
        cpu=None,
        device=DeviceStages(decode=max(0.0, 1 / both - 1 / pixels), pixels=1 / pixels),
    )


def encoded_share(given: Measured, split: Split) -> float:
    """The share of served samples that has to be decoded: found encoded, or not at all."""
    at = found(given, np.array([split], np.float64) / PERCENT)
    return float(at.encoded[0] + at.missed[0])


def without(given: Measured) -> SplitPrediction:
    """The prediction with no cache at all."""
    return predict(replace(given, room=1e-9), Split(0, PERCENT, 0))


def move(given: Measured, now: Split) -> Move | None:
    """A better split than the present one; None where too little is to be gained."""
    before, after = predict(given, now), best(given)
    return Move(before, after) if after.throughput > before.throughput * (1 + GAIN) else None
