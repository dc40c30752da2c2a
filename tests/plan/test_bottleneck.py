"""The model of resources: what each is busy with, beside the published equations."""

import pytest
from hypothesis import given

from headrace.plan import bottleneck, partition
from headrace.plan.partition import HeldShares, Split
from tests.plan.servers import parameters
from tests.plan.test_partition import machines


@pytest.mark.parametrize(
    ("dataset", "server", "nodes", "split", "equations", "resources"),
    [
        ("imagenet-22k", "azure", 2, "100-0-0", 7997, 3980),  # storage is the bottleneck: a mean of rates is too high
        ("imagenet-1k", "aws", 1, "0-81-19", 2179, 3451),  # cache and storage work at once: it is too low
    ],
)
def test_differs_from_the_equations(dataset, server, nodes, split, equations, resources):
    found = parameters(dataset, server, nodes)
    assert round(partition.predict(found, Split.parse(split)).throughput) == equations
    assert round(bottleneck.predict(found, Split.parse(split)).throughput) == resources


def test_the_busiest_resource_is_named():
    found = parameters("imagenet-22k", "azure", 2)
    best = bottleneck.best(found)
    assert bottleneck.bottleneck(found, best.held) == "storage"
    assert bottleneck.forms(found)["s"] == (pytest.approx(250e6 / 91.39e3), "storage")
    assert bottleneck.forms(found)["a"][1] == "cache"


def test_mixed_splits_can_win():
    """Some samples load the cache, others the CPU."""
    best = bottleneck.best(parameters("imagenet-1k", "aws"))
    assert min(best.split.encoded, best.split.augmented) > 0
    assert best.throughput > 1.4 * partition.best(parameters("imagenet-1k", "aws")).throughput


def test_of_equal_splits_the_one_that_leaves_most_to_spare():
    """The accelerator is the bottleneck whatever is cached: then augmented samples, which need no CPU."""
    found = parameters("imagenet-1k", "azure", t_gpu=10, s_cache=4e12)
    assert bottleneck.best(found).split == Split(0, 0, 100)


@given(machines)
def test_pure_forms_agree_with_the_equations_but_for_what_storage_shares(found):
    """A sample in one form needs the same resources in both models."""
    rates, forms = partition.rates(found), bottleneck.forms(found)
    for form in "ade":
        assert forms[form][0] == pytest.approx(getattr(rates, form))
    assert forms["s"][0] >= rates.s * (1 - 1e-9)  # the equations charge storage reads to the cache as well


@given(machines)
def test_nothing_is_faster_than_the_accelerator(found):
    for split in (Split(100, 0, 0), Split(0, 50, 50)):
        assert bottleneck.predict(found, split).throughput <= found.n * found.t_gpu * (1 + 1e-9)
    assert all(seconds >= 0 for seconds in bottleneck.seconds(found, HeldShares(0, 0, 0, found.n_total)).values())
