"""Whatever of a cluster dies, hangs or leaves, each sample comes once, and nothing is left there. Each has its own."""

import os
import signal
import time
from contextlib import ExitStack, contextmanager

import psutil
import pytest

from tests.remote.datasets import Noisy
from tests.remote.running import SETTINGS, cluster
from tests.remote.test_ray import loader, numbers, reached
from tests.services.fixtures import had
from tests.services.tls import material

pytestmark = [
    pytest.mark.service,
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore:remote=.*another is started:RuntimeWarning"),
    pytest.mark.leaks_ok("the cluster keeps processes of its own, below one that this one started"),
]
PLAN = {"head": {"cpus": 1}, "left": {"cpus": 4}}


@pytest.fixture
def surroundings(monkeypatch):
    for each, value in SETTINGS.items():
        monkeypatch.setenv(each, value)


@pytest.fixture
def own_cluster(surroundings):
    """A head and one node."""
    with had_cluster() as running:
        yield running


@contextmanager
def had_cluster(**options):
    with ExitStack() as stack:
        yield had("Ray", lambda: stack.enter_context(cluster(PLAN, **options)))


def used(ours, cluster):
    """An epoch in which other hosts had part."""
    before = ours.stats().remote.samples
    iter(ours)
    assert reached(lambda: len(cluster.lanes()) >= 2)
    assert reached(lambda: numbers(ours) == list(range(400)) and ours.stats().remote.samples > before)


def epochs(ours, seconds):
    """Whole epochs, for so long: each sample once."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert numbers(ours) == list(range(400))


def gone(cluster):
    """Nothing of ours is left in it."""
    return reached(lambda: not cluster.lanes() and not cluster.named("ray::HostActor"), 40)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_node_whose_raylet_dies_or_hangs(own_cluster, how):
    with loader(own_cluster.address) as ours:
        used(ours, own_cluster)
        own_cluster.raylet("left").send_signal(how)
        epochs(ours, 30)
    own_cluster.raylet("head")  # it lives
    if how == signal.SIGSTOP:
        own_cluster.raylet("left").send_signal(signal.SIGCONT)
    assert gone(own_cluster)


def test_a_node_that_leaves_and_comes_back(own_cluster):
    with loader(own_cluster.address) as ours:
        used(ours, own_cluster)
        own_cluster.order("remove", "left")
        epochs(ours, 5)
        assert reached(lambda: not own_cluster.lanes())
        own_cluster.order("add", "left")
        made = ours.stats().remote.samples
        assert reached(lambda: numbers(ours) == list(range(400)) and ours.stats().remote.samples > made)
    assert gone(own_cluster)


def test_a_cluster_whose_gcs_dies_is_done_without(own_cluster):
    with loader(own_cluster.address) as ours:
        used(ours, own_cluster)
        own_cluster.gcs().kill()
        with pytest.warns(RuntimeWarning, match="made on this host from now on"):
            epochs(ours, 90)
        assert ours.stats().network.restarts <= 2


def test_a_cluster_that_is_gone_at_once_is_done_without(own_cluster):
    with loader(own_cluster.address) as ours:
        used(ours, own_cluster)
        for each in psutil.Process(own_cluster.process.pid).children(recursive=True):
            each.kill()
        with pytest.warns(RuntimeWarning, match="made on this host from now on"):
            epochs(ours, 60)


def test_a_fork_of_the_trainer_has_hosts_of_its_own_and_leaves_none(own_cluster):
    with loader(own_cluster.address) as ours:
        used(ours, own_cluster)
        pid = os.fork()
        if not pid:
            try:
                fine = numbers(ours) == list(range(400))
                ours.close()
            finally:
                os._exit(0 if fine else 1)
        epochs(ours, 5)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        epochs(ours, 5)
    assert gone(own_cluster)


def test_a_cluster_protected_by_tls_carries_samples_itself(surroundings, monkeypatch):
    made = material()
    protected = {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(made.server.cert),
        "RAY_TLS_SERVER_KEY": str(made.server.key),
        "RAY_TLS_CA_CERT": str(made.ca),
    }
    for name, value in protected.items():
        monkeypatch.setenv(name, value)
    with had_cluster(environment=protected) as running, loader(running.address, Noisy(400, seconds=0.01)) as ours:
        assert reached(lambda: numbers(ours) == list(range(400)) and ours.stats().remote.samples > 100)
        assert ours.stats().remote.by_ray
        epochs(ours, 5)
