"""A real Ray cluster of three nodes on loopback."""

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

import headrace
from headrace.fetching import fetcher_process
from tests.cache.conftest import name  # noqa: F401  (a fixture)
from tests.remote.datasets import Deadly, InStages, Noisy
from tests.remote.running import SETTINGS, cluster
from tests.services.fixtures import had

pytestmark = [
    pytest.mark.service,
    pytest.mark.slow,
    pytest.mark.leaks_ok("the cluster keeps processes of its own, below one that this one started"),
]

TRAINS = Path(__file__).with_name("train_script.py")
TRAIN_SECONDS = 200


@pytest.fixture(scope="session")
def ray_cluster():
    """Three nodes: ``head`` with two cores, ``left`` and ``right`` with eight."""
    with ExitStack() as stack:
        yield had("Ray", lambda: stack.enter_context(cluster()))


@pytest.fixture
def address(ray_cluster, monkeypatch):
    """Of the cluster, for loaders in this process."""
    for each, value in SETTINGS.items():
        monkeypatch.setenv(each, value)
    return ray_cluster.address


def loader(address=None, data=None, **options):
    remote = None if address is None else headrace.Ray(cpus=2, address=address, resources={"left": 1})
    options = {"batch_size": 8, "shuffle": True, "num_workers": 1, "persistent_workers": True} | options
    generator = torch.Generator().manual_seed(5) if options.get("in_order") else None
    return headrace.DataLoader(data or Noisy(400, seconds=0.002), generator=generator, remote=remote, **options)


def numbers(ours):
    """Which samples an epoch had."""
    return sorted(index for batch in ours for index in batch[1].tolist())


def lanes(cluster):
    """Processes that make samples, on all nodes."""
    return cluster.lanes()


def reached(met, seconds=100):
    """Whether something came true in time."""
    end = time.monotonic() + seconds
    while not met():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


class TestMadeElsewhere:
    def test_batches_and_states_are_the_same_as_without(self, address):
        with loader(address, in_order=True) as ours, loader(in_order=True) as plain:
            assert reached(lambda: self._alike(ours, plain) and ours.stats().remote.samples > 100)
            used = ours.stats().remote
            assert used.samples > 100
            assert used.given_back == 0
            assert used.lanes == 2
            assert not used.by_ray
            assert sum(count for _, count in used.nodes) == used.samples
            batches = iter(ours)
            began = [next(batches)[1].tolist() for _ in range(20)]
            with loader(in_order=True) as third:
                third.load_state_dict(ours.state_dict())
                rest = [batch[1].tolist() for batch in third]
            assert sorted(index for batch in began + rest for index in batch) == list(range(400))

    @pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.soak)])
    def test_hits_are_never_made_elsewhere_and_what_comes_is_kept(self, ray_cluster, address, name, tmp_path, workers):  # noqa: F811
        notes = tmp_path / "fetched"
        data = InStages(200, seconds=0.05 if workers else 0.01, notes=notes)
        options = {"in_order": True, "num_workers": workers, "persistent_workers": bool(workers)}
        cache = headrace.Cache(f"shm://{name}", size="64M")
        with loader(address, data, cache=cache, **options) as ours, loader(None, InStages(200), **options) as plain:
            began = iter(ours), iter(plain)
            next(began[0]), next(began[1])
            assert reached(lambda: len(lanes(ray_cluster)) >= 2)
            del began
            for epoch in range(3):
                for one, other in zip(ours, plain, strict=True):
                    assert all(torch.equal(left, right) for left, right in zip(one, other, strict=True))
                if epoch == 0:
                    made, fetched = ours.stats().remote.samples, len(notes.read_text().split())
            used = ours.stats()
        assert used.remote.samples == made > 0
        assert used.cache.kept == 200
        assert used.cache.decoded >= 400
        assert len(notes.read_text().split()) - fetched <= used.cache.checked

    def test_without_workers_all_is_made_elsewhere(self, address):
        options = {"num_workers": 0, "persistent_workers": False, "in_order": True}
        with loader(address, **options) as ours, loader(**options) as plain:
            assert reached(lambda: self._alike(ours, plain) and ours.stats().remote.samples > 0)
            made, delivered = ours.stats().remote.samples, ours.stats().samples
            assert self._alike(ours, plain)
            assert ours.stats().remote.samples - made == ours.stats().samples - delivered == 400
            part = list(itertools.islice(ours, 20))
            with loader(**options) as third:
                third.load_state_dict(ours.state_dict())
                assert sorted(index for batch in [*part, *third] for index in batch[1].tolist()) == list(range(400))

    @staticmethod
    def _alike(ours, plain):
        """Whether an epoch of both is the same; it is an error if not."""
        for one, other in zip(ours, plain, strict=True):
            assert all(torch.equal(left, right) for left, right in zip(one, other, strict=True))
        return True

    @pytest.mark.soak
    def test_a_sample_that_ends_whatever_makes_it_is_named(self, ray_cluster, address, tmp_path):
        alive = tmp_path / "alive"
        alive.write_text("")
        ours = loader(address, Deadly(40, 7, alive), in_order=True)
        with ours, pytest.raises(headrace.WorkerDied, match="sample 7"):
            for _ in range(30):
                numbers(ours)

    def test_each_sample_once_whatever_dies(self, ray_cluster, address):
        ended = 0
        with loader(address, in_order=False) as ours:
            iter(ours)
            assert reached(lambda: lanes(ray_cluster))
            for _ in range(6):
                seen = []
                for number, batch in enumerate(ours):
                    seen += batch[1].tolist()
                    if number % 15 == 5 and (alive := lanes(ray_cluster)):
                        alive[number % len(alive)].send_signal(signal.SIGSTOP if number == 20 else signal.SIGKILL)
                        ended += 1
                assert sorted(seen) == list(range(400))
            assert ours.stats().remote.samples > 0
        assert ended > 3
        assert reached(lambda: not lanes(ray_cluster), 30)

    @pytest.mark.soak
    def test_a_cluster_that_is_protected_carries_samples_itself(self, ray_cluster, address, monkeypatch):
        guarded = "import headrace.remote.ray_driver as d; d.Driver.is_guarded = True; "
        monkeypatch.setattr(fetcher_process, "_BOOT", guarded + fetcher_process._BOOT)
        with loader(address, in_order=True) as ours:
            assert reached(lambda: numbers(ours) and ours.stats().remote.samples > 100)
            for lane in lanes(ray_cluster):
                lane.kill()
            made = ours.stats().remote.samples
            assert reached(lambda: numbers(ours) == list(range(400)) and ours.stats().remote.samples > made + 200)
            assert ours.stats().remote.by_ray

    def test_nothing_is_left_when_the_trainer_is_killed(self, ray_cluster, address):
        program = (
            "from tests.remote.test_ray import loader\n"
            f"ours = loader({address!r})\n"
            "while True:\n"
            "    for batch in ours: pass\n"
        )
        process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            assert reached(lambda: lanes(ray_cluster))
        finally:
            process.kill()
            process.wait()
        assert reached(lambda: not lanes(ray_cluster), 30)

    def test_where_nobody_answers_all_is_made_here(self, address):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        with loader(f"127.0.0.1:{port}") as ours:
            seen = []
            with pytest.warns(RuntimeWarning, match="made on this host from now on"):
                assert reached(lambda: seen.append(numbers(ours)) or ours._features.hosts.is_gone)
            assert numbers(ours) == list(range(400))
            assert all(epoch == list(range(400)) for epoch in seen)


@pytest.fixture(scope="session")
def trained(ray_cluster, tmp_path_factory):
    """What two ranks under a ``TorchTrainer`` saw of their prepared loaders."""
    folder = tmp_path_factory.mktemp("train")
    command = [sys.executable, str(TRAINS), ray_cluster.address, str(folder)]
    environment = os.environ | {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
    }  # fmt: skip
    done = subprocess.run(
        command,
        check=False,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TRAIN_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.soak
class TestPreparedByRayTrain:
    def test_sharded_loader_is_ours_with_all_its_settings(self, trained):
        for rank in trained:
            assert rank["sharded"]["class"] == "headrace.loader.DataLoader"
            assert rank["sharded"]["sampler"] == "DistributedSampler"
            assert rank["sharded"]["settings"] == [2, 7.0, 3, "Skip", None]

    def test_ranks_share_an_epoch(self, trained):
        for epoch in range(2):
            seen = [sample for rank in trained for sample in rank["sharded"]["epochs"][epoch]]
            assert sorted(seen) == list(range(20))
        assert trained[0]["sharded"]["epochs"][0] != trained[0]["sharded"]["epochs"][1]

    def test_state_is_that_of_the_batches_delivered(self, trained):
        for rank in trained:
            assert rank["resumed"]["before"] + rank["resumed"]["after"] == rank["sharded"]["epochs"][0]

    def test_loader_with_its_own_sampler_is_ours(self, trained):
        assert [rank["own"] for rank in trained] == [["headrace.loader.DataLoader", True]] * 2

    def test_loader_of_torch_is_left_alone(self, trained):
        for rank in trained:
            assert rank["torchs"] == ["_WrappedDataLoader", "DataLoader", 10]
