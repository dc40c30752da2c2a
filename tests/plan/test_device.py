"""What a device that decodes and augments would give a job, and what is said where its rates are not known."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.plan import device, splitting
from headrace.plan.device import DeviceRates, measured, planned
from headrace.plan.parameters import Parameters
from headrace.plan.splitting import LEFT_TO_DEVICE
from tests.plan.servers import parameters

JOB = parameters("imagenet-1k", "aws")
H200 = DeviceRates(9000, 250_000, 8000)

rates = st.floats(1, 1e6)
machines = st.builds(
    Parameters,
    t_gpu=rates,
    t_da=rates,
    t_a=rates,
    b_nic=st.just(1e15),
    b_pcie=st.just(1e15),
    b_cache=st.floats(1e6, 1e12),
    b_storage=st.floats(1e5, 1e12),
    s_cache=st.floats(0, 1e12),
    s_data=st.floats(100, 1e7),
    n_total=st.floats(10, 1e8),
    m=st.floats(0.5, 20),
    n=st.integers(1, 8),
)
devices = st.builds(
    lambda both, factor, bring: DeviceRates(both, both * factor, bring),
    rates,
    st.floats(1, 100),
    st.none() | rates,
)


@pytest.mark.parametrize(
    ("changed", "given_rates", "throughput", "limit", "keep"),
    [
        ({}, None, 9989, "training", "encoded"),  # no more than training takes, whatever the device does
        ({}, H200, 4614.8, "lanes", "encoded"),  # 1 / 8000 s to bring one, and 114,620 / 1.25e9 s to read it
        ({"b_cache": 1e15}, H200, 8000, "lanes", "encoded"),
        ({"b_cache": 1e15}, DeviceRates(9600, 250_000), 9600, "device", "encoded"),
        ({"s_cache": 0, "b_cache": 1e15}, H200, 256e6 / 114_620, "storage", "encoded"),
        ({"s_cache": 2e12, "b_cache": 1e15}, DeviceRates(500, 250_000), 9989, "training", "decoded"),
    ],
)
def test_what_it_comes_to(changed, given_rates, throughput, limit, keep):
    job = replace(JOB, **changed)
    found = planned(job, 1, given_rates)
    assert found.known is (given_rates is not None)
    assert found.chosen.throughput == pytest.approx(throughput, rel=1e-3)
    assert (found.chosen.limit, found.form) == (limit, keep)
    assert found.whole == job.n_total * job.s_data * (job.m if keep == "decoded" else 1)


def test_as_fast_as_it_needs_to_be_is_fast_enough_and_slower_is_not():
    bound = planned(JOB, 1, None)
    enough = planned(JOB, 1, DeviceRates(bound.needs, math.inf))
    slower = planned(JOB, 1, DeviceRates(bound.needs / 2, math.inf))
    assert enough.chosen.throughput == pytest.approx(bound.chosen.throughput)
    assert slower.chosen.throughput < bound.chosen.throughput


@given(machines, devices)
def test_no_device_gives_more_than_is_said_to_be_possible(machine, known):
    most, found = planned(machine, 1, None), planned(machine, 1, known)
    best = splitting.best(measured(machine, 1, device.UNLIMITED)).throughput
    assert found.chosen.throughput <= best * (1 + 1e-9)
    assert most.chosen.throughput >= best / (1 + splitting.GAIN) * (1 - 1e-9)
    assert found.chosen.throughput <= machine.n * known.t_a * (1 + 1e-9)
    assert found.chosen.split.augmented == 0


@given(machines, devices)
def test_samples_are_left_encoded_unless_another_form_pays(machine, known):
    found, there = planned(machine, 1, known), measured(machine, 1, known)
    encoded = splitting.predict(there, LEFT_TO_DEVICE).throughput
    if found.chosen.split != LEFT_TO_DEVICE:
        assert found.chosen.throughput > encoded * (1 + splitting.GAIN)
    assert 0 <= found.needs <= found.chosen.throughput * (1 + 1e-9)


@given(machines, devices)
def test_cores_that_decode_faster_change_nothing(machine, known):
    quicker = replace(machine, t_da=2 * machine.t_da, t_a=2 * machine.t_a)
    assert planned(machine, 1, known) == planned(quicker, 1, known)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (9000, "takes an object such as"),
        ({"t_da": 9000}, "with t_da, t_a, t_bring"),
        ({"t_da": 9000, "t_a": 1e5, "gpu": 3}, "with t_da, t_a, t_bring"),
        ({"t_da": -1, "t_a": 1e5}, "device.t_da must be positive"),
        ({"t_da": 9000, "t_a": "fast"}, "device.t_a must be a number"),
        ({"t_da": 9000, "t_a": 800}, "device.t_a is less than device.t_da"),
    ],
)
def test_wrong_rates_are_named(values, said):
    with pytest.raises(ValueError, match=said):
        DeviceRates.of(values)


def test_rates_are_read_as_they_are_written():
    assert DeviceRates.of(H200.data()) == H200
    assert DeviceRates(5, 6).data() == {"t_da": 5, "t_a": 6}
