"""Samples of a store behind a network: brought by a process of its own, each exactly once, whatever happens."""

import multiprocessing
import os
import select
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.data import Dataset, Subset

import headrace
from headrace.core.errors import MissingKey, StoreRefused
from headrace.core.options import Loading, Prefetch, Retry
from headrace.engine.processes.worker_pool import Pool
from headrace.engine.trainer.inline import InlineRun
from headrace.fetching import fetcher_process
from headrace.fetching.fetcher import Fetcher
from tests.engine.remote import RemoteNumbers
from tests.loader.steps import collecting_calls_nobody, inside, is_in
from tests.parity.support import wait_until


class Numbers(Dataset):
    """The rows of a ``RemoteNumbers`` as (label, length of the payload); dies if it has to read for itself."""

    def __init__(self, store):
        self.store, self.keys = store, store.keys()
        self.retry = Retry(attempts=2, first=0.01)

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, index):
        self.keys[index]
        raise AssertionError("the loader should have brought this row")

    def made_of(self, index, row):
        assert row.key == self.keys[index]
        assert row.payload == (row.key.encode() * self.store.size)[: self.store.size]
        return row.label, len(row.payload)


def loader_of(store, **options):
    options = {"batch_size": 8, "num_workers": 2} | options
    return headrace.DataLoader(Numbers(store), **options)


def labels(batches):
    return [label for batch, _ in batches for label in batch.tolist()]


@pytest.mark.parametrize("order", [{"in_order": True}, {"shuffle": True, "in_order": False}])
def test_every_row_comes_once(order):
    with loader_of(RemoteNumbers(203), **order) as loader:
        for _ in range(2):
            assert sorted(labels(loader)) == list(range(203))


def test_sampler_order_is_kept():
    with loader_of(RemoteNumbers(100, slow={3: 0.2, 50: 0.1}), in_order=True) as loader:
        assert labels(loader) == list(range(100))


def test_completion_order_does_not_wait_for_a_slow_row():
    with loader_of(RemoteNumbers(80, slow={0: 1.5}), shuffle=True, in_order=False) as loader:
        found = labels(loader)
    assert sorted(found) == list(range(80))
    assert found.index(0) >= 64


def test_batches_of_a_batch_sampler_stay_whole():
    batches = [[3, 1], [], [7, 5, 2], [0], [6, 4]]
    with loader_of(RemoteNumbers(8), batch_size=1, batch_sampler=batches, in_order=False, collate_fn=list) as loader:
        found = [[label for label, _ in batch] for batch in loader]
    assert sorted(found) == sorted(batches)


def test_single_samples():
    with loader_of(RemoteNumbers(20), batch_size=None) as loader:
        assert [label for label, _ in loader] == list(range(20))


def test_a_subset_of_a_subset():
    dataset = Subset(Subset(Numbers(RemoteNumbers(50)), range(10, 50)), [5, 0, 39])
    with headrace.DataLoader(dataset, batch_size=2, num_workers=2) as loader:
        assert labels(loader) == [15, 10, 49]


@pytest.mark.parametrize("in_order", [True, False])
def test_a_missing_row_raises_and_names_key_and_store(in_order):
    with (
        loader_of(RemoteNumbers(40, missing={11}), shuffle=not in_order, in_order=in_order) as loader,
        pytest.raises(MissingKey, match="numbers://nowhere has no row with the key '11'") as caught,
    ):
        list(loader)
    assert any("sample 11" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("in_order", [True, False])
def test_missing_rows_can_be_skipped(in_order):
    store = RemoteNumbers(60, missing={11, 40})
    with loader_of(store, shuffle=not in_order, in_order=in_order, on_error=headrace.Skip(0.1)) as loader:
        assert sorted(labels(loader)) == [number for number in range(60) if number not in {11, 40}]
        assert sorted(failure.index for failure in loader.stats().skipped) == [11, 40]


def test_a_store_that_refuses_says_so_in_next():
    with loader_of(RemoteNumbers(refuses=True)) as loader:
        iterator = iter(loader)
        for _ in range(2):
            with pytest.raises(StoreRefused, match="wrong password"):
                next(iterator)


def test_a_store_that_refuses_while_the_epoch_begins_says_so_in_next(monkeypatch):
    def heard(fetcher):
        select.select([fetcher.waited_for()[0]], [], [], 30)  # what it refuses is there, and not yet looked at
        return True

    monkeypatch.setattr(Fetcher, "works", heard)
    with loader_of(RemoteNumbers(refuses=True)) as loader:
        iterator = iter(loader)
        for _ in range(2):
            with pytest.raises(StoreRefused, match="wrong password"):
                next(iterator)


def test_an_index_that_is_not_there_raises_what_the_dataset_says():
    with loader_of(RemoteNumbers(8), sampler=[0, 99, 1]) as loader, pytest.raises(IndexError):
        list(loader)


@pytest.mark.parametrize("in_order", [True, False])
def test_a_killed_fetcher_costs_no_row(in_order, tmp_path):
    store = RemoteNumbers(300, kills={20, 21, 150, 299}, marks=str(tmp_path))
    with loader_of(store, shuffle=not in_order, in_order=in_order) as loader:
        assert sorted(labels(loader)) == list(range(300))


@pytest.mark.parametrize("in_order", [True, False])
def test_a_fetcher_that_hangs_costs_no_row(in_order, tmp_path, monkeypatch):
    monkeypatch.setattr(fetcher_process, "SILENT_SECONDS", 3.0)
    store = RemoteNumbers(200, stops={100}, marks=str(tmp_path))
    with loader_of(store, shuffle=not in_order, in_order=in_order) as loader:
        assert sorted(labels(loader)) == list(range(200))
        assert loader.stats().network.restarts >= 1


class Deadly(Numbers):
    """Takes its worker down with it when row 47 is made for the first time."""

    def __init__(self, store, mark):
        super().__init__(store)
        self.mark = mark

    def made_of(self, index, row):
        if index == 47 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().made_of(index, row)


@pytest.mark.parametrize("in_order", [True, False])
def test_a_worker_killed_on_the_way_costs_no_row(in_order, tmp_path):
    dataset, options = Deadly(RemoteNumbers(200), tmp_path / "dead"), {"shuffle": not in_order, "in_order": in_order}
    with headrace.DataLoader(dataset, batch_size=8, num_workers=2, **options) as loader:
        assert sorted(labels(loader)) == list(range(200))
        assert loader.stats().restarts == 1


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("taken", [0, 1, 5])
def test_a_resumed_epoch_delivers_the_rest(in_order, taken):
    options = {"shuffle": True, "in_order": in_order, "generator": torch.Generator().manual_seed(3)}
    with loader_of(RemoteNumbers(100), **options) as loader:
        iterator = iter(loader)
        before = labels(next(iterator) for _ in range(taken))
        state = loader.state_dict()
    options["generator"] = torch.Generator().manual_seed(3)
    with loader_of(RemoteNumbers(100), **options) as loader:
        loader.load_state_dict(state)
        after = labels(loader)
    assert sorted(before + after) == list(range(100))


def test_persistent_workers_and_one_fetcher_serve_all_epochs():
    with loader_of(RemoteNumbers(64), shuffle=True, persistent_workers=True) as loader:
        for _ in range(4):
            assert sorted(labels(loader)) == list(range(64))


def test_an_epoch_that_is_left_early_leaves_nothing_behind():
    with loader_of(RemoteNumbers(500, delay=0.01), persistent_workers=True) as loader:
        for _ in range(3):
            iterator = iter(loader)
            next(iterator)
        assert labels(loader) == list(range(500))


@pytest.mark.parametrize("workers", [2, 0])
def test_interrupts_cost_no_row(workers):
    """Signals whose handler raises, at any moment; what was not delivered comes later."""

    class Interrupt(Exception):
        pass

    def handler(_, frame):
        if inside(frame):
            raise Interrupt

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        remote = loader_of(RemoteNumbers(400, delay=0.002), in_order=True, num_workers=workers)
        with collecting_calls_nobody(), remote as loader:
            found, iterator, interrupts = [], iter(loader), 0
            while True:
                timer = threading.Timer(0.013 if interrupts < 25 else 60, signal.raise_signal, [signal.SIGUSR1])
                timer.start()
                try:
                    found += labels([next(iterator)])
                except Interrupt:
                    interrupts += 1
                except StopIteration:
                    break
                finally:
                    timer.cancel()
                    timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert found == list(range(400))


class TestInThisProcess:
    """``num_workers=0``: rows still come many at a time, and in sampler order."""

    def test_every_row_comes_once_in_order(self):
        with loader_of(RemoteNumbers(203, slow={3: 0.2}), num_workers=0) as loader:
            for _ in range(2):
                assert labels(loader) == list(range(203))
            assert loader.stats().network.rows >= 406

    def test_many_are_in_flight(self):
        """One after the other, none would come."""
        loading = Loading(prefetch=Prefetch(window=8, ramp=0))
        with loader_of(RemoteNumbers(32, together=8), num_workers=0, loading=loading) as loader:
            assert labels(loader) == list(range(32))

    def test_batches_of_a_batch_sampler(self):
        batches = [[3, 1], [], [7, 5, 2], [0], [6, 4]]
        options = {"batch_size": 1, "batch_sampler": batches, "collate_fn": list, "num_workers": 0}
        with loader_of(RemoteNumbers(8), **options) as loader:
            assert [[label for label, _ in batch] for batch in loader] == batches

    def test_missing_rows_are_skipped_or_raised(self):
        store = RemoteNumbers(60, missing={11, 40})
        with loader_of(store, num_workers=0, on_error=headrace.Skip(0.1)) as loader:
            assert labels(loader) == [number for number in range(60) if number not in {11, 40}]
        with loader_of(store, num_workers=0) as loader, pytest.raises(MissingKey, match="key '11'"):
            list(loader)

    def test_batches_of_which_nothing_is_left_are_no_batches(self):
        store = RemoteNumbers(40, missing=range(8, 24))
        with loader_of(store, num_workers=0, on_error=headrace.Skip(0.9)) as loader:
            assert labels(loader) == [*range(8), *range(24, 40)]

    def test_a_killed_fetcher_costs_no_row(self, tmp_path):
        store = RemoteNumbers(200, kills={20, 150}, marks=str(tmp_path))
        with loader_of(store, num_workers=0) as loader:
            assert labels(loader) == list(range(200))

    @pytest.mark.parametrize("taken", [0, 1, 5])
    def test_a_resumed_epoch_delivers_the_rest(self, taken):
        def options():
            return {"shuffle": True, "num_workers": 0, "generator": torch.Generator().manual_seed(3)}

        with loader_of(RemoteNumbers(100), **options()) as loader:
            iterator = iter(loader)
            before = labels(next(iterator) for _ in range(taken))
            state = loader.state_dict()
        with loader_of(RemoteNumbers(100), **options()) as loader:
            loader.load_state_dict(state)
            assert sorted(before + labels(loader)) == list(range(100))

    def test_an_epoch_that_is_left_early_leaves_nothing_behind(self):
        with loader_of(RemoteNumbers(500, delay=0.01), num_workers=0) as loader:
            for _ in range(3):
                next(iter(loader))
            assert labels(loader) == list(range(500))


def test_memory_for_payloads_is_bounded():
    loading = Loading(prefetch=Prefetch(memory=2 << 20))
    with loader_of(RemoteNumbers(300, size=50_000), loading=loading) as loader:
        assert labels(loader) == list(range(300))


def test_a_window_of_a_fixed_size():
    loading = Loading(prefetch=Prefetch(window=2, ramp=0))
    with loader_of(RemoteNumbers(100), loading=loading) as loader:
        assert labels(loader) == list(range(100))


@pytest.mark.parametrize("workers", [0, 2])
def test_closing_while_another_thread_waits_for_rows(workers):
    """They would come in an hour."""
    loader = loader_of(RemoteNumbers(40, slow=dict.fromkeys(range(8, 40), 3600)), num_workers=workers)
    iterator = iter(loader)
    with ThreadPoolExecutor(1) as thread:
        ident = thread.submit(threading.get_ident).result()
        found = thread.submit(next, iterator).result()
        waits = thread.submit(next, iterator)
        assert wait_until(lambda: is_in(ident, InlineRun._wait) or is_in(ident, Pool.wait))
        state = loader.state_dict()
        loader.close()
        assert isinstance(waits.exception(240), headrace.LoaderClosed)
        assert isinstance(thread.submit(next, iterator).exception(240), headrace.LoaderClosed)
    loader.dataset.store.slow = {}
    loader.load_state_dict(state)
    assert labels([found, *loader]) == list(range(40))
    loader.close()


class TestOneFetcherForAllEpochs:
    """The connections of a loader outlive its epochs and their workers."""

    @pytest.mark.parametrize("options", [{}, {"num_workers": 0}, {"persistent_workers": True}])
    def test_it_connects_once(self, options):
        with loader_of(RemoteNumbers(64), **options) as loader:
            for _ in range(3):
                assert sorted(labels(loader)) == list(range(64))
            network = loader.stats().network
            assert (network.connections, network.restarts) == (1, 0)
            assert network.rows >= 3 * 64

    def test_a_loader_that_nobody_iterates_ends_what_it_began(self):
        loader_of(RemoteNumbers(8)).close()
        loader_of(RemoteNumbers(8))  # the test's fixture looks for processes that are left

    def test_epochs_that_were_left_cost_no_row_of_the_next(self):
        with loader_of(RemoteNumbers(500, delay=0.01)) as loader:
            for _ in range(3):
                next(iter(loader))
            assert labels(loader) == list(range(500))
            assert loader.stats().network.connections == 1

    def test_two_iterations_at_once_have_one_each(self):
        with loader_of(RemoteNumbers(40)) as loader:
            pairs = list(zip(loader, loader, strict=True))
            assert labels(first for first, _ in pairs) == labels(second for _, second in pairs) == list(range(40))

    def test_a_store_that_was_down_is_asked_again(self, tmp_path):
        gate = tmp_path / "up"
        with loader_of(RemoteNumbers(16, needs=str(gate))) as loader:
            with pytest.raises(StoreRefused):
                next(iter(loader))
            gate.touch()
            assert labels(loader) == list(range(16))

    def test_a_store_that_was_told_otherwise_is_connected_to_anew(self):
        with loader_of(RemoteNumbers(16)) as loader:
            assert labels(loader) == list(range(16))
            loader.dataset.store.size += 1
            assert {size for _, sizes in loader for size in sizes.tolist()} == {loader.dataset.store.size}

    def test_a_forked_process_has_its_own(self):
        with loader_of(RemoteNumbers(24), num_workers=0) as loader:
            assert labels(loader) == list(range(24))
            context = multiprocessing.get_context("fork")
            child = context.Process(target=_check, args=(loader,))
            child.start()
            child.join(240)
            assert child.exitcode == 0
            assert labels(loader) == list(range(24)), "the child ended nothing of its parent's"


def _check(loader):
    assert labels(loader) == list(range(24))
    loader.close()
