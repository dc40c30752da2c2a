"""The whole at once: a database behind latency, the fetching process, a cache that two jobs share, scheduling, a trace.

Meanwhile connections are cut, a worker and a job are killed, and the job is resumed. Every sample comes once in each
epoch of each job, and the report says what happened.
"""

import json
import os
import signal
import time
import traceback
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

import headrace
from headrace import store
from headrace.cache.backends import shm
from headrace.cli.__main__ import main
from headrace.core.options import Retry
from headrace.store import Record
from headrace.testing.stores import fill
from tests.names import new_name
from tests.services.relay import Breakage, Fault, relayed

pytestmark = [pytest.mark.service, pytest.mark.stress]

ROWS, BATCH, EPOCHS, AWAY_MS = 120, 8, 2, 25
SLOW = 77
KEYS = [f"patient-{number:03}" for number in range(ROWS)]


def number(payload: bytes) -> torch.Tensor:
    """What a payload is made of; fails if it is made of several. One sample takes much longer than the others."""
    values = np.frombuffer(payload, np.int16)
    assert (values == values[0]).all()
    time.sleep(0.5 if values[0] == SLOW else 0.002)
    return torch.tensor(values[0].item())


class Job:
    """A process that trains, and after every batch keeps a checkpoint: what it was given, and the loader's state.

    ``pauses``: after so many batches it says so and waits for a word.
    """

    def __init__(self, folder: Path, name: str, url: str, cache: headrace.Cache, *, pauses: int = -1) -> None:
        self.trace, self._checkpoint = folder / f"{name}.trace", folder / f"{name.partition('-')[0]}.json"
        self._url, self._cache, self._pauses = url, cache, pauses
        self._said, say = os.pipe()
        hear, self._tell = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._train(say, hear)
            except BaseException:  # noqa: BLE001  (as the interpreter does)
                (folder / f"{name}.failed").write_text(traceback.format_exc())
                os._exit(1)
            os._exit(0)
        os.close(say)
        os.close(hear)

    def _train(self, say: int, hear: int) -> None:
        signal.alarm(240)
        known = json.loads(self._checkpoint.read_text()) if self._checkpoint.exists() else {"epochs": [[]], "state": {}}
        retry = Retry(first=0.02, ceiling=0.2)
        dataset = headrace.StoreDataset(self._url, decode=number, keys=True, retry=retry)
        options = {"shuffle": True, "in_order": False, "num_workers": 2, "persistent_workers": True}
        with headrace.DataLoader(dataset, BATCH, cache=self._cache, trace=self.trace, **options) as loader:
            loader.load_state_dict(known["state"])
            while len(known["epochs"]) <= EPOCHS:
                for count, (data, label, who) in enumerate(loader, 1):
                    assert data.tolist() == label.tolist()
                    assert who["key"] == [KEYS[each] for each in label.tolist()]
                    known["epochs"][-1] += label.tolist()
                    self._keep(known | {"state": loader.state_dict()})
                    if count == self._pauses and len(known["epochs"]) == 1:
                        os.write(say, f"{loader._latest.pool.pids()[0]}\n".encode())
                        os.read(hear, 1)
                known["epochs"].append([])
                self._keep(known | {"state": loader.state_dict()})

    def _keep(self, known: dict) -> None:
        beside = self._checkpoint.with_suffix(".new")
        beside.write_text(json.dumps(known))
        beside.rename(self._checkpoint)

    def paused(self) -> int:
        """Waits until it has paused; a worker of it."""
        return int(os.read(self._said, 20))

    def go_on(self) -> None:
        os.write(self._tell, b".")

    def killed(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert os.WIFSIGNALED(self._waited())

    def ended(self) -> list[list[int]]:
        """Waits for its end; the samples of each of its epochs."""
        assert self._waited() == 0
        *epochs, last = json.loads(self._checkpoint.read_text())["epochs"]
        assert last == []
        return epochs

    def _waited(self) -> int:
        os.close(self._said)
        os.close(self._tell)
        return os.waitpid(self.pid, 0)[1]


@pytest.fixture
def cache():
    cache = headrace.Cache(f"shm://{new_name()}", size="16MiB", split=(0, 100, 0))
    yield cache
    shm.remove(cache.name)


def reported(capsys, job: Job) -> tuple[dict, str]:
    """Figures, and the page that people read."""
    found = []
    for options in (["--json"], []):
        capsys.readouterr()
        assert main(["trace", "report", str(job.trace), *options]) == 0
        found.append(capsys.readouterr().out)
    (loader,) = json.loads(found[0])["loaders"]
    return loader["figures"], found[1]


def decoded(figures: dict) -> int:
    """Samples that the cache had."""
    return sum(form["samples"] for form in figures["cache"] if form["form"] == "decoded")


def test_every_sample_comes_once_and_the_report_says_what_happened(
    cassandra_server, keyspace, proxied, cache, tmp_path, capsys
):
    rows = [Record(key, np.full(2000, at, np.int16).tobytes(), at, {}) for at, key in enumerate(KEYS)]
    fill(store.open_writable(cassandra_server.url(keyspace)), rows)
    proxy = proxied(f"127.0.0.1:{cassandra_server.port}")
    proxy.toxic("latency", latency=AWAY_MS)
    with relayed(("127.0.0.1", proxy.port), Breakage(Fault.CUT, step=100, back=2)) as relay:
        url = cassandra_server.url(keyspace, at=f"127.0.0.1:{relay.port}", timeout=5)
        first = Job(tmp_path, "first", url, cache, pauses=4)
        worker = first.paused()
        os.kill(worker, signal.SIGKILL)
        second = Job(tmp_path, "second", url, cache, pauses=6)
        second.paused()
        children = psutil.Process(second.pid).children(recursive=True)
        second.killed()
        first.go_on()
        resumed = Job(tmp_path, "second-resumed", url, cache)
        for job in (first, resumed):
            assert [Counter(epoch) for epoch in job.ended()] == [Counter(range(ROWS))] * EPOCHS
        assert psutil.wait_procs(children, timeout=120)[1] == []
        assert relay.broken >= 2

    figures, said = reported(capsys, first)
    assert figures["deaths"] == 1
    assert EPOCHS * ROWS <= figures["samples"] <= EPOCHS * ROWS + BATCH  # what the worker had in hand is made again
    assert "1 worker died and was replaced" in said
    assert figures["retries"] > 0
    assert f"{figures['retries']} retries, 1 deaths" in said
    assert figures["slowest"][0]["key"] == KEYS[SLOW]
    assert KEYS[SLOW] in said
    assert decoded(figures) >= ROWS  # all of its second epoch's
    assert "network" in said
    ended, _ = reported(capsys, second)  # as far as it was written when the job was killed
    assert ended["runs"][0]["batches"] == 6
    rest, _ = reported(capsys, resumed)
    assert [run["samples"] for run in rest["runs"]] == [ROWS - 6 * BATCH, ROWS]
    assert decoded(ended) + decoded(rest) > ROWS  # and some that the first job has read
