"""A real Ray cluster of three nodes on loopback."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.remote.running import cluster
from tests.services.fixtures import had

pytestmark = [pytest.mark.service, pytest.mark.slow]

TRAINS = Path(__file__).with_name("train_script.py")
TRAIN_SECONDS = 200


@pytest.fixture(scope="session")
def ray_cluster():
    """Three nodes: ``head`` with two cores, ``left`` and ``right`` with eight."""
    with ExitStack() as stack:
        yield had("Ray", lambda: stack.enter_context(cluster()))


@pytest.fixture(scope="session")
def trained(ray_cluster, tmp_path_factory):
    """What two ranks under a ``TorchTrainer`` saw of their prepared loaders."""
    folder = tmp_path_factory.mktemp("train")
    command = [sys.executable, str(TRAINS), ray_cluster.address, str(folder)]
    environment = os.environ | {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "RAY_USAGE_STATS_ENABLED": "0",
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
