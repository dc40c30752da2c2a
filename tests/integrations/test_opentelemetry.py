"""A loader's figures arrive where OpenTelemetry sends them."""

import gc

import pytest
import torch

import headrace

sdk = pytest.importorskip("opentelemetry.sdk.metrics")
pytestmark = pytest.mark.integration


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        if index == 7:
            raise ValueError("bad")
        return index


@pytest.fixture
def collected():
    """(the provider, what it collects: {metric: {loader: value}})."""
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = sdk.MeterProvider([reader])

    def collect():
        data = reader.get_metrics_data()
        return {
            metric.name: {point.attributes["loader"]: point.value for point in metric.data.data_points}
            for resource in (data.resource_metrics if data else [])
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    yield provider, collect
    provider.shutdown()


def test_figures_are_those_of_stats(collected):
    from headrace.integrations.opentelemetry import COUNTERS, GAUGES, observe

    provider, collect = collected
    loader = headrace.DataLoader(Numbers(), 8, num_workers=1, on_error=headrace.Skip(max_fraction=0.1))
    other = headrace.DataLoader(Numbers(), 8, num_workers=0)
    observe(loader, "train", provider.get_meter("test"))
    observe(other, "test", provider.get_meter("test"))
    list(loader)
    figures = collect()
    assert set(figures) == set(COUNTERS) | set(GAUGES)
    assert figures["headrace.samples"] == {"train": 31, "test": 0}
    assert figures["headrace.skipped"]["train"] == 1
    assert figures["headrace.wait"]["train"] == loader.stats().wait_seconds
    assert figures["headrace.lanes"]["train"] == 1


def test_a_loader_that_is_gone_is_not_kept(collected):
    from headrace.integrations.opentelemetry import observe

    provider, collect = collected
    loader = headrace.DataLoader(Numbers(), 8, num_workers=0)
    observe(loader, "train", provider.get_meter("test"))
    del loader
    gc.collect()
    assert not any(collect().values())
