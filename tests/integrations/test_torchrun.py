"""Two ranks on this machine, over gloo: every sample once over both, whoever does the sharding."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.rank_script import BATCH, SAMPLES

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("rank_script.py")
TIMEOUT_S = 240


Report = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Report]:
    """What each of two ranks reports of each scenario."""
    folder = tmp_path_factory.mktemp("ranks")
    launcher = subprocess.Popen(
        [
            sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2",
            "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--local-addr=localhost",
            str(SCRIPT), str(folder),
        ],
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = launcher.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(launcher.pid, signal.SIGKILL)
        output, _ = launcher.communicate()
        pytest.fail(f"no end after {TIMEOUT_S} s\n{output}")
    assert launcher.returncode == 0, output
    first, second = (json.loads((folder / f"{rank}.json").read_text()) for rank in range(2))
    return first, second


def flat(batches: list[list[int]]) -> list[int]:
    return [value for batch in batches for value in batch]


def test_distributed_sampler(ranks):
    first, second = (rank["distributed_sampler"] for rank in ranks)
    for mine, theirs in zip(first["epochs"], second["epochs"], strict=True):
        assert sorted(flat(mine) + flat(theirs)) == list(range(SAMPLES))
        assert [len(batch) for batch in mine] == [4, 4, 3]
    assert first["epochs"][0] != first["epochs"][1]
    assert first["batches"] == second["batches"] == 6


def test_ranks_share_the_cores(ranks):
    cores = len(os.sched_getaffinity(0))
    reports = [rank["automatic"] for rank in ranks]
    assert sorted(flat(reports[0]["seen"]) + flat(reports[1]["seen"])) == list(range(400))
    for report in reports:
        assert 1 <= report["workers"] <= max(1, cores // 2)
        assert report["lanes"][0] == report["workers"]


def test_accelerate(ranks):
    first, second = (rank["prepared"] for rank in ranks)
    for rank in (first, second):
        assert rank["wrappers"] == ["DataLoaderShard", "DataLoaderShard", "DataLoaderDispatcher"]
        assert rank["ours"] == [True, True, True]
        assert rank["kept"]
        # accelerate fills up the last round from the start, and gather_for_metrics leaves that out again.
        assert flat(rank["gathered"]) == list(range(SAMPLES - 1))
        assert sorted(flat(rank["dispatched"])) == list(range(SAMPLES))
        assert rank["lengths"] == [3, 3]
        assert rank["batches"] == 6
    epochs = list(zip(first["epochs"], second["epochs"], strict=True))
    for mine, theirs in epochs:
        assert {len(batch) for batch in mine + theirs} == {BATCH}
        seen = flat(mine[:-1]) + flat(theirs[:-1])
        assert len(set(seen)) == len(seen)
        assert set(seen) | set(mine[-1]) | set(theirs[-1]) == set(range(SAMPLES))
    assert epochs[0] != epochs[1]
