"""The published equations against values worked out from the published tables, and what follows from their form."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.plan import partition
from headrace.plan.parameters import NVLink, Parameters, gradient_bytes
from headrace.plan.partition import Split
from tests.plan.servers import parameters

GOLDEN = [
    ("imagenet-1k", "in-house", 1, (2130, 2130, 2132, 2132), "100-0-0", "58-42-0", 0.01),
    ("imagenet-1k", "in-house", 2, (2130, 2130, 4264, 4264), "100-0-0", "40-59-1", 4.5),
    ("imagenet-1k", "aws", 1, (2130, 2130, 3432, 2233), "100-0-0", "0-81-19", 36.5),
    ("imagenet-1k", "azure", 1, (6390, 6390, 9783, 2181), "100-0-0", "0-48-52", 55.2),
    ("imagenet-1k", "azure", 2, (6390, 6390, 19566, 2181), "100-0-0", "0-53-47", 77.6),
    ("openimages", "in-house", 1, (773, 773, 2132, 1583), "100-0-0", "62-37-1", 3.1),
    ("openimages", "in-house", 2, (773, 773, 3958, 1583), "100-0-0", "58-41-1", 10.0),
    ("openimages", "aws", 1, (773, 773, 3432, 811), "100-0-0", "52-48-0", 32.9),
    ("openimages", "azure", 1, (2319, 2319, 9783, 792), "100-0-0", "5-95-0", 81.1),
    ("openimages", "azure", 2, (2319, 2319, 11873, 792), "100-0-0", "6-93-1", 82.6),
    ("imagenet-22k", "in-house", 1, (2671, 2671, 2132, 2132), "0-0-100", "100-0-0", 0.44),
    ("imagenet-22k", "in-house", 2, None, "100-0-0", "100-0-0", 0.0),
    ("imagenet-22k", "aws", 1, None, "100-0-0", "100-0-0", 0.0),
    ("imagenet-22k", "azure", 1, None, "100-0-0", "100-0-0", 0.0),
    ("imagenet-22k", "azure", 2, None, "100-0-0", "100-0-0", 0.0),
]


@pytest.mark.parametrize(("dataset", "server", "nodes", "rates", "optimum", "printed", "loss"), GOLDEN)
def test_the_published_tables(dataset, server, nodes, rates, optimum, printed, loss):
    found = parameters(dataset, server, nodes)
    if rates is not None:
        assert tuple(round(rate) for rate in partition.rates(found)) == rates
    best = partition.best(found)
    assert str(best.split) == optimum
    below = 100 * (1 - partition.predict(found, Split.parse(printed)).throughput / best.throughput)
    assert below == pytest.approx(loss, abs=0.06)


def test_the_row_with_a_tensor_of_fixed_size():
    """With 224 x 224 x 3 floats for every dataset the whole ImageNet-22K row of the published table follows."""
    for server, nodes in (("in-house", 1), ("in-house", 2), ("aws", 1), ("azure", 1), ("azure", 2)):
        found = parameters("imagenet-22k", server, nodes, m=602_112 / 91.39e3)
        assert partition.best(found).split == Split(100, 0, 0)


def test_ties_are_many_where_two_rates_are_equal():
    found = parameters("imagenet-22k", "in-house")
    best = partition.best(found).throughput
    equal = [each for each in partition.splits() if math.isclose(partition.predict(found, each).throughput, best)]
    assert equal == [Split(0, decoded, 100 - decoded) for decoded in range(101)]


positive = st.floats(1.0, 1e12)
machines = st.builds(
    Parameters,
    t_gpu=positive,
    t_da=positive,
    t_a=positive,
    b_nic=positive,
    b_pcie=positive,
    b_cache=positive,
    b_storage=positive,
    s_cache=positive,
    s_data=st.floats(1.0, 1e7),
    n_total=st.floats(1.0, 1e8),
    m=st.floats(1.0, 20.0),
    c_nw=st.floats(0.0, 1e9),
    c_pcie=st.floats(0.0, 1e9),
    n=st.integers(1, 64),
)


EVEN = [split for split in partition.splits() if not any(part % 2 for part in split)]


@given(machines, st.floats(0.001, 0.999), st.sampled_from(EVEN), st.sampled_from(EVEN))
def test_a_cache_smaller_than_the_dataset_makes_the_model_linear(found, share, first, second):
    """So a mixture is worth the mixture of its ends, and no split is better than the best pure one."""
    found = replace(found, s_cache=share * found.n_total * found.s_data)
    between = Split(*((a + b) // 2 for a, b in zip(first, second, strict=True)))
    worth = [partition.predict(found, each).throughput for each in (first, second, between)]
    assert worth[2] == pytest.approx((worth[0] + worth[1]) / 2, rel=1e-6)
    pure = max(partition.predict(found, Split(*ends)).throughput for ends in ((100, 0, 0), (0, 100, 0), (0, 0, 100)))
    assert worth[0] <= pure * (1 + 1e-9)


@given(machines)
def test_every_sample_is_somewhere(found):
    for split in (Split(100, 0, 0), Split(0, 100, 0), Split(0, 0, 100), Split(34, 33, 33), Split(1, 98, 1)):
        held = partition.held(found, split)
        assert min(held) >= -1e-6 * found.n_total
        assert sum(held) == pytest.approx(found.n_total)
        throughput = partition.predict(found, split).throughput
        assert min(partition.rates(found)) * (1 - 1e-9) <= throughput <= max(partition.rates(found)) * (1 + 1e-9)


class TestGradients:
    def test_a_ring(self):
        between, within = gradient_bytes(100e6, nodes=2, accelerators=4)
        assert (between, within) == (100e6, 150e6)

    def test_are_spread_over_a_batch(self):
        assert gradient_bytes(100e6, nodes=2, accelerators=1, batch=1000) == (1e5, 0.0)

    @pytest.mark.parametrize(("nvlink", "expected"), [(NVLink.NODE, (100e6, 0.0)), (NVLink.CLUSTER, (0.0, 0.0))])
    def test_nvlink_takes_them_away(self, nvlink, expected):
        assert gradient_bytes(100e6, nodes=2, accelerators=4, nvlink=nvlink) == expected

    def test_take_bandwidth_from_samples(self):
        """PCIe and the network carry both; the cache carries samples only."""
        free = parameters("openimages", "in-house", 2)
        loaded = parameters("openimages", "in-house", 2, c_nw=4e6, c_pcie=90e6)
        large = 5.12 * 315.84e3
        assert partition.limits(loaded)["a"] == {
            "cache": partition.limits(free)["a"]["cache"],
            "network": pytest.approx(2 * 1.25e9 / (large + 4e6)),
            "pcie": pytest.approx(2 * 32e9 / (large + 90e6)),
            "gpu": 9100,
        }
        assert partition.rates(loaded).e == pytest.approx(2 * 1.25e9 / (315.84e3 + 4e6))

    def test_wrong_counts_are_refused(self):
        with pytest.raises(ValueError, match="nodes must be at least 1"):
            gradient_bytes(1.0, nodes=0, accelerators=1)
        with pytest.raises(ValueError, match="model_bytes must not be negative"):
            gradient_bytes(-1.0, nodes=1, accelerators=1)


class TestSplit:
    def test_is_written_with_the_encoded_part_first(self):
        assert Split.parse("40-59-1") == Split(encoded=40, decoded=59, augmented=1)
        assert str(Split(40, 59, 1)) == "40-59-1"

    @pytest.mark.parametrize("text", ["40-60", "a-b-c", "50-50-50", "", "1-2-3-94"])
    def test_wrong_ones_are_refused(self, text):
        with pytest.raises(ValueError, match="three percentages"):
            Split.parse(text)

    def test_all_of_them(self):
        found = list(partition.splits())
        assert len(found) == len(set(found)) == 5151
        assert {sum(split) for split in found} == {100}
