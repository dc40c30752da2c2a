"""How busy a device is kept: what the CPUs could sustain is measured beside a trainer, around the loaders."""

import math
import multiprocessing

import numpy as np
import pytest
import torch

from benchmarks import bare, busy, costs
from benchmarks.arms import Arm
from benchmarks.bare import Bare
from benchmarks.busy import Case
from benchmarks.costs import Burning
from benchmarks.measure import RunError, Runs, isolated
from benchmarks.report import Report
from benchmarks.scope import Scope

PATIENCE = 240.0
STRAGGLERS, VOLUMES = "0.3 % stragglers", "image segmentation"
WORKLOADS = {workload.name: workload for workload in costs.WORKLOADS}
SAMPLER, COMPLETION = Arm("headrace", True, 2), Arm("headrace", False, 2)


class Waiting:
    """Samples that are made only once something else has happened."""

    def __init__(self, count, happened):
        self.count, self.happened = count, happened

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if not self.happened.wait(PATIENCE / 2):
            raise TimeoutError


class Spoiled:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise ValueError(index)


def case(name, load=busy.ENOUGH):
    return Case(f"{name}, CPUs at {100 * load:.0f} %", WORKLOADS[name], load, workers=2, seconds=0.1)


def sustained(dataset, beside=None):
    """In a process of its own, as an arm is: what the processes share is kept until that ends."""
    made = isolated(lambda: vars(bare.sustain(dataset, 2, beside)), limit=PATIENCE)
    return Bare(**made)


class TestBare:
    def test_what_runs_beside_runs_while_samples_are_made(self):
        happened = multiprocessing.get_context("fork").Event()
        assert len(sustained(Waiting(8, happened), happened.set).each) == 8

    def test_it_runs_no_more_often_than_there_are_batches(self):
        def counted():
            calls = []
            bare.sustain(Burning(np.full(9, 0.005)), 2, lambda: calls.append(1), 4)
            return {"calls": len(calls)}

        assert 1 <= isolated(counted, limit=PATIENCE)["calls"] <= 2

    def test_every_sample_is_made_when_nothing_runs_beside(self):
        made = sustained(Burning(np.full(6, 0.002)))
        assert min(made.each) >= 0.002
        assert made.rate > 0

    @pytest.mark.parametrize("beside", [None, lambda: None])
    def test_a_sample_that_fails_is_no_rate(self, beside, capfd):
        with pytest.raises(RunError, match="without loader failed"):
            sustained(Spoiled(), beside)
        assert "ValueError" in capfd.readouterr().err


def test_the_samples_are_made_beside_a_trainer():
    small = case(STRAGGLERS)
    with small.dataset() as dataset:
        figures = isolated(lambda: busy.unloaded(small, dataset, "cpu", small.step), limit=PATIENCE)
    assert figures["cost"] >= 1e3 * np.mean(dataset.each()), "all of it was made"
    assert figures["rate"] > 0


class TestRun:
    """Everything but the epochs."""

    @pytest.fixture
    def conducted(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        seen = []

        def conduct(results):
            def interleaved(arms, **_):
                seen.extend(arms)
                fed = {"busy": 80.0, "needed": 25.0, "step": 31.0, "wait": 5.0, "longest": 9.0}
                return {name: Runs([fed]) for name in arms} | results

            monkeypatch.setattr(busy, "interleaved", interleaved)
            report = Report("busy", "", quick=True)
            busy.run(report, Scope(quick=True, only=[f"{STRAGGLERS}, CPUs at 80 %"]))
            return report, seen

        return conduct

    def test_the_bare_rate_is_measured_on_both_sides_of_the_loaders(self, conducted):
        sides = {
            name: Runs([{"rate": rate, "cost": 5.0, "needed": 25.0}])
            for name, rate in ((busy.FIRST, 30.0), (busy.LAST, 34.0))
        }
        report, order = conducted(sides)
        assert (order[0], order[-1]) == (busy.FIRST, busy.LAST)
        [table] = report.tables
        assert "32.0 batches/s (30.0 – 34.0 in 2 runs)" in table.title
        assert [row[0] for row in table.rows] == order[1:-1], "only loaders have a row"
        assert {tuple(row[1:4]) for row in table.rows} == {("80.0", "80.0", "1.00")}

    def test_a_bare_rate_that_was_not_measured_sustains_nothing(self, conducted):
        report, _ = conducted({busy.FIRST: Runs(failures=["no"]), busy.LAST: Runs(failures=["never"])})
        assert {tuple(row[2:4]) for row in report.tables[0].rows} == {("-", "-")}
        assert not any(check.met for check in report.checks)
        assert sum(note.endswith((": no", ": never")) for note in report.notes) == 2


class TestChecks:
    @pytest.mark.parametrize(
        ("name", "load", "arm", "sustainable", "bounds"),
        [
            (STRAGGLERS, busy.ENOUGH, COMPLETION, 100.0, {0.95, 95.0}),
            (STRAGGLERS, busy.ENOUGH, COMPLETION, 98.0, {0.95}),
            (STRAGGLERS, busy.ENOUGH, SAMPLER, 100.0, {90.0}),
            (STRAGGLERS, busy.SHORT, SAMPLER, 80.0, set()),
            (VOLUMES, busy.ENOUGH, COMPLETION, 60.0, {0.95}),
            (VOLUMES, busy.ENOUGH, COMPLETION, 99.0, {0.95, 95.0}),
            (VOLUMES, busy.ENOUGH, SAMPLER, 60.0, {0.95}),
            (VOLUMES, busy.SHORT, SAMPLER, 60.0, {0.95}),
            ("object detection", busy.ENOUGH, SAMPLER, 100.0, set()),
            ("object detection", busy.SHORT, COMPLETION, 100.0, {0.95}),
            (VOLUMES, busy.ENOUGH, Arm("torch", False, 2), 60.0, set()),
        ],
    )
    def test_each_arm_is_held_to_what_it_can_reach(self, name, load, arm, sustainable, bounds):
        assert {check.bound for check in busy.checks(case(name, load), arm, 50.0, sustainable)} == bounds

    def test_of_volumes_the_share_counts(self):
        [check] = busy.checks(case(VOLUMES), SAMPLER, 58.0, 60.0)
        assert check.met
        assert math.isclose(check.figure, 58 / 60)

    def test_of_stragglers_in_sampler_order_the_device_counts(self):
        assert [busy.checks(case(STRAGGLERS), SAMPLER, share, 100.0)[0].met for share in (89.9, 90.0)] == [False, True]
