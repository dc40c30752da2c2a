"""The harness of the benchmarks: what is finished is kept, and time is."""

import argparse
import importlib
import json
import os
import signal
import subprocess
import time
from contextlib import nullcontext
from functools import partial
from types import ModuleType, SimpleNamespace

import psutil
import pytest
import torch
from rich.console import Console

from benchmarks import attribution, caches, clock, figures, hits, measure, memory, pipelines, report
from benchmarks.__main__ import EXPERIMENTS, conduct, main, stoppable
from benchmarks.measure import Runs
from benchmarks.report import Report, Table
from benchmarks.scope import LeftOut, Scope
from benchmarks.shares import ABOUT_GPUS, MINUTES, QUICK_MINUTES, SHARES, Allowance, taking_part

FOREVER = 600.0


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    yield tmp_path
    clock.end_by(float("inf"))


def slept(seconds):
    time.sleep(seconds)
    return {"seconds": seconds}


def experiment(cases, after=lambda _: None):
    """One whose cases are runs that sleep so long."""

    def run(made, scope):
        for name, seconds in cases.items():
            arms = {"one": partial(slept, seconds), "other": partial(slept, 0.0)}
            runs = measure.interleaved(arms, repeats=2, say=scope.say)
            table = Table(name, ["arm", "s"])
            table.add("one", runs["one"].median("seconds"))
            made.tables.append(table)
            after(name)

    module = ModuleType("slept")
    module.run = run
    return module


def conducted(module, minutes=float("inf"), name="slept"):
    arguments = argparse.Namespace(only=[], minutes=minutes, quick=False)
    return conduct(name, module, arguments, Console(quiet=True))


def test_what_one_experiment_leaves_the_others_have():
    now = 0.0
    allowance = Allowance(60, [1, 1, 1, 1], lambda: now)
    shares = []
    for took in (15, 5, 20, 30):
        shares.append(allowance.next())
        now += 60 * took
    assert shares == [15, 15, 20, 20]
    heavy = Allowance(60, [3, 1], lambda: now)
    assert heavy.next() == 45


def test_experiments_about_gpus_are_experiments():
    assert set(EXPERIMENTS) > ABOUT_GPUS


@pytest.mark.parametrize("quick", [False, True], ids=["hour", "quick"])
def test_needs_without_a_gpu_are_about_what_there_is(quick):
    """The hour gives every experiment nine tenths of what it needs at least."""
    names = taking_part(quick=quick, gpu=False)
    needs = sum(SHARES[name].quick if quick else SHARES[name].minutes for name in names)
    assert needs <= (QUICK_MINUTES if quick else MINUTES) * 1.15
    assert not ABOUT_GPUS & set(names)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_cases_of_the_hour_are_cases(name):
    assert set(SHARES[name].cases) <= set(getattr(importlib.import_module(f"benchmarks.{name}"), "CASES", ()))


def test_one_that_fails_does_not_keep_the_others_from_running(results, monkeypatch, capsys):
    def fail(report, scope):
        raise RuntimeError("no such server")

    broken = ModuleType("broken")
    broken.run = fail
    modules = {"benchmarks.startup": broken, "benchmarks.images": experiment({"a": 0.0})}
    monkeypatch.setattr("benchmarks.__main__.importlib", SimpleNamespace(import_module=modules.__getitem__))
    monkeypatch.setattr("sys.argv", ["benchmarks", "startup", "images"])
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    assert main() == 1
    assert "failed: startup" in capsys.readouterr().err
    assert (results / "images.md").exists()


def test_one_that_lacks_what_it_needs_is_no_failure(results):
    def lacks(report, scope):
        raise LeftOut("there is no such server")

    module = ModuleType("lacking")
    module.run = lacks
    assert conducted(module) is None
    assert not list(results.iterdir())


def test_a_column_has_its_own_figure():
    columns = [("median", "x"), ("spread", lambda runs: runs.spread("x")), ("other", "y")]
    table = Table.of("title", "arm", columns, {"one": Runs([{"x": 1.0}, {"x": 3.0}])})
    assert table.columns == ["arm", "median", "spread", "other"]
    assert table.rows == [["one", "2.00", "1.0 – 3.0", "-"]]


def test_a_part_is_called_by_its_cases(results):
    arguments = argparse.Namespace(only=["b, 2", "a"], minutes=1.0, quick=False)
    conduct("slept", experiment({"a": 0.0}), arguments, Console(quiet=True))
    assert sorted(found.name for found in results.iterdir()) == ["slept.a-b_2.json", "slept.a-b_2.md"]
    assert "only: a, b, 2" in (results / "slept.a-b_2.md").read_text()


def children():
    """Processes of this one that a run could be."""
    return {child.pid for child in psutil.Process().children() if "resource_tracker" not in " ".join(child.cmdline())}


def titles(path):
    return [table["title"] for table in json.loads(path.read_text())["tables"]]


def test_everything_in_time(results):
    made, path = conducted(experiment({"a": 0.0, "b": 0.0}))
    assert path == results / "slept.md"
    assert [table.title for table in made.tables] == ["a", "b"]
    assert sorted(found.name for found in results.iterdir()) == ["slept.json", "slept.md"], "no part is left"


def test_time_is_kept_and_so_are_the_finished_cases(results):
    began, before = time.monotonic(), children()
    _, path = conducted(experiment({"a": 0.0, "b": FOREVER, "c": 0.0}), minutes=5 / 60)
    assert time.monotonic() - began < FOREVER / 10
    assert path == results / "slept.unfinished.md"
    assert titles(path.with_suffix(".json")) == ["a"]
    assert "out of time" in path.read_text()
    assert children() <= before


def test_what_was_measured_once_is_not_given_up():
    arms = {"one": partial(slept, 0.2)}
    clock.end_by(time.monotonic() + 3)
    runs = measure.interleaved(arms, repeats=1000)
    assert 1 <= len(runs["one"].figures) < 1000


def test_cases_share_the_time(monkeypatch):
    now = 0.0
    monkeypatch.setattr(clock.time, "monotonic", lambda: now)
    clock.end_by(60.0)
    counts = []
    for length in clock.shared((10.0, 40.0, 5.0)):
        counts.append(0)
        for _ in clock.rounds(100):
            counts[-1] += 1
            now += length
    assert counts == [2, 1, 1], "a third, then half of what is left, then what there is; the first repeat always"
    assert clock.shortened == ["2 repeats of 100", "1 repeats of 100", "1 repeats of 100"]


def test_cases_share_the_time_by_their_weights(monkeypatch):
    now, counts = 0.0, {}
    monkeypatch.setattr(clock.time, "monotonic", lambda: now)
    clock.end_by(60.0)
    for case in clock.shared({"heavy": 5.0, "light": 1.0}):
        counts[case] = 0
        for _ in clock.rounds(100):
            counts[case] += 1
            now += 10.0
    assert counts == {"heavy": 5, "light": 1}


@pytest.mark.parametrize("first", [True, False])
def test_a_repeat_that_is_given_up_costs_only_itself(first):
    with pytest.raises(clock.OutOfTime) if first else nullcontext(), clock.unless_first(0 if first else 1):
        raise clock.OutOfTime


@pytest.mark.parametrize("module", [attribution, hits, pipelines], ids=lambda module: module.__name__)
def test_those_without_interleaved_runs_keep_time_too(module):
    clock.end_by(time.monotonic())
    with pytest.raises(clock.OutOfTime):
        module.run(Report("tried", "", quick=True), Scope(quick=True))


def test_arms_of_one_table_are_kept_too(results, monkeypatch):
    readings = [{"total": 1.0, "shared": 1.0, "descriptors": 1} for _ in range(48)]
    found = iter([{"readings": readings, "before": readings[0], "after": readings[0]}])

    def isolated(*_, **__):
        for one in found:
            return one
        raise clock.OutOfTime

    monkeypatch.setattr(memory, "isolated", isolated)
    monkeypatch.setattr(memory, "left_over", lambda *_: "")
    made, path = conducted(memory, name="memory")
    assert path == results / "memory.unfinished.md"
    assert [row[0] for row in made.tables[0].rows] == ["torch"]


def test_caches_of_runs_that_were_killed_are_removed(tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    ours = "headrace-cache-0-benchmark"
    names = [f"{ours}-{gone.pid}-1", f"{ours}-{os.getpid()}", "headrace-cache-0-x"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "entries").touch()
    caches.sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[1:])


def test_no_case_in_time_is_no_file(results):
    assert conducted(experiment({"a": FOREVER}), minutes=1 / 60) is None
    assert not list(results.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_that_is_stopped_keeps_what_it_has(results, number):
    module = experiment({"a": 0.0, "b": 0.0}, after=lambda name: os.kill(os.getpid(), number) if name == "a" else None)
    before = children()
    with stoppable() as stopped:
        _, path = conducted(module)
    assert stopped == [number]
    assert titles(path.with_suffix(".json")) == ["a"]
    assert "stopped" in path.read_text()
    assert children() <= before


def test_one_that_is_killed_has_left_what_was_finished(results):
    """Nobody could write it then: it was written before the next run began."""
    seen = []

    def look(name):
        seen.append([titles(path) for path in results.glob("*.unfinished.json")])

    conducted(experiment({"a": 0.0, "b": 0.0, "c": 0.0}, after=look))
    assert seen == [[], [["a"]], [["a", "b"]]]


class TestFigures:
    @pytest.mark.parametrize(
        ("page", "made"), [(figures.PAGE, figures.table), (figures.README, figures.headlines)], ids=["page", "README"]
    )
    def test_pages_have_those_of_the_results(self, page, made):
        text = page.read_text()
        assert figures.placed(text, made(figures.Results(figures.RESULTS))) == text, "run `make figures`"

    def test_the_readme_has_few_of_them(self):
        shown = figures.headlines(figures.Results(figures.RESULTS)).splitlines()[2:]
        assert 4 <= len(shown) <= 8
        assert set(figures.HEADLINES) <= {row.what for row in figures.ROWS}

    @pytest.mark.parametrize(("ours", "lost"), [(2.0, False), (0.5, True)])
    def test_a_loss_is_called_one(self, results, monkeypatch, ours, lost):
        rows = [["headrace", f"{ours}"], ["torch", "1.0"]]
        tables = [{"title": "rates", "columns": ["loader", "rate"], "rows": rows}]
        (results / "a.json").write_text(json.dumps({"tables": tables}))
        row = figures.Row("what", "a", ("rates",), "rate", figures.ours(), figures.arms("torch"))
        monkeypatch.setitem(figures.HEADLINES, "what", "said")
        assert ("(lost)" in row.headline(figures.Results(results))) == lost

    def test_the_picture_has_those_of_the_results(self):
        assert figures.PICTURE.read_text() == figures.bars(figures.Results(figures.RESULTS)), "run `make figures`"

    def test_a_full_run_replaces_a_short_one_and_a_part_nothing(self, results):
        folder = results / "quick"
        folder.mkdir()
        for path, rate in ((results / "a.json", 1.0), (folder / "a.json", 2.0), (results / "a.unfinished.json", 3.0)):
            rows = [["headrace, x", f"{rate}"], ["torch", "-"]]
            tables = [{"title": "rates, all", "columns": ["loader", "rate"], "rows": rows}]
            path.write_text(json.dumps({"tables": tables}))
        found = figures.Results(results)
        assert found.cells("a", ["rates"], "rate") == [("headrace, x", 1.0)]
        assert found.is_full("a")

    def test_of_two_parts_with_the_same_case_the_later_counts(self, results):
        later = {"commit": "def", "date": "2026-11-18 18:30"}
        for name, rate, machine in (("a.x-y", 1.0, later), ("a.x-z", 2.0, {"commit": "abc"})):
            tables = [{"title": "rates", "columns": ["loader", "rate"], "rows": [["headrace", f"{rate}"]]}]
            (results / f"{name}.json").write_text(json.dumps({"tables": tables, "machine": machine}))
        found = figures.Results(results)
        assert found.cells("a", ["rates"], "rate") == [("headrace", 1.0)]
        assert found.run("a", ["rates"], "rate") == "full, def"

    @pytest.mark.parametrize(
        ("values", "said"), [([1.0, 2.0], "≤ 2"), ([1.0, 3.0], "≤ 2 (partly missed)"), ([3.0], "≤ 2 (missed)")]
    )
    def test_a_missed_target_is_said(self, values, said):
        assert figures.Target(2, at_most=True).line(values) == said

    def test_an_experiment_that_was_never_run_has_no_row(self, results):
        assert figures.table(figures.Results(results)).count("\n") == 1

    def test_a_page_without_a_place_is_refused(self):
        with pytest.raises(ValueError, match="no place"):
            figures.placed("text", "table")
