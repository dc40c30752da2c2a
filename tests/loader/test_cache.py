"""Loaders with a cache: each sample exactly once per epoch, whatever the cache has, loses, or takes from others."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler, Subset, WeightedRandomSampler

import headrace
from headrace.cache.backends import local_tables, redis_server, shm
from headrace.caching import dividing, spot_checks, stagetimes
from headrace.core.errors import CacheError, StateMismatch
from headrace.core.options import Retry
from headrace.store import Record
from headrace.testing.scripted import ScriptedStore
from headrace.trace.analysis.select import loaders
from headrace.trace.reader import read
from headrace.trace.report import measure
from tests.cache import servers
from tests.cache.servers import PASSWORD, USER
from tests.engine.remote import RemoteNumbers
from tests.names import new_name
from tests.services.tls import material
from tests.test_dataset import filled, npy

SAMPLES = 120


class Stages(torch.utils.data.Dataset):
    """(index, an array of it plus ``shift``); what is fetched and decoded is noted in files, if ``log`` says where."""

    def __init__(self, samples=SAMPLES, *, shift=0, log=None, size=500):
        self.samples, self.shift, self.size, self._log = samples, shift, size, log

    def cache_fingerprint(self):
        return self.samples, self.shift, self.size

    def __len__(self):
        return self.samples

    def _note(self, what):
        if self._log is not None:
            with Path(self._log).open("a") as file:
                file.write(f"{what}\n")

    def fetch(self, index):
        self._note(f"fetch {index}")
        return str(index).encode()

    def decode(self, encoded):
        self._note(f"decode {int(encoded)}")
        return int(encoded), np.full(self.size, int(encoded) + self.shift, np.int64)

    def augment(self, decoded):
        decoded[1][:] += 0  # as some do, in place
        return decoded

    def __getitem__(self, index):
        return self.augment(self.decode(self.fetch(index)))


class Deadly(Stages):
    """Ends its process the first time it decodes one of the ``deadly``."""

    def __init__(self, mark, deadly):
        super().__init__()
        self._mark, self._deadly = mark, deadly

    def decode(self, encoded):
        mark = Path(f"{self._mark}.{int(encoded)}")
        if int(encoded) in self._deadly and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().decode(encoded)


@pytest.fixture
def name():
    chosen = new_name()
    yield chosen
    shm.remove(chosen)


def cache(name, **options):
    """Keeps what costs nothing to make, too, unless its division is to be planned: ``split=None``."""
    return headrace.Cache(f"shm://{name}", **{"size": "8MiB", "split": (0, 100, 0)} | options)


def loader_of(dataset, where, **options):
    options = {"batch_size": 8, "num_workers": 2, "shuffle": True, "in_order": False} | options
    if "sampler" in options:
        del options["shuffle"]
    return headrace.DataLoader(dataset, cache=where, **options)


def numbers(batches, shift=0):
    found = []
    for indices, arrays in batches:
        for index, array in zip(indices.tolist(), arrays, strict=True):
            assert (array == index + shift).all()
            found.append(index)
    return found


EVERYTHING = list(range(SAMPLES))


class Changing(Stages):
    """Augments in place."""

    def augment(self, decoded):
        decoded[1][:] = -1 - decoded[1]
        return decoded


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [500, 40_000], ids=["small", "large"])
def test_what_is_kept_is_as_it_was_before_the_next_stage_changed_it(name, workers, size):
    with loader_of(Changing(size=size), cache(name, size="48MiB", split=(0, 100, 0)), num_workers=workers) as loader:
        for _ in range(3):
            found = [index for batch in loader for index in numbers([(batch[0], -1 - batch[1])])]
            assert sorted(found) == EVERYTHING
        assert loader.stats().cache.decoded == 2 * SAMPLES


@pytest.fixture
def unchecked(monkeypatch):
    """Nothing that the cache has is made anew to be compared."""
    monkeypatch.setattr(spot_checks, "FEW", 0)
    monkeypatch.setattr(spot_checks, "SHARE", 0)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("order", [{"in_order": False}, {"in_order": True, "shuffle": False}])
def test_epochs_after_the_first_come_from_the_cache(name, tmp_path, workers, order, unchecked):
    log = tmp_path / "log"
    with loader_of(Stages(log=log), cache(name), num_workers=workers, **order) as loader:
        for _ in range(3):
            found = numbers(loader)
            assert sorted(found) == EVERYTHING
            assert order["in_order"] is False or found == EVERYTHING
        use = loader.stats().cache
    assert (use.misses, use.decoded) == (SAMPLES, 2 * SAMPLES)
    notes = Counter(line.split()[0] for line in log.read_text().splitlines())
    assert notes == {"fetch": SAMPLES, "decode": SAMPLES}


class Working(Stages):
    """Takes so many seconds for a sample, of CPU time or asleep."""

    def __init__(self, samples, *, busy=0.0, asleep=0.0):
        super().__init__(samples)
        self._busy, self._asleep = busy, asleep

    def fetch(self, index):
        time.sleep(self._asleep) if self._asleep else None
        until = time.thread_time() + self._busy
        while time.thread_time() < until:
            pass
        return super().fetch(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_cost_less_than_keeping_them_are_not_kept(name, workers):
    samples = 3000
    with loader_of(Stages(samples), cache(name, size="64MiB", split=None), num_workers=workers) as loader:
        for _ in range(2):
            assert sorted(numbers(loader)) == list(range(samples))
        use = loader.stats().cache
    assert use.kept <= samples // 20
    assert use.cheap + use.kept >= use.misses


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cost", [{"busy": 0.001}, {"asleep": 0.001}])
def test_samples_that_cost_more_are_kept_at_once(name, workers, cost):
    with loader_of(Working(SAMPLES, **cost), cache(name, split=None), num_workers=workers) as loader:
        for _ in range(2):
            assert sorted(numbers(loader)) == EVERYTHING
        use = loader.stats().cache
    assert (use.misses, use.decoded, use.cheap) == (SAMPLES, SAMPLES, 0)


@pytest.mark.parametrize(
    ("split", "fetched", "decoded"), [((100, 0, 0), 1, 2), ((0, 100, 0), 1, 1), ((0, 0, 100), 2, 2)]
)
def test_forms(name, tmp_path, split, fetched, decoded, unchecked):
    """An augmented sample is not served to the job that made it."""
    log = tmp_path / "log"
    with loader_of(Stages(log=log), cache(name, split=split)) as loader:
        for _ in range(2):
            assert sorted(numbers(loader)) == EVERYTHING
    notes = Counter(line.split()[0] for line in log.read_text().splitlines())
    assert notes == {"fetch": fetched * SAMPLES, "decode": decoded * SAMPLES}


AUGMENTED = """
import sys
from tests.loader.test_cache import Marked, cache, loader_of
with loader_of(Marked(), cache(sys.argv[1], split=(0, 0, 100)), num_workers=1) as loader:
    for line in sys.stdin:
        marks = [mark for batch in loader for mark in batch[1].tolist()]
        print(marks, loader.stats().cache.augmented, flush=True)
"""


def test_augmented_samples_are_served_to_another_job_once(name):
    """And to no loader of the job that made them, whenever it is made."""
    with subprocess.Popen(
        [sys.executable, "-c", AUGMENTED, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        found = []
        where = cache(name, split=(0, 0, 100))
        with loader_of(Marked(), where) as waiting:
            epoch = iter(waiting)  # so that somebody else is there
            found += next(epoch)[1].tolist()
            theirs = []
            for _ in range(2):
                print("epoch", file=other.stdin, flush=True)
                marks, served = other.stdout.readline().rsplit(" ", 1)
                theirs += json.loads(marks)
            assert len(set(theirs)) == 2 * SAMPLES
            found += [mark for batch in epoch for mark in batch[1].tolist()]
            for _ in range(2):
                with loader_of(Marked(), where) as again:
                    found += [mark for batch in again for mark in batch[1].tolist()]
        other.stdin.close()
    assert len(set(found)) == 3 * SAMPLES, "none of them twice in this job"
    assert int(served) > 0 or set(found) & set(theirs), "some in both"


class Drawn(Stages):
    """Of each sample, a number that was drawn for it."""

    def augment(self, decoded):
        return decoded[0], int(torch.randint(1 << 40, ()))


SEEDED = """
import sys
import torch
from tests.loader.test_cache import Drawn, cache, loader_of
torch.manual_seed(5)
with loader_of(Drawn(), cache(sys.argv[1], split=(0, 0, 100)), num_workers=1) as loader:
    for line in sys.stdin:
        print(len(list(loader)), flush=True)
"""


@pytest.mark.parametrize(("seed", "in_order", "served"), [(5, False, False), (6, False, True), (6, True, False)])
def test_random_numbers_are_a_jobs_own(name, seed, in_order, served):
    """Of a job with the same seed none are served, and none at all where a run shall be the same again."""

    def run(where):
        torch.manual_seed(seed)
        with loader_of(Drawn(), where, num_workers=1, in_order=in_order) as loader:
            return [batch[1].tolist() for batch in loader], loader.stats().cache

    where = cache(name, split=(0, 0, 100))
    torch.manual_seed(99)
    with subprocess.Popen(
        [sys.executable, "-c", SEEDED, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        with loader_of(Drawn(), where) as waiting:
            epoch = iter(waiting)  # so that somebody else is there
            next(epoch)
            print("epoch", file=other.stdin, flush=True)
            assert other.stdout.readline()
            found, use = run(where)
        other.stdin.close()
    assert (use.augmented > 0) is served
    if in_order:
        assert found == run(None)[0]


def test_persistent_workers_and_a_small_cache(name):
    where = cache(name, size="1MiB")
    with loader_of(Stages(size=4000), where, persistent_workers=True) as loader:
        for _ in range(3):
            assert sorted(numbers(loader)) == EVERYTHING
        use = loader.stats().cache
    assert 0 < use.decoded < 2 * SAMPLES
    assert 0 < use.bytes <= where.bytes
    assert use.decoded + use.misses == 3 * SAMPLES


def test_samples_are_exchanged_for_what_is_cached(name):
    with loader_of(Stages(), cache(name), batch_size=10) as first, loader_of(Stages(), first.cache) as second:
        begun = iter(first)
        some = numbers([next(begun), next(begun)])
        assert sorted(numbers(second)) == EVERYTHING
        assert second.stats().cache.decoded >= len(some)
        assert sorted(some + numbers(begun)) == EVERYTHING
        assert first.stats().cache.exchanged + second.stats().cache.exchanged > 0


JOB = """
import json, sys
import headrace
from tests.loader.test_cache import Stages, cache, loader_of, numbers
name, every, epochs = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
import time
with loader_of(Stages(size=2000), cache(name, size="1200KiB"), num_workers=1) as loader:
    print("up", flush=True)
    for _ in range(epochs):
        found = []
        for batch in loader:
            found += numbers([batch])
            time.sleep(every)
        print(json.dumps([found, loader.stats().cache.decoded]), flush=True)
"""


def job(name, every, epochs):
    return subprocess.Popen(
        [sys.executable, "-c", JOB, name, str(every), str(epochs)], stdout=subprocess.PIPE, text=True
    )


def test_jobs_of_unequal_speeds_share_what_one_has_read(name):
    jobs = [job(name, every, epochs) for every, epochs in ((0.002, 3), (0.01, 2))]
    said = [each.communicate(timeout=240)[0].splitlines()[1:] for each in jobs]
    assert [each.returncode for each in jobs] == [0, 0]
    for lines in said:
        epochs = [json.loads(line) for line in lines]
        assert all(sorted(found) == EVERYTHING for found, _ in epochs)
        assert epochs[-1][1] > 0


def test_a_job_that_is_killed_takes_nothing_with_it(name):
    with job(name, 0.05, 50) as doomed:
        assert doomed.stdout.readline() == "up\n"
        with loader_of(Stages(size=2000), cache(name, size="1200KiB")) as loader:
            epoch = iter(loader)
            found = numbers([next(epoch)])
            doomed.kill()
            assert sorted(found + numbers(epoch)) == EVERYTHING
            assert sorted(numbers(loader)) == EVERYTHING


@pytest.mark.parametrize("order", [{"in_order": False}, {"in_order": True}])
def test_workers_are_killed(name, tmp_path, order):
    with loader_of(Deadly(tmp_path / "mark", {3, 50, 99}), cache(name), **order) as loader:
        for _ in range(2):
            assert sorted(numbers(loader)) == EVERYTHING
        assert loader.stats().restarts >= 3


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("again", ["cache", "none", "another"])
@pytest.mark.sampled
def test_resume_in_the_middle_of_an_epoch(name, workers, again):
    other = f"{name}-b"
    with loader_of(Stages(), cache(name)) as helper, loader_of(Stages(), cache(name)) as loader:
        numbers([next(iter(helper))])
        epoch = iter(loader)
        found = numbers(next(epoch) for _ in range(6))
        state = json.loads(json.dumps(loader.state_dict()))
    where = {"cache": cache(name), "none": None, "another": cache(other)}[again]
    try:
        with loader_of(Stages(), where, num_workers=workers) as resumed:
            resumed.load_state_dict(state)
            rest = iter(resumed)
            found += numbers([next(rest)])
            state = json.loads(json.dumps(resumed.state_dict()))
        with loader_of(Stages(), where, num_workers=workers) as resumed:
            resumed.load_state_dict(state)
            assert sorted(found + numbers(resumed)) == EVERYTHING
            assert sorted(numbers(resumed)) == EVERYTHING
    finally:
        shm.remove(other)


def test_the_state_of_a_job_alone_holds_no_set_of_samples(name):
    with loader_of(Stages(), cache(name)) as loader:
        assert sorted(numbers(loader)) == EVERYTHING
        epoch = iter(loader)
        found = numbers(next(epoch) for _ in range(6))
        state = json.loads(json.dumps(loader.state_dict()))
    assert "exchanged" not in state, "what was delivered follows from the order"
    with loader_of(Stages(), cache(name)) as resumed:
        resumed.load_state_dict(state)
        assert sorted(found + numbers(resumed)) == EVERYTHING


def test_a_state_of_another_epoch_is_refused(name):
    with loader_of(Stages(), cache(name)) as loader:
        next(iter(loader))
        state = loader.state_dict()
        state["exchanged"] = "nonsense"
        with pytest.raises(StateMismatch):
            loader.load_state_dict(state)


def test_a_state_without_a_cache_goes_on_with_one(name):
    with loader_of(Stages(), None) as loader:
        epoch = iter(loader)
        found = numbers(next(epoch) for _ in range(5))
        state = loader.state_dict()
    with loader_of(Stages(), cache(name)) as loader:
        loader.load_state_dict(state)
        assert sorted(found + numbers(loader)) == EVERYTHING
        assert sorted(numbers(loader)) == EVERYTHING


def test_a_changed_transform_finds_nothing(name):
    with loader_of(Stages(), cache(name)) as loader:
        assert sorted(numbers(loader)) == EVERYTHING
    with loader_of(Stages(shift=5), cache(name)) as loader:
        assert sorted(numbers(loader, 5)) == EVERYTHING
        loader.dataset.shift = 9
        assert sorted(numbers(loader, 9)) == EVERYTHING
        assert loader.stats().cache.misses == 2 * SAMPLES


def test_worker_init_fn_must_not_change_the_dataset(name):
    def change(_):
        torch.utils.data.get_worker_info().dataset.shift = 3

    with loader_of(Stages(), cache(name), worker_init_fn=change) as loader, pytest.raises(CacheError, match="init_fn"):
        list(loader)


def entries_of(name):
    """The files of a cache that entries are in."""
    return sorted(path for path in shm.path_of(name).glob("*/entries/*/*"))


def test_corrupt_and_lost_entries_come_from_the_store(name):
    with loader_of(Stages(), cache(name)) as loader:
        assert sorted(numbers(loader)) == EVERYTHING
        files = entries_of(name)
        assert len(files) == SAMPLES
        for path in files[:20]:
            path.unlink()
        for path in files[20:50]:
            with path.open("r+b") as file:
                file.seek(200)
                file.write(b"\xff\xfe\xfd")
        one, other = files[50].read_bytes(), files[51].read_bytes()
        files[50].write_bytes(other)
        files[51].write_bytes(one)
        for _ in range(2):
            assert sorted(numbers(loader)) == EVERYTHING
        assert loader.stats().cache.lost >= 52
        assert loader.stats().cache.misses == SAMPLES + 52, "and are kept anew at once"


def test_a_changed_file_is_read_again(name, tmp_path):
    datasets = pytest.importorskip("torchvision.datasets")
    image = pytest.importorskip("PIL.Image")
    transforms = pytest.importorskip("torchvision.transforms")
    (tmp_path / "a").mkdir()
    for at in range(6):
        image.new("RGB", (8, 8), (at, 0, 0)).save(tmp_path / "a" / f"{at}.png")
    transform = transforms.Compose([transforms.Resize(4), transforms.PILToTensor()])
    dataset = datasets.ImageFolder(str(tmp_path), transform)
    with loader_of(dataset, cache(name), batch_size=2) as loader:

        def reds():
            return sorted(red for pictures, _ in loader for red in pictures[:, 0, 0, 0].tolist())

        assert reds() == list(range(6))
        image.new("RGB", (8, 8), (77, 0, 0)).save(tmp_path / "a" / "3.png")
        assert reds() == [0, 1, 2, 4, 5, 77]
        assert loader.stats().cache.decoded == 5
        assert reds() == [0, 1, 2, 4, 5, 77]
        assert loader.stats().cache.decoded == 11, "what was stale is kept as it is now"


def test_samplers_that_repeat_draw_what_they_draw(name):
    sampler = WeightedRandomSampler([1.0] * 10 + [0.0] * 110, 60, generator=torch.Generator().manual_seed(3))
    expected = [list(sampler) for _ in range(2)]
    sampler.generator.manual_seed(3)
    with loader_of(Stages(), cache(name), sampler=sampler) as loader:
        for drawn in expected:
            assert Counter(numbers(loader)) == Counter(drawn)
        use = loader.stats().cache
    assert use.exchanged == 0
    assert use.decoded > 0


def test_ranks_exchange_within_their_shares(name):
    shares = [DistributedSampler(range(SAMPLES), 2, rank) for rank in range(2)]
    with (
        loader_of(Stages(), cache(name), sampler=shares[0], num_workers=1) as one,
        loader_of(Stages(), cache(name), sampler=shares[1], num_workers=1) as two,
    ):
        for epoch in range(3):
            for sampler in shares:
                sampler.set_epoch(epoch)
            found = [numbers(one), numbers(two)]
            assert [sorted(each) for each in found] == [sorted(sampler) for sampler in shares]
        assert two.stats().cache.decoded > 0


def test_subsets_share_what_is_kept_of_the_whole(name):
    whole = Stages()
    with loader_of(whole, cache(name)) as loader:
        numbers(loader)
    with loader_of(Subset(whole, range(100, 20, -2)), cache(name)) as loader:
        assert sorted(numbers(loader)) == list(range(22, 101, 2))
        assert loader.stats().cache.decoded == 40


def test_two_epochs_at_once(name):
    with loader_of(Stages(), cache(name), num_workers=1) as loader:
        one, two = iter(loader), iter(loader)
        found = numbers([next(one), next(one)]), numbers([next(two)])
        assert sorted(found[0] + numbers(one)) == sorted(found[1] + numbers(two)) == EVERYTHING


def test_the_trace_says_what_the_cache_had(name, tmp_path):
    path = tmp_path / "run.trace"
    with loader_of(Stages(), cache(name), trace=path) as loader:
        for _ in range(2):
            numbers(loader)
    tiers = Counter(read(path).samples["tier"].tolist())
    assert tiers == {0: SAMPLES, 2: SAMPLES}


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_start_methods(name, start):
    with loader_of(Stages(), cache(name), multiprocessing_context=start, num_workers=1) as loader:
        for _ in range(2):
            assert sorted(numbers(loader)) == EVERYTHING
        assert loader.stats().cache.decoded == SAMPLES


@pytest.mark.parametrize("url", ["sqlite", "network"])
def test_stores(name, tmp_path, url):
    dataset = headrace.StoreDataset(filled(tmp_path / "a.db"), augment=add)
    if url == "network":
        dataset.close()
        store = ScriptedStore(Record(f"k{n:03d}", npy(np.full(3, n, np.float32)), n, {}) for n in range(40))
        dataset = headrace.StoreDataset(store, augment=add)
    with loader_of(dataset, cache(name)) as loader:
        for _ in range(2):
            arrays = [batch[0] if isinstance(batch, (list, tuple)) else batch for batch in loader]
            assert sorted(int(row[0]) for array in arrays for row in array) == list(range(1, 41))
        use = loader.stats().cache
        assert (use.misses, use.decoded, use.kept, use.evicted, use.lost) == (40, 40, 40, 0, 0)
    dataset.close()


def add(data):
    data += 1
    return data


def test_datasets_without_stages_are_told_how_to_have_them(name):
    with pytest.raises(CacheError, match="fetch"):
        loader_of(torch.utils.data.TensorDataset(torch.zeros(3)), cache(name))
    with pytest.raises(TypeError, match="cache= takes"):
        loader_of(Stages(), f"shm://{name}")


class TestRedis:
    @pytest.fixture
    def server(self, tmp_path):
        with servers.one(tmp_path) as running:
            yield running

    @pytest.fixture
    def where(self, server):
        return headrace.Cache(f"redis://{USER}:{PASSWORD}@127.0.0.1:{server.port}", size="8MiB", split=(0, 100, 0))

    def test_epochs(self, where):
        with loader_of(Stages(), where) as loader:
            for _ in range(2):
                assert sorted(numbers(loader)) == EVERYTHING
            use = loader.stats().cache
            assert (use.decoded, use.kept) == (SAMPLES, SAMPLES)
            assert use.bytes > 0
        with loader_of(Stages(), where, in_order=True, shuffle=False) as loader:
            assert numbers(loader) == EVERYTHING
            assert loader.stats().cache.decoded == SAMPLES

    def test_two_jobs(self, where):
        with loader_of(Stages(), where) as first, loader_of(Stages(), where) as second:
            begun = iter(first)
            some = numbers([next(begun), next(begun)])
            assert sorted(numbers(second)) == EVERYTHING
            assert sorted(some + numbers(begun)) == EVERYTHING
            assert first.stats().cache.decoded + second.stats().cache.decoded > 0

    @pytest.mark.parametrize("order", [{"in_order": False}, {"in_order": True}])
    def test_the_server_goes_away_and_comes_back(self, server, where, order):
        with loader_of(Stages(), where, num_workers=1, **order) as loader:
            epoch = iter(loader)
            found = numbers([next(epoch), next(epoch)])
            server.kill()
            assert sorted(found + numbers(epoch)) == EVERYTHING
            assert sorted(numbers(loader)) == EVERYTHING
            server.start()
            assert sorted(numbers(loader)) == EVERYTHING

    def test_the_server_comes_back_in_the_middle_of_an_epoch(self, server, where, monkeypatch):
        """It has forgotten everything, and is told again: who sits there, what was served, how it is divided."""
        monkeypatch.setattr(redis_server, "FIRST", 0.0)
        with loader_of(Stages(), where, num_workers=1, prefetch_factor=1) as loader:
            epoch = iter(loader)
            found = numbers([next(epoch), next(epoch)])
            server.kill()
            found += numbers([next(epoch), next(epoch)])
            server.start()
            assert sorted(found + numbers(epoch)) == EVERYTHING
            kept = loader.stats().cache.kept
            assert kept > 0
            assert loader.stats().cache.division.split == (0, 100, 0)
            before = loader.stats().cache.misses
            assert sorted(numbers(loader)) == EVERYTHING
            assert loader.stats().cache.misses == before + SAMPLES - kept

    def test_a_cluster_with_tls(self, tmp_path):
        with servers.cluster(tmp_path, tls=True) as nodes:
            url = f"rediss://127.0.0.1:{nodes[0].secure_port}?ssl_ca_certs={material().ca}"
            with loader_of(Stages(), headrace.Cache(url, size="8MiB", split=(0, 100, 0))) as loader:
                for _ in range(2):
                    assert sorted(numbers(loader)) == EVERYTHING
                assert loader.stats().cache.decoded == SAMPLES
            assert all(servers.keys(node.port, "hr:cache:*") for node in nodes)

    def test_a_server_that_is_not_there(self, server, where):
        server.kill()
        with loader_of(Stages(), where) as loader, pytest.raises(CacheError) as raised:
            iter(loader)
        assert PASSWORD not in str(raised.value)


class Costly(Stages):
    """Dear to fetch, small as stored, large as decoded: what fits into a small cache is what is stored."""

    def fetch(self, index):
        time.sleep(0.004)
        return super().fetch(index)

    def decode(self, encoded):
        return int(encoded), np.full(20_000, int(encoded), np.int64)


@pytest.fixture
def eager(monkeypatch):
    """A loader that looks at what is measured with every request, on a machine where nothing else wants the cores.

    What is best to keep may be something else where it does.
    """
    monkeypatch.setattr(dividing, "machine", lambda: (0.0, 64))
    monkeypatch.setattr(dividing, "own_cores", lambda: 64.0)
    monkeypatch.setattr(dividing, "LOOK", 0.0)
    monkeypatch.setattr(stagetimes, "TELL_NS", 0)


class TestDivision:
    @pytest.mark.parametrize("workers", [0, 2])
    def test_is_planned_from_what_is_measured_and_moved_to_while_running(self, name, eager, tmp_path, workers):
        path = tmp_path / "trace"
        with loader_of(Costly(), cache(name, size="2MiB", split=None), num_workers=workers, trace=path) as loader:
            for _ in range(12):
                before = loader.stats().cache.misses
                assert sorted(numbers(loader)) == EVERYTHING
                use = loader.stats().cache
                if use.misses == before:
                    break
            assert use.misses == before, "nothing had to be fetched again once there was room for everything"
            assert use.division.split[0] > 0
            assert use.encoded > 0
            assert "samples/s predicted, with" in use.division.why
            known = dict(use.division.measured)
            assert known["fetch_seconds"] > 0.004
            assert known["decoded_bytes"] > 160_000
            assert 0 < known["cpu_seconds"] < 1
            assert known["encoded_bytes"] < 10_000
            assert (known["jobs"], known["lanes"]) == (1, max(1, workers))
        trace = read(path)
        divisions = measure(trace, loaders(trace)[0]).divisions
        assert divisions[0].startswith("0-100-0: to begin with")
        assert divisions[-1] == f"{'-'.join(map(str, use.division.split))}: {use.division.why}"

    def test_of_two_jobs_is_one(self, name, eager):
        with loader_of(Costly(), cache(name, size="2MiB", split=None)) as one, loader_of(Costly(), one.cache) as two:
            for _ in range(3):
                assert sorted(numbers(one)) == sorted(numbers(two)) == EVERYTHING
            assert one.stats().cache.division.split == two.stats().cache.division.split != (0, 100, 0)

    def test_that_a_user_fixed_stays(self, name, eager):
        with loader_of(Costly(), cache(name, size="2MiB", split=(0, 100, 0))) as loader:
            for _ in range(3):
                assert sorted(numbers(loader)) == EVERYTHING
            assert loader.stats().cache.division.split == (0, 100, 0)
            assert loader.stats().cache.division.why == "fixed by the user"
            with loader_of(Costly(), cache(name, size="2MiB", split=None)) as other:
                assert sorted(numbers(other)) == EVERYTHING
                assert other.stats().cache.division.split == (0, 100, 0)


def test_a_worker_that_is_killed_while_it_keeps_something_leaves_nothing(name, tmp_path, monkeypatch):
    settle, mark = local_tables.LocalAside.settle, tmp_path / "mark"

    def deadly(aside):
        with contextlib.suppress(FileExistsError):
            mark.touch(exist_ok=False)  # in one step: two workers may be here at once
            os.kill(os.getpid(), signal.SIGKILL)
        return settle(aside)

    monkeypatch.setattr(local_tables.LocalAside, "settle", deadly)
    where = cache(name, split=(0, 100, 0))
    with loader_of(Stages(), where) as loader:
        assert sorted(numbers(loader)) == EVERYTHING
        assert loader.stats().restarts == 1
        for _ in range(2):
            assert sorted(numbers(loader)) == EVERYTHING
        before = loader.stats().cache.misses
        assert sorted(numbers(loader)) == EVERYTHING
        assert loader.stats().cache.misses == before
        assert len(entries_of(name)) == SAMPLES


def test_the_job_is_the_same_after_a_resume(name):
    with loader_of(Stages(), cache(name)) as loader:
        next(iter(loader))
        state = loader.state_dict()
        job = state["job"]
    with loader_of(Stages(), cache(name)) as loader:
        loader.load_state_dict(state)
        assert len(numbers(loader)) == SAMPLES - 8
        assert loader.state_dict()["job"] == job
        broken = {**state, "job": "../../etc"}
        with pytest.raises(StateMismatch):
            loader.load_state_dict(broken)


def test_a_subset_may_have_a_sample_twice(name):
    with loader_of(Subset(Stages(), [5, 7, 5, 9] * 4), cache(name)) as loader:
        for _ in range(2):
            assert sorted(numbers(loader)) == sorted([5, 7, 5, 9] * 4)


def test_without_exchange_samples_come_as_drawn(name):
    with loader_of(Stages(), cache(name, exchange=False)) as one, loader_of(Stages(), one.cache) as two:
        begun = iter(one)
        next(begun)
        assert sorted(numbers(two)) == EVERYTHING
        assert two.stats().cache.exchanged == 0


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


RANK = """
import json, sys
import torch
import headrace
from tests.loader.test_cache import Marked, cache, loader_of, numbers
from torch.utils.data import DistributedSampler
torch.distributed.init_process_group("gloo")
rank, name, split = torch.distributed.get_rank(), sys.argv[1], tuple(json.loads(sys.argv[2]))
data = Marked()
sampler = DistributedSampler(data, seed=3)
with loader_of(data, cache(name, split=split), sampler=sampler, num_workers=1) as loader:
    for epoch in range(4):
        sampler.set_epoch(epoch)
        found = [pair for batch in loader for pair in zip(batch[0].tolist(), batch[1].tolist())]
        torch.distributed.barrier()
        use = loader.stats().cache
        print(json.dumps([sorted(sampler), found, use.misses, dict(use.division.measured).get("jobs")]), flush=True)
torch.distributed.destroy_process_group()
"""


class Marked(Stages):
    """Of each sample, a number that no two of its augmentations share."""

    def augment(self, decoded):
        return decoded[0], int.from_bytes(os.urandom(6), "little")


@pytest.mark.parametrize("split", [pytest.param((0, 100, 0), marks=pytest.mark.soak), (0, 0, 100)])
def test_ranks_of_a_job_are_served_their_shares_and_no_augmentation_twice(name, split):
    port = str(free_port())
    launched = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    command = [sys.executable, "-c", RANK, name, json.dumps(split)]
    ranks = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **launched, "RANK": str(rank)})
        for rank in range(2)
    ]
    said = [[json.loads(line) for line in rank.communicate(timeout=240)[0].splitlines()] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    augmentations = []
    for epoch in range(4):
        for share, found, _, jobs in (lines[epoch] for lines in said):
            assert sorted(index for index, _ in found) == share
            augmentations += [mark for _, mark in found]
            assert jobs in {None, 1.0}
        assert sorted(said[0][epoch][0] + said[1][epoch][0]) == EVERYTHING
    assert len(set(augmentations)) == 4 * SAMPLES
    hits = 4 * SAMPLES - sum(lines[-1][2] for lines in said)
    assert hits > 0 if split[1] else hits == 0


class Rows(torch.utils.data.Dataset):
    """Of a store behind a network; it cannot read for itself."""

    def __init__(self, store):
        self.store, self.keys = store, store.keys()
        self.retry = Retry(attempts=2, first=0.01)

    def cache_fingerprint(self):
        return len(self.keys)

    def __len__(self):
        return len(self.keys)

    def fetch(self, index):
        raise AssertionError(f"the loader should have brought row {index}")

    def encoded_of(self, index, row):
        return row.payload, row.label

    def decode(self, encoded):
        payload, label = encoded
        assert payload == (str(label).encode() * self.store.size)[: self.store.size]
        return label, np.full(500, label, np.int64)

    def augment(self, decoded):
        return decoded

    def made_of(self, index, row):
        return self.augment(self.decode(self.encoded_of(index, row)))

    def __getitem__(self, index):
        return self.augment(self.decode(self.fetch(index)))


class TestNetwork:
    """Rows that the cache has not are brought by the fetcher, those that it has are not asked for."""

    @pytest.mark.parametrize("order", [{"in_order": False}, {"in_order": True, "shuffle": False}])
    def test_rows_are_brought_once(self, name, order):
        with loader_of(Rows(RemoteNumbers(SAMPLES)), cache(name, split=(0, 100, 0)), **order) as loader:
            for _ in range(3):
                found = numbers(loader)
                assert sorted(found) == EVERYTHING
                assert order["in_order"] is False or found == EVERYTHING
            use = loader.stats()
        assert (use.cache.misses, use.cache.decoded, use.network.rows) == (SAMPLES, 2 * SAMPLES, SAMPLES)

    def test_where_not_all_is_cached(self, name):
        part = Subset(Rows(RemoteNumbers(200, slow={7: 0.3})), range(100, 80, -1))
        with loader_of(part, cache(name, size="1MiB", split=(0, 100, 0)), persistent_workers=True) as loader:
            for _ in range(3):
                assert sorted(numbers(loader)) == list(range(81, 101))
        with loader_of(Rows(RemoteNumbers(400)), cache(name, size="1MiB", split=(0, 100, 0))) as loader:
            for _ in range(3):
                assert sorted(numbers(loader)) == list(range(400))
            use = loader.stats()
        assert 0 < use.cache.decoded < 800
        assert use.network.rows == use.cache.misses == 1200 - use.cache.decoded

    def test_a_fetcher_and_workers_that_die(self, name, tmp_path):
        store = RemoteNumbers(SAMPLES, kills={11, 60}, marks=tmp_path)
        with loader_of(Rows(store), cache(name, split=(0, 100, 0))) as loader:
            batches = iter(loader)
            found = numbers([next(batches)])
            os.kill(next(iter(loader._latest.pool.pids())), signal.SIGKILL)
            assert sorted(found + numbers(batches)) == EVERYTHING
            assert sorted(numbers(loader)) == EVERYTHING

    @pytest.mark.parametrize("later", [True, False], ids=["cached", "without"])
    def test_an_epoch_that_goes_on(self, name, later):
        where = cache(name, split=(0, 100, 0))
        with loader_of(Rows(RemoteNumbers(SAMPLES)), where) as loader:
            list(loader)
            batches = iter(loader)
            found = numbers(next(batches) for _ in range(5))
            state = loader.state_dict()
        with loader_of(Rows(RemoteNumbers(SAMPLES)), where if later else None) as loader:
            loader.load_state_dict(state)
            assert sorted(found + numbers(loader)) == EVERYTHING

    def test_a_row_that_is_missing(self, name):
        with loader_of(Rows(RemoteNumbers(40, missing={5})), cache(name), on_error=headrace.Skip(1.0)) as loader:
            assert sorted(numbers(loader)) == [each for each in range(40) if each != 5]
            assert loader.stats().failed == 1
