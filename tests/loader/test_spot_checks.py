"""What a cache gives is made anew now and then: what no fingerprint sees is found, said, and not used any more."""

import codecs
import os
import random
from functools import cached_property

import numpy as np
import pytest
import torch

import headrace
from headrace.cache.backends.shm import remove
from headrace.caching import spot_checks
from headrace.caching.counts import Counter
from tests.cache import servers
from tests.cache.servers import PASSWORD, USER
from tests.names import new_name

SAMPLES = 24


@pytest.fixture(params=["shm", "redis"])
def cache(request, tmp_path):
    if request.param == "shm":
        name = new_name()
        yield headrace.Cache(f"shm://{name}", size="4MiB", split=(0, 100, 0))
        remove(name)
        return
    with servers.one(tmp_path) as server:
        yield headrace.Cache(f"redis://{USER}:{PASSWORD}@127.0.0.1:{server.port}", size="4MiB", split=(0, 100, 0))


class Data(torch.utils.data.Dataset):
    """Samples are numbers; each class decodes them by something that a fingerprint does not see."""

    def __len__(self):
        return SAMPLES

    def fetch(self, index):
        return str(index)

    def decode(self, encoded):
        return self.made(torch.full((4,), int(encoded)) + torch.arange(4))

    def made(self, value):
        return value

    def augment(self, decoded):
        return decoded

    def __getitem__(self, index):
        return self.augment(self.decode(self.fetch(index)))


class Flipped(Data):
    def made(self, value):
        return torch.flip(value, (0,))

    @staticmethod
    def change(monkeypatch, tmp_path):
        monkeypatch.setattr(torch, "flip", lambda value, dims: value * 2)


class Hooked(Data):
    module = torch.nn.Identity()

    def made(self, value):
        return self.module(value)

    @staticmethod
    def change(monkeypatch, tmp_path):
        HOOKS.append(torch.nn.modules.module.register_module_forward_hook(lambda module, given, made: made + 5))


class Inherited(Data):
    """What is pickled of it is not all that a forked process has."""

    def __init__(self):
        self.more = FACTS["more"]

    def __getstate__(self):
        return {}

    def made(self, value):
        return value + self.more

    @staticmethod
    def change(monkeypatch, tmp_path):
        monkeypatch.setitem(FACTS, "more", 7)


HOOKS = []
FACTS = {"more": 1}


def universal(by):
    def counted(value):
        return value + by

    return np.frompyfunc(counted, 1, 1)


class Universal(Data):
    """A function of numpy's, made of one of Python's."""

    def made(self, value):
        return torch.from_numpy(FUNCTIONS["made"](value.numpy()).astype(np.int64))

    @staticmethod
    def change(monkeypatch, tmp_path):
        monkeypatch.setitem(FUNCTIONS, "made", universal(3))


FUNCTIONS = {"made": universal(1)}


def replaced(by):
    return lambda error: (by, error.end)


class Registered(Data):
    """By a name that the library looks up."""

    def made(self, value):
        return value + len("\xe4".encode("ascii", "headrace-test"))

    @staticmethod
    def change(monkeypatch, tmp_path):
        codecs.register_error("headrace-test", replaced("xyz"))


class Warmed(Data):
    """A table that was read when it was first wanted."""

    def __init__(self, path):
        self.path = path

    @cached_property
    def table(self):
        return int(self.path.read_text())

    def made(self, value):
        return value + self.table

    @staticmethod
    def change(monkeypatch, tmp_path):
        (tmp_path / "table").write_text("9")


HOLES = [Flipped, Hooked, Inherited, Universal, Registered, Warmed]


@pytest.fixture(autouse=True)
def made_good(tmp_path):
    codecs.register_error("headrace-test", replaced("x"))
    (tmp_path / "table").write_text("2")
    yield
    while HOOKS:
        HOOKS.pop().remove()


def new(kind, tmp_path):
    return kind(tmp_path / "table") if kind is Warmed else kind()


def epoch(loader):
    return sorted(tuple(sample) for batch in loader for sample in batch.tolist())


def made_by(dataset):
    return sorted(tuple(dataset[index].tolist()) for index in range(SAMPLES))


@pytest.mark.sampled
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("kind", HOLES)
def test_what_no_fingerprint_sees_is_found_with_the_first_hits(kind, workers, cache, monkeypatch, tmp_path):
    options = {"batch_size": 4, "num_workers": workers, "cache": cache}
    dataset = new(kind, tmp_path)
    old = made_by(dataset)
    with headrace.DataLoader(dataset, **options) as loader:
        assert epoch(loader) == old
        assert epoch(loader) == old
        use = loader.stats().cache
        assert (use.misses, use.decoded, use.differing) == (SAMPLES, SAMPLES, 0)
        assert use.checked >= spot_checks.FEW
    kind.change(monkeypatch, tmp_path)
    dataset = new(kind, tmp_path)
    wanted = made_by(dataset)
    assert wanted != old
    with headrace.DataLoader(dataset, **options) as loader:
        with pytest.warns(RuntimeWarning, match="found with the decoded sample .*headrace cache clear"):
            assert epoch(loader) == wanted
        assert epoch(loader) == wanted
        use = loader.stats().cache
        assert use.differing >= 1
        assert use.bytes == 0 or workers == 2  # what another was about to keep then
        assert use.decoded == use.differing
    with headrace.DataLoader(dataset, **options) as loader:
        with pytest.warns(RuntimeWarning, match="found so before"):
            assert epoch(loader) == wanted
        assert loader.stats().cache.misses == SAMPLES


class Random(Data):
    """Decoding draws, which changes nothing of what it makes; a hit does not."""

    def augment(self, decoded):
        return decoded + torch.randint(1000, ()) + random.randrange(1000)

    def decode(self, encoded):
        torch.rand(3), random.random()
        return super().decode(encoded)


def test_a_check_draws_no_random_numbers(cache, monkeypatch):
    def run(few):
        monkeypatch.setattr(spot_checks, "FEW", few)
        monkeypatch.setattr(spot_checks, "SHARE", 0)
        torch.manual_seed(3)
        with headrace.DataLoader(Random(), 4, num_workers=1, cache=cache, in_order=True) as loader:
            return [epoch(loader) for _ in range(3)][1:], loader.stats().cache.checked

    run(0)
    first, second = run(0), run(4)
    assert first[0] == second[0]
    assert (first[1], second[1]) == (0, 4)


def test_checks_take_no_more_than_their_share():
    counter = Counter(-1, 0)
    found = spot_checks.SpotChecks(counter, codec=None)
    hits = made = 0
    for _ in range(200_000):
        if found.due(2):
            made += 1
            counter.credit -= 5_000_000
            counter.cost = 5_000_000
            counter.check(2)
        found.passed(500_000)
        hits += 1
    assert spot_checks.FEW < made <= spot_checks.FEW + hits * 500_000 * spot_checks.SHARE / 5_000_000


def test_what_was_checked_is_known_to_the_worker_that_comes_after(tmp_path):
    fd = os.memfd_create("counts")
    first = Counter(fd, 3)
    first.check(1)
    first.check(2)
    first.credit, first.cost = -5, 7
    first.tell()
    second = Counter(fd, 3)
    assert (second.checked(1), second.checked(2), second.credit, second.cost) == (1, 1, -5, 7)
    second.differs(11, 2)
    os.close(fd)


def test_sets_have_no_order():
    assert spot_checks._unordered({"a": [1, {2}]})
    assert not spot_checks._unordered(({"a": 1}, [2]))


class Gone(Data):
    """Its store may not be there any more, or its samples cannot be made."""

    def fetch(self, index):
        if os.environ.get("GONE") == "network":
            raise ConnectionError(index)
        return super().fetch(index) if "GONE" not in os.environ else index / 0


@pytest.mark.parametrize("workers", [0, 1])
def test_a_hit_needs_no_store(workers, cache, monkeypatch):
    options = {"batch_size": 4, "num_workers": workers, "cache": cache}
    with headrace.DataLoader(Gone(), **options) as loader:
        found = epoch(loader)
    monkeypatch.setenv("GONE", "network")
    with headrace.DataLoader(Gone(), **options) as loader:
        assert epoch(loader) == found
        assert loader.stats().cache.decoded == SAMPLES
    monkeypatch.setenv("GONE", "for good")
    with headrace.DataLoader(Gone(), **options) as loader:
        if workers:
            assert epoch(loader) == found
        else:  # it might as well be what a signal's handler raised
            with pytest.raises(ZeroDivisionError):
                epoch(loader)
