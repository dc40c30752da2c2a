"""Contract section 5, start methods: fork, spawn, forkserver, and what must be picklable."""

import multiprocessing
import pickle
import sys
import threading
import warnings

import pytest

from tests.parity import datasets
from tests.parity.datasets import Calling, Log, Squares, Stream, Unpicklable, mark_of, plus_one
from tests.parity.support import lists, raises


@pytest.fixture
def marked(monkeypatch):
    """A change of a module that only a forked worker sees."""
    monkeypatch.setattr(datasets, "MARK", "inherited")


@pytest.fixture
def default_method():
    """Puts the process-wide start method back."""
    before = multiprocessing.get_start_method(allow_none=True)
    yield
    multiprocessing.set_start_method(before, force=True)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_method_by_name(loader_class, marked, method, tmp_path):
    log = Log(tmp_path / "log")
    loader = loader_class(Calling(mark_of), num_workers=1, multiprocessing_context=method, worker_init_fn=log)
    expected = "inherited" if method == "fork" else "as imported"
    assert list(loader) == [[expected]] * 4
    assert [worker for worker, _ in log.read()] == [0]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python says nothing of threads before 3.12")
def test_python_warns_of_threads_when_the_iteration_begins(loader_class):
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert lists(loader_class(Squares(4), num_workers=1)) == [[0], [1], [4], [9]]
    finally:
        done.set()
        thread.join()
    assert {warning.category for warning in told} == {DeprecationWarning}
    assert all("multi-threaded" in str(warning.message) for warning in told)


def test_forkserver_by_context_object_and_a_persistent_stream(loader_class):
    context = multiprocessing.get_context("forkserver")
    loader = loader_class(
        Stream(3), batch_size=2, num_workers=1, multiprocessing_context=context, collate_fn=plus_one,
        persistent_workers=True,
    )  # fmt: skip
    for _ in range(2):
        assert lists(loader) == [[1, 2], [3]]


def test_process_wide_method_is_honoured(loader_class, marked, default_method):
    for method, mark in (("spawn", "as imported"), ("fork", "inherited"), ("forkserver", "as imported")):
        multiprocessing.set_start_method(method, force=True)
        assert list(loader_class(Calling(mark_of, 1), num_workers=1)) == [[mark]]


def test_the_platforms_method_is_the_default(loader_class, marked, default_method):
    multiprocessing.set_start_method(None, force=True)
    expected = "inherited" if sys.version_info < (3, 14) else "as imported"
    assert list(loader_class(Calling(mark_of, 1), num_workers=1)) == [[expected]]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's half-made iterator
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_unpicklable_dataset(loader_class, method):
    loader = loader_class(Unpicklable(3), num_workers=1, multiprocessing_context=method)
    with (
        pytest.warns(UserWarning, match="Got pickle error when attempting to start a worker Process"),
        raises((TypeError, pickle.PicklingError), match="pickle"),
    ):
        iter(loader)


def test_unpicklable_dataset_may_be_forked(loader_class):
    loader = loader_class(Unpicklable(3), num_workers=1, multiprocessing_context="fork", collate_fn=lambda b: b[0])
    assert list(loader) == [0, 1, 4]
