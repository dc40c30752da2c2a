"""How a running cache is divided: what is predicted, what is chosen, and when it is left alone."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.plan import splitting
from headrace.plan.partition import Split, splits
from headrace.plan.splitting import (
    GAIN,
    LEFT_TO_DEVICE,
    LIMITS,
    Compute,
    DeviceStages,
    Measured,
    best,
    found,
    move,
    predict,
)
from tests.selection import examples

PICTURES = Measured(
    samples=1e6,
    room=100e9,
    sizes=(110e3, 197e3, 602e3),
    fetch=1e-3,
    decode=5e-3,
    augment=1.5e-3,
    read=60e-6,
    read_byte=3e-10,
    lanes=14,
)
DECODED = Split(0, 100, 0)

times = st.floats(1e-6, 0.1)
measured = st.builds(
    Measured,
    samples=st.floats(10, 1e8),
    room=st.floats(1e6, 1e12),
    sizes=st.tuples(*[st.floats(100, 1e7) | st.just(float("inf"))] * 3),
    fetch=times,
    decode=times,
    augment=times,
    read=st.floats(1e-6, 1e-3),
    read_byte=st.floats(1e-11, 1e-7),
    lanes=st.integers(1, 64).map(float),
    jobs=st.floats(1, 8),
    demand=st.floats(1, 1e6) | st.just(float("inf")),
    storage=st.floats(1, 1e6) | st.just(float("inf")),
    cpu=st.none()
    | st.builds(
        Compute,
        fetch=times,
        decode=times,
        augment=times,
        read=st.floats(1e-6, 1e-3),
        read_byte=st.floats(1e-11, 1e-7),
        besides=times,
        cores=st.integers(1, 64).map(float),
    ),
    device=st.none() | st.builds(DeviceStages, decode=times, pixels=times),
)
some = st.sampled_from(list(splits()))


def shares(given, split):
    return [float(part[0]) for part in found(given, np.array([split]) / 100)]


@given(measured, some)
def test_every_sample_is_found_somewhere(given, split):
    parts = shares(given, split)
    assert sum(parts) == pytest.approx(1)
    assert min(parts) >= -1e-12


@given(measured, some)
def test_nothing_is_faster_than_what_limits_it(given, split):
    predicted = predict(given, split)
    assert predicted.throughput <= given.demand * (1 + 1e-9)
    assert predicted.limit in LIMITS
    if given.cpu is not None:
        assert predicted.throughput <= given.cpu.cores / given.cpu.besides * (1 + 1e-9)
    busy = given.lanes / min(given.augment, given.read)
    assert predicted.throughput <= max(busy, given.lanes / given.augment) * (1 + 1e-9)


@settings(max_examples=examples(30))
@given(measured)
def test_the_best_is_not_beaten_and_then_left_alone(given):
    chosen = best(given)
    others = [split for split in splits() if given.jobs > 1 or not split.augmented]
    assert all(predict(given, split).throughput <= chosen.throughput * (1 + 1e-5) for split in others)
    assert move(given, chosen.split) is None


@given(measured, some)
def test_a_move_pays(given, split):
    made = move(given, split)
    if made is not None:
        assert made.before == predict(given, split)
        assert made.after.throughput > (1 + GAIN) * made.before.throughput


@settings(max_examples=examples(30))
@given(measured)
def test_augmented_samples_are_no_use_to_a_job_that_is_alone(given):
    assert best(replace(given, jobs=1.0)).split.augmented == 0


@given(measured, some)
def test_what_cannot_be_kept_is_never_found(given, split):
    without = replace(given, sizes=(given.sizes[0], float("inf"), float("inf")))
    _, decoded, augmented, _ = shares(without, split)
    assert (decoded, augmented) == (0, 0)


@pytest.mark.parametrize(
    ("changed", "split", "throughput", "limit"),
    [
        ({}, (0, 100, 0), 3100.9, "lanes"),  # decoding is dear, and more of it is spared
        ({"decode": 1e-4}, (100, 0, 0), 7885.3, "lanes"),  # decoding is cheap: more samples fit as they are stored
        ({"demand": 2000.0}, (0, 100, 0), 2000.0, "training"),  # training is slower than any of it
        ({"storage": 500.0}, (70, 30, 0), 2322.8, "lanes"),  # the store is far away: all must be had from here
        ({"jobs": 2.0}, (0, 88, 12), 4774.4, "lanes"),  # a little room, for what one makes for the other
        ({"room": 400e9}, (0, 100, 0), 8646.8, "lanes"),  # everything fits
    ],
)
def test_what_is_chosen(changed, split, throughput, limit):
    chosen = best(replace(PICTURES, **changed))
    assert (chosen.split, chosen.limit) == (split, limit)
    assert chosen.throughput == pytest.approx(throughput, rel=1e-3)


def test_cores_set_the_pace_where_many_lanes_wait_for_the_store():
    """Eight lanes on two cores read 2.5 ms each; with all in the cache they decode on two cores, not on eight."""
    cpu = Compute(fetch=1e-4, decode=1e-3, augment=1e-4, read=5e-5, read_byte=0.0, besides=1e-4, cores=2.0)
    given = Measured(1000, 10e6, (10e3, 40e3, 100e3), 2.5e-3, 1e-3, 1e-4, 5e-5, 0.0, lanes=8, cpu=cpu)
    encoded, decoded = (predict(given, split) for split in (Split(100, 0, 0), DECODED))
    assert (encoded.limit, encoded.throughput) == ("cpu", pytest.approx(2 / 1.25e-3))
    # a quarter is found decoded and takes 0.25 ms, the others take 1.3 ms
    assert (decoded.limit, decoded.throughput) == ("cpu", pytest.approx(2 / (0.75 * 1.3e-3 + 0.25 * 0.25e-3)))
    assert move(given, DECODED) is None
    blind = move(replace(given, cpu=None), DECODED)
    assert blind is not None
    assert blind.after.split.encoded == 100


THERE = replace(  # a device does their pixels: workers read headers and draw, and nothing can be kept augmented
    PICTURES, sizes=(110e3, 560e3, float("inf")), decode=0.0, augment=1e-4, lanes=2, device=DeviceStages(1e-4, 4e-6)
)


@pytest.mark.parametrize(
    ("changed", "split", "throughput", "limit"),
    [
        ({}, (100, 0, 0), 7260.2, "lanes"),  # most fits encoded, and lanes need not fetch it
        ({"room": 1e12}, (100, 0, 0), 9615.4, "device"),  # its decoders are what all of it comes down to
        ({"room": 560e9, "device": DeviceStages(1e-3, 4e-6)}, (15, 85, 0), 6493.5, "device"),  # a slow one is spared
        ({"room": 400e9, "demand": 4000.0}, (100, 0, 0), 4000.0, "training"),
        ({"device": DeviceStages(1e-3, 4e-6)}, (0, 100, 0), 1211.8, "device"),  # of the rest it has to decode each
    ],
)
def test_what_a_device_does_is_counted_as_its_own(changed, split, throughput, limit):
    given = replace(THERE, **changed)
    made = move(given, LEFT_TO_DEVICE)
    chosen = predict(given, LEFT_TO_DEVICE) if made is None else made.after
    assert (chosen.split, chosen.limit) == (split, limit)
    assert chosen.throughput == pytest.approx(throughput, rel=1e-3)


@given(measured, some)
def test_a_device_is_one_more_limit_and_no_more(given, split):
    stages = given.device or DeviceStages(1e-3, 1e-4)
    with_it, without = predict(replace(given, device=stages), split), predict(replace(given, device=None), split)
    assert with_it.throughput <= min(without.throughput, 1 / stages.pixels) * (1 + 1e-9)
    assert (with_it.limit == "device") == (with_it.throughput < without.throughput)
    decoded = 1 - sum(shares(given, split)[1:3])
    assert with_it.throughput <= 1 / (decoded * stages.decode + stages.pixels) * (1 + 1e-9)


def test_too_little_is_left_alone():
    cheap = replace(PICTURES, decode=7e-4)
    assert best(cheap).split != DECODED
    assert best(cheap).throughput > predict(cheap, DECODED).throughput
    assert move(cheap, DECODED) is None
    moved = move(replace(PICTURES, storage=500.0), DECODED)
    assert (moved.before.limit, moved.after.split) == ("storage", (70, 30, 0))


def test_it_takes_no_time_to_speak_of():
    assert len(splitting._ALL) == 5151  # solved at once, by columns
