"""The package as a user meets it: names, imports, types."""

import dataclasses
import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch.utils.data

import headrace
from tests.parity.datasets import Failing, Gated, Squares

ROOT = Path(__file__).resolve().parents[1]

NAMES = {
    *("BatchNotSendable", "DeviceUnavailable", "HeadraceError", "LimitReached", "LoaderClosed"),
    *("SlabError", "StateMismatch"),
    *("TooManyErrors", "WorkerDied", "DataLoader", "Failure", "Stats", "Loading", "Raise", "Skip"),
    *("FilterError", "IngestError", "SplitError", "Splits", "StoreDataset", "split"),
    *("Network", "Operation", "Scheduling", "Seeding", "TraceError", "traced", "tracing"),
    *("BadRow", "BadStoreUrl", "MissingDriver", "MissingKey", "StoreError", "StoreRefused", "StoreUnavailable"),
    *("Cache", "CacheError", "CacheUse", "Network", "deterministic"),
    *("Fetching", "Prefetch", "Ranks", "Retry", "fetch"),
    *("Ray", "RemoteError", "RemoteUse"),
    *("DeviceUse", "NotOnDevice", "StoryEvent", "OnDevice", "Pixels"),
}


def python(program: str) -> str:
    """What a fresh interpreter prints."""
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=True)
    return done.stdout


def test_names():
    assert set(headrace.__all__) == NAMES
    assert list(headrace.__all__) == sorted(headrace.__all__)
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None
    assert headrace.__version__


def test_everything_exported_says_what_it_is():
    for name in headrace.__all__:
        assert getattr(headrace, name).__doc__, name


def test_they_are_seen_before_they_are_used():
    done = subprocess.run(
        [sys.executable, "-c", "import headrace; print(dir(headrace) == sorted(headrace.__all__))"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == "True\n"


def test_a_star_import_gives_those_names():
    names: dict = {}
    exec("from headrace import *", names)
    assert set(names) - {"__builtins__"} == NAMES


def test_importing_loads_nothing_optional():
    found = python("import sys, headrace; headrace.DataLoader; print('\\n'.join(sys.modules))").splitlines()
    packages = {name.partition(".")[0] for name in found}
    unwanted = {"lightning", "pytorch_lightning", "accelerate", "torchvision", "rich", "torchdata", "PIL", "pandas"}
    assert not packages & unwanted
    assert not [
        name for name in found if name.startswith(("headrace.cli", "headrace.testing", "headrace.trace.hardware"))
    ]


def test_the_command_line_starts_without_torch():
    assert python("import sys, headrace.cli.__main__; print('torch' in sys.modules)").strip() == "False"


def test_errors_are_caught_as_torch_s_are():
    for name in ("BatchNotSendable", "DeviceUnavailable", "SlabError", "TooManyErrors", "WorkerDied"):
        error = getattr(headrace, name)
        assert issubclass(error, (headrace.HeadraceError, RuntimeError))
        assert issubclass(error, RuntimeError)
    assert issubclass(headrace.StateMismatch, (headrace.HeadraceError))
    assert issubclass(headrace.StateMismatch, ValueError)


class TestLoader:
    def test_is_torch_s(self):
        loader = headrace.DataLoader(Squares(4))
        assert isinstance(loader, torch.utils.data.DataLoader)
        assert loader.dataset.n == 4

    def test_is_generic(self):
        assert headrace.DataLoader[torch.Tensor] is not None
        loader = headrace.DataLoader[int](Squares(4), num_workers=0)
        assert [batch.tolist() for batch in loader] == [[0], [1], [4], [9]]

    def test_can_be_derived_from(self):
        class Named(headrace.DataLoader[int]):
            def __iter__(self):
                for batch in super().__iter__():
                    yield "named", batch.tolist()

        assert list(Named(Squares(3), num_workers=1)) == [("named", [0]), ("named", [1]), ("named", [4])]

    def test_starts_nothing_until_it_is_iterated(self):
        state = torch.get_rng_state()
        loader = headrace.DataLoader(Squares(4), shuffle=True, num_workers=2)
        assert torch.equal(torch.get_rng_state(), state)
        assert loader.stats() == headrace.Stats()
        loader.close()

    def test_workers_are_chosen_when_none_are_asked_for(self):
        assert headrace.DataLoader(Squares(4)).num_workers >= 1

    @pytest.mark.parametrize("options", [{}, {"generator": 3, "shuffle": True}, {"sampler": [3, 1, 2, 0] * 5}])
    def test_where_the_order_can_matter_it_is_the_sampler_s(self, options):
        found = []
        for make in (torch.utils.data.DataLoader, functools.partial(headrace.DataLoader, num_workers=2)):
            if "generator" in options:
                options["generator"] = torch.Generator()
            found.append([batch.tolist() for batch in make(Squares(20), 2, **options)])
        assert found[0] == found[1]

    def test_where_the_loader_shuffles_it_is_that_of_completion(self, unseeded):
        """The sample drawn first waits for the one drawn last, far behind what would be prepared in order."""
        state = torch.get_rng_state()
        order = [int(index) for index in torch.utils.data.DataLoader(range(60), shuffle=True)]
        torch.set_rng_state(state)
        dataset = Gated(60, held=order[0], opener=order[-1])
        found = [batch.tolist() for batch in headrace.DataLoader(dataset, 2, shuffle=True, num_workers=2)]
        assert sorted(index for batch in found for index in batch) == list(range(60))
        assert order[0] in found[-1]

    def test_deterministic_algorithms_ask_for_sampler_order(self, monkeypatch):
        torch.manual_seed(1)
        expected = [batch.tolist() for batch in torch.utils.data.DataLoader(Squares(40), 4, shuffle=True)]
        monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
        torch.manual_seed(1)
        found = [batch.tolist() for batch in headrace.DataLoader(Squares(40), 4, shuffle=True, num_workers=2)]
        assert found == expected


class TestStats:
    @pytest.mark.parametrize("num_workers", [0, 2])
    def test_counts(self, num_workers):
        dataset = Failing(21, {4}, ValueError)
        loader = headrace.DataLoader(dataset, 4, num_workers=num_workers, on_error=headrace.Skip(0.5))
        for _ in range(2):
            list(loader)
        stats = loader.stats()
        assert (stats.epochs, stats.batches, stats.samples, stats.workers) == (2, 12, 40, num_workers)
        assert (stats.restarts, stats.repeats, stats.copied_out) == (0, 0, 0)
        assert stats.wait_seconds > 0
        assert (stats.slab_bytes > 0) == (num_workers > 0)
        assert [failure.index for failure in stats.skipped] == [4, 4]

    def test_a_snapshot_does_not_change(self):
        loader = headrace.DataLoader(Squares(4), num_workers=0)
        before = loader.stats()
        list(loader)
        assert before == headrace.Stats()
        with pytest.raises(dataclasses.FrozenInstanceError):
            before.batches = 3

    @pytest.mark.parametrize("num_workers", [0, 1])
    def test_as_dict_is_json(self, num_workers):
        dataset = Failing(9, {4}, Odd)
        loader = headrace.DataLoader(dataset, num_workers=num_workers, on_error=headrace.Skip(0.5))
        list(loader)
        values = json.loads(json.dumps(loader.stats().as_dict()))
        assert set(values) == {field.name for field in dataclasses.fields(headrace.Stats)}
        assert values["batches"] == 8
        assert values["skipped"] == [["4", "Odd()"]]


class Odd(Exception):
    """A type of our own."""


class TestOptions:
    def test_are_values(self):
        assert headrace.Skip(0.5) == headrace.Skip(max_fraction=0.5)
        assert headrace.Raise() == headrace.Raise()
        assert headrace.Loading() == headrace.Loading(seeding=headrace.Seeding.SAMPLE, memory_limit=None)
        assert len({headrace.Loading(), headrace.Loading()}) == 1
        with pytest.raises(dataclasses.FrozenInstanceError):
            headrace.Skip().max_fraction = 1.0
