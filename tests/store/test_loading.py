"""Training from real Cassandra servers: every sample exactly once, over any latency, whatever fails on the way."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import headrace
from headrace import store
from headrace.core.errors import MissingKey, StoreRefused, StoreUnavailable
from headrace.core.options import Retry
from headrace.store import Record
from headrace.testing.stores import fill

pytestmark = pytest.mark.service

ROWS = 200


def records(rows=ROWS):
    """Payloads of different sizes that say whose they are."""
    return [
        Record(f"s{number:04}", np.full(1000 + 37 * number, number, np.int16).tobytes(), number, {})
        for number in range(rows)
    ]


def mean(payload):
    """The number a payload is made of; fails if it is made of several."""
    values = np.frombuffer(payload, np.int16)
    assert (values == values[0]).all()
    return torch.tensor(values[0].item())


@pytest.fixture(scope="module")
def filled(cassandra_server):
    with cassandra_server.keyspace() as name:
        fill(store.open_writable(cassandra_server.url(name)), records())
        yield name


def delivered(loader):
    """The labels in the order of delivery; each came with its own payload."""
    found = []
    for data, label in loader:
        assert torch.equal(data, label.to(data.dtype))
        found += label.tolist()
    return found


def loader_of(url, *, retry=None, **options):
    dataset = headrace.StoreDataset(url, decode=mean, retry=retry)
    return headrace.DataLoader(dataset, **{"batch_size": 16, "num_workers": 2} | options)


ORDERS = pytest.mark.parametrize("order", [{"in_order": True}, {"shuffle": True, "in_order": False}], ids=["in", "out"])


@ORDERS
def test_every_sample_comes_once_and_the_same_dataset_works_with_torch(cassandra_server, filled, order):
    with loader_of(cassandra_server.url(filled), **order) as loader:
        for _ in range(2):
            assert sorted(delivered(loader)) == list(range(ROWS))
        with loader.dataset as dataset:
            assert delivered(torch.utils.data.DataLoader(dataset, batch_size=50)) == list(range(ROWS))


def test_two_ranks_share_an_epoch(cassandra_server, filled):
    found = []
    for rank in range(2):
        dataset = headrace.StoreDataset(cassandra_server.url(filled), decode=mean)
        sampler = torch.utils.data.DistributedSampler(dataset, num_replicas=2, rank=rank, seed=3)
        with headrace.DataLoader(dataset, batch_size=16, num_workers=1, sampler=sampler) as loader:
            found += delivered(loader)
    assert sorted(found) == list(range(ROWS))


@ORDERS
def test_a_resumed_epoch_delivers_the_rest(cassandra_server, filled, order):
    with loader_of(cassandra_server.url(filled), **order) as loader:
        iterator = iter(loader)
        before = delivered(next(iterator) for _ in range(4))
        state = loader.state_dict()
    with loader_of(cassandra_server.url(filled), **order) as loader:
        loader.load_state_dict(state)
        assert sorted(before + delivered(loader)) == list(range(ROWS))


@ORDERS
def test_connections_that_are_cut_again_and_again_cost_no_sample(cassandra_server, filled, proxied, order):
    proxy = proxied(f"127.0.0.1:{cassandra_server.port}")
    proxy.toxic("latency", latency=10)
    url = cassandra_server.url(filled, at=f"127.0.0.1:{proxy.port}", timeout=2)
    with loader_of(url, retry=Retry(first=0.02, ceiling=0.2), **order) as loader:
        found = []
        for number, (data, label) in enumerate(loader):
            assert torch.equal(data, label.to(data.dtype))
            found += label.tolist()
            if number in {1, 4, 7}:
                proxy.enable(on=False)
                proxy.enable(on=True)
        assert sorted(found) == list(range(ROWS))
        assert loader.stats().network.retries > 0


def test_a_server_that_falls_silent_is_given_up_within_the_budget(cassandra_server, filled, proxied):
    proxy = proxied(f"127.0.0.1:{cassandra_server.port}")
    url = cassandra_server.url(filled, at=f"127.0.0.1:{proxy.port}", timeout=1)
    retry = Retry(attempts=2, budget=3.0, patience=1.0)
    with loader_of(url, retry=retry, in_order=True) as loader:
        iterator = iter(loader)
        next(iterator)
        proxy.toxic("timeout", timeout=0)
        with pytest.raises(StoreUnavailable, match=r"cassandra://.*(no answer within 1 s|timed out)"):
            list(iterator)


def test_a_row_that_is_gone_is_named(cassandra_server, keyspace):
    url = cassandra_server.url(keyspace)
    fill(store.open_writable(url), records(40))
    with loader_of(url, in_order=True) as loader:
        cassandra_server.execute(f"DELETE FROM {keyspace}.samples WHERE id = 's0017'")
        with pytest.raises(MissingKey, match="s0017"):
            list(loader)


def test_a_wrong_password_is_said_in_next(cassandra_server, filled):
    keys = [record.key for record in records()]
    url = replace(cassandra_server, password="hunter2").url(filled)
    dataset = headrace.StoreDataset(url, split=keys, decode=mean)
    with headrace.DataLoader(dataset, batch_size=4, num_workers=1) as loader, pytest.raises(StoreRefused) as caught:
        next(iter(loader))
    assert "hunter2" not in str(caught.value)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.leaks_ok("the node that was started again belongs to the cluster")
def test_a_node_that_is_killed_during_an_epoch_costs_no_sample(cassandra_cluster):
    with cassandra_cluster.keyspace() as name:
        # Read from any replica, so each must have been written to.
        fill(store.open_writable(cassandra_cluster.url(name, replication=2, consistency="ALL")), records())
        url = cassandra_cluster.url(name, replication=2, consistency="LOCAL_ONE")
        with loader_of(url, retry=Retry(first=0.05)) as loader:
            found = []
            for number, (_, label) in enumerate(loader):
                found += label.tolist()
                if number == 2:
                    cassandra_cluster.kill(1)
            assert sorted(found) == list(range(ROWS))
            cassandra_cluster.start(1)
            assert sorted(delivered(loader)) == list(range(ROWS))
