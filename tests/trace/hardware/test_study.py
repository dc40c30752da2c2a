"""``headrace trace study``: one pipeline, several numbers of workers."""

import json
import sys
import xml.etree.ElementTree as ET

import pytest

from headrace.cli.__main__ import main
from headrace.core.errors import TraceError
from headrace.trace.hardware import chart, runner
from headrace.trace.hardware.study import Study, StudyRun
from tests.trace.hardware.support import PROGRAM, sampling  # noqa: F401  (a fixture)


def study(capfd, *arguments: str) -> tuple[int, str, str]:
    code = main(["trace", "study", *arguments])
    captured = capfd.readouterr()
    return code, captured.out, captured.err


@pytest.mark.usefixtures("sampling")
def test_runs_are_compared(capfd, tmp_path):
    path = tmp_path / "page.html"
    program = ["--", sys.executable, str(PROGRAM), "{workers}", "60"]
    code, out, _ = study(capfd, "--workers", "1,2", "-o", str(path), "--json", *program)
    assert code == 0
    found = json.loads(out)
    assert [run["workers"] for run in found["runs"]] == [1, 2]
    for run in found["runs"]:
        assert 0 < run["loading"] < run["seconds"]
        assert run["rate"] == pytest.approx(60 / run["loading"])
        assert set(run["operations"]) == {"compress", "digest", "sort"}
        for operation in run["operations"].values():
            assert operation["calls"] == 60
            assert operation["elapsed"] > 0
            assert 0 <= operation["cpu_seconds"] <= run["cpu"]
    text = path.read_text()
    assert all(name in text for name in ("compress", "digest", "sort", "CPU seconds by operation"))
    assert "http" not in text.replace("http-equiv", "")  # nothing is fetched


@pytest.mark.usefixtures("sampling")
def test_a_failing_run_ends_the_study(capfd, tmp_path):
    program = ["--", sys.executable, str(PROGRAM), "1", "2", "{workers}"]
    code, _, err = study(capfd, "--workers", "0,5,1", *program)
    assert (code, "with 5 workers the program ended with exit code 5" in err) == (5, True)


def test_without_samples_there_are_still_times(capfd, monkeypatch):
    def refused(*_):
        raise TraceError("the kernel does not allow sampling")

    monkeypatch.setattr(runner, "sampled", refused)
    code, out, _ = study(capfd, "--workers", "1", "--", sys.executable, str(PROGRAM), "{workers}", "5")
    assert (code, "Without samples" in out, "elapsed" in out) == (0, True, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--", "true"], "put {workers} where it goes"),
        (["--workers", "many", "--", "true", "{workers}"], "--workers many"),
        (["--workers", "-1", "--", "true", "{workers}"], "--workers -1"),
        (["-o", "a.png", "--", "true", "{workers}"], "must end in .html or .json"),
        ([], "nothing to run"),
    ],
)
def test_mistakes_are_told_in_one_line(capfd, arguments, message):
    code, _, err = study(capfd, *arguments)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_bars_are_as_high_as_their_values():
    found = Study(
        [
            StudyRun(
                1, 4.0, 3.0, 4.0, 10.0, {"load <b>": {"cpu_seconds": 3.0, "IPC": 2.0}, "flip": {"cpu_seconds": 1.0}}
            ),
            StudyRun(8, 1.0, 0.5, 6.0, 40.0, {"load <b>": {"cpu_seconds": 2.0, "IPC": 1.0}}),
        ]
    )
    drawing = ET.fromstring(chart.figure(found, "CPU", found.cpu, stacked=True)).find("svg")
    heights = [float(bar.attrib["height"]) for bar in drawing.iter("rect")]
    whole = heights[0] + heights[1]
    assert heights == pytest.approx([whole * 3 / 4, whole / 4, whole / 2, 0], abs=0.2)
    assert found.measures == ["IPC"]
    assert found.measure("IPC") == {"load <b>": [2.0, 1.0], "flip": [None, None]}
    assert "load &lt;b&gt;" in chart.page(found, "python train.py <x>")
