"""``close()`` ends workers and gives memory back, whatever else raises on the way."""

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.utils.data import SequentialSampler

import headrace
from headrace.devices import device_part
from headrace.engine.memory.slab import Slab
from headrace.engine.trainer.page import FiguresPage
from headrace.observing.tracing import RunTrace
from tests.engine.scripted_device import ScriptedAccelerator
from tests.loader.data import Numbers
from tests.parity.datasets import Squares
from tests.parity.support import children, lists, raises, samples

N = 20


class Unsure(SequentialSampler):
    """A sampler that cannot say where it stands."""

    def state_dict(self):
        raise OSError("no state")

    def load_state_dict(self, state):
        """Nothing to do."""


@pytest.fixture
def given_back(monkeypatch):
    """Memory that was reserved and not given back; empty after ``loader.close()``."""
    held = set()
    begin, close = Slab.__init__, Slab.close

    def begun(self, *args):
        begin(self, *args)
        held.add(id(self.memory))

    def closed(self):
        held.discard(id(self.memory))
        close(self)

    monkeypatch.setattr(Slab, "__init__", begun)
    monkeypatch.setattr(Slab, "close", closed)
    return held


@pytest.mark.parametrize("persistent", [False, True])
def test_a_sampler_that_cannot_say_where_it_stands(persistent, given_back):
    before = children()
    loader = headrace.DataLoader(Squares(N), 2, sampler=Unsure(range(N)), num_workers=2, persistent_workers=persistent)
    iterator = iter(loader)
    next(iterator)
    with raises(OSError, match="no state"):
        loader.close()
    assert children() == before
    assert not given_back
    with raises(headrace.LoaderClosed):
        next(iterator)
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_it_draws_all_the_same(workers):
    with headrace.DataLoader(Squares(N), 2, sampler=Unsure(range(N)), num_workers=workers) as loader:
        assert samples(loader) == [i * i for i in range(N)]
        iterator = iter(loader)
        assert next(iterator).tolist() == [0, 1]
        with raises(OSError, match="no state"):
            loader.state_dict()
        assert [value for batch in iterator for value in batch.tolist()] == [i * i for i in range(2, N)]


def test_several_iterations_are_closed_although_each_raises(given_back):
    before = children()
    loader = headrace.DataLoader(Squares(N), 2, sampler=Unsure(range(N)), num_workers=1)
    iterators = [iter(loader), iter(loader)]
    with raises(OSError, match="no state"):
        loader.close()
    assert children() == before
    assert not given_back
    del iterators


def test_a_device_that_fails(monkeypatch, given_back):
    before, device = children(), ScriptedAccelerator()
    monkeypatch.setattr(device_part, "accelerator", lambda *_, **__: device)
    loader = headrace.DataLoader(Squares(N), 2, num_workers=2, device="cuda")
    iterator = iter(loader)
    next(iterator)

    def fails():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    device.before_finish = fails
    with raises(RuntimeError, match="illegal memory access"):
        loader.close()
    assert children() == before
    assert not given_back
    del iterator


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("kind", "name"), [(RunTrace, "ended"), (FiguresPage, "show")])
def test_a_trace_that_fails_at_the_end(stream, kind, name, tmp_path, monkeypatch, given_back):
    before = children()
    dataset = Numbers(4) if stream else Squares(4)
    loader = headrace.DataLoader(dataset, 2, num_workers=1, trace=tmp_path / "trace")
    iterator = iter(loader)
    next(iterator), next(iterator)

    def fails(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(kind, name, fails)
    with raises(OSError, match="No space left"):
        next(iterator)
    assert children() == before
    assert list(iterator) == []
    loader.close()
    assert not given_back


def test_an_interrupted_close_can_be_repeated(monkeypatch, given_back):
    before = children()
    loader = headrace.DataLoader(Squares(N), 2, num_workers=1, persistent_workers=True)
    iterator = iter(loader)
    next(iterator)
    with monkeypatch.context() as patched:
        patched.setattr(type(loader._latest), "count", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with raises(KeyboardInterrupt):
            loader.close()
    assert children() == before
    loader.close()
    assert not given_back
    assert samples(loader) == [i * i for i in range(N)]
    loader.close()


@pytest.mark.parametrize("persistent", [False, True])
def test_an_epoch_that_cannot_begin_leaves_nothing(persistent, given_back):
    class Fails(SequentialSampler):
        fails = False

        def __iter__(self):
            if self.fails:
                raise OSError("no order")
            return super().__iter__()

    before, sampler = children(), Fails(range(N))
    loader = headrace.DataLoader(Squares(N), None, sampler=sampler, num_workers=1, persistent_workers=persistent)
    assert list(loader) == [i * i for i in range(N)]
    sampler.fails = True
    for _ in range(2):
        with raises(OSError, match="no order"):
            iter(loader)
        assert children() == before
    sampler.fails = False
    assert list(loader) == [i * i for i in range(N)]
    loader.close()
    assert children() == before
    assert not given_back
    assert lists(headrace.DataLoader(Squares(2), 2, num_workers=0)) == [[0, 1]]


def test_threads_that_have_a_loader_each():
    """One drops its iterations while others begin theirs."""

    def epochs(persistent):
        with headrace.DataLoader(Squares(200), batch_size=7, num_workers=2, persistent_workers=persistent) as loader:
            return [[number for batch in loader for number in batch.tolist()] for _ in range(3)]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(epochs, [True, False, True, False]))
    assert found == [[[number**2 for number in range(200)]] * 3] * 4


def test_an_iterator_collected_by_a_look_at_it(given_back):
    """The collector may come wherever something is made, also where a state is."""
    before, loader = children(), headrace.DataLoader(Squares(N), 2, num_workers=2)
    cycle = [iter(loader)]
    next(cycle[0])
    cycle.append(cycle)
    del cycle
    assert children() != before
    with loader._latest.quiet():
        gc.collect()
        assert children() != before, "not while somebody looks"
    assert children() == before
    assert loader.state_dict()["yielded"] == 1
    loader.close()
