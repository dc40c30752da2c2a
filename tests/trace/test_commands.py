"""``headrace trace``: what it prints, and what it says to a mistake."""

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.__main__ import main
from headrace.trace import format as F
from tests.trace.made import Made, input_bound


@pytest.fixture
def trace(tmp_path):
    made = input_bound(tmp_path / "run.trace", epochs=2)
    made.read()
    return str(made.path)


def test_report(trace, capsys):
    assert main(["trace", "report", trace]) == 0
    shown = capsys.readouterr().out
    assert "The input is the bottleneck" in shown
    assert "decode" in shown
    assert "60.0%" in shown
    assert "Tracing itself" in shown


@pytest.mark.parametrize("words", [["trace", "report", "--json"], ["trace", "--json", "report"]])
def test_report_as_json(trace, capsys, words):
    assert main([*words, trace]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["loaders"][0]["figures"]["batches"] == 40


def test_report_of_one_run(trace, capsys):
    assert main(["trace", "report", trace, "--json", "--run", "1"]) == 0
    figures = json.loads(capsys.readouterr().out)["loaders"][0]["figures"]
    assert [run["number"] for run in figures["runs"]] == [1]


def test_report_as_a_page(trace, capsys, tmp_path):
    assert main(["trace", "report", trace, "--html", str(tmp_path / "out.html"), "--from", "0.1"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "out.html" in captured.err
    assert (tmp_path / "out.html").read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("begin", ["nan", "inf", "1e300"])
def test_a_page_begins_at_a_number_of_seconds(trace, capsys, tmp_path, begin):
    assert main(["trace", "report", trace, "--html", str(tmp_path / "out.html"), "--from", begin]) == 2
    assert "give a number of seconds" in capsys.readouterr().err


def test_a_page_is_written_in_any_locale(trace, tmp_path):
    plain = os.environ | {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    program = [sys.executable, "-m", "headrace", "trace", "report", trace, "--html", str(tmp_path / "out.html")]
    assert subprocess.run(program, check=False, env=plain).returncode == 0
    assert "\u00b5" in (tmp_path / "out.html").read_text(encoding="utf-8")


def test_everything_is_shown(tmp_path, capsys):
    """Tables that only some traces have."""
    made = Made(tmp_path / "t")
    made.run("[red]", workers=1)
    for number in range(8):
        flags = 1 << F.TIER_SHIFT | 1 << F.RETRIES_SHIFT
        made.sample(0, 20 * number, 15 if number == 5 else 1, number, batch=number, flags=flags, sizes=(10, 2000))
        made.batch(number, 20 * number, 20 * number + 16)
        made.stream(-1).copy(number, 100, made.at(20 * number + 16), 10_000)
    made.stream(-1).span("forward", made.at(5), 100_000)
    made.stream(-1).event("death", 1, made.at(5))
    made.read()
    assert main(["trace", "report", str(made.path)]) == 0
    shown = capsys.readouterr().out
    for part in (
        "[red]",
        "slow samples (1",
        "encoded",
        "copy to the device",
        "forward",
        "1 deaths",
        "8 retries",
        "kB/s",
    ):
        assert part in shown, part


def _events(path):
    path = Path(path)
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return json.loads(text)["traceEvents"]


def test_export(trace, capsys, tmp_path):
    assert main(["trace", "export", trace, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["output"] == trace + ".json.gz"
    assert len(_events(result["output"])) == result["events"]
    plain, coarse = tmp_path / "plain.json", tmp_path / "coarse.json"
    assert main(["trace", "export", trace, "-o", str(plain)]) == 0
    assert _events(plain) == _events(result["output"])
    assert plain.stat().st_size > 4 * result["bytes"]
    assert main(["trace", "export", trace, "--coarse", "-o", str(coarse)]) == 0
    assert 0 < len(_events(coarse)) < result["events"]


@pytest.mark.parametrize("name", ["merged.json", "merged.json.gz"])
def test_merge(trace, tmp_path, capsys, name):
    theirs = tmp_path / "torch.json"
    theirs.write_text('{"traceEvents": [], "baseTimeNanoseconds": 1}')
    out = tmp_path / name
    assert main(["trace", "merge", trace, str(theirs), "-o", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["events"] == len(_events(out))


def test_compare(trace, capsys):
    assert main(["trace", "compare", trace, trace]) == 0
    shown = capsys.readouterr().out
    assert "throughput" in shown
    assert "no difference seen" in shown
    assert main(["trace", "compare", trace, trace, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["loaders"][0]["differences"]


class TestMistakes:
    @pytest.fixture
    def files(self, tmp_path, trace):
        (tmp_path / "foreign").write_text("not a trace at all")
        (tmp_path / "empty").write_bytes(b"")
        (tmp_path / "cut").write_bytes((tmp_path / "run.trace").read_bytes()[:40])
        return tmp_path

    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("missing", "cannot be read (No such file or directory)"),
            ("foreign", "not a headrace trace"),
            ("empty", "the file is empty"),
            ("cut", "cut off within its header"),
            (".", "cannot be read (Is a directory)"),
        ],
    )
    @pytest.mark.parametrize("command", ["report", "export", "merge", "compare"])
    def test_a_file_that_is_none_is_one_line(self, files, capsys, command, name, says):
        path = str(files / name)
        rest = {"merge": [path, "-o", str(files / "out")], "compare": [path]}.get(command, [])
        assert main(["trace", command, path, *rest]) == 2
        told = capsys.readouterr().err
        assert told.startswith(f"headrace trace {command}: ")
        assert told.count("\n") == 1
        assert path in told
        assert says in told

    def test_a_trace_cut_off_later_is_read_as_far_as_it_goes(self, files, capsys):
        raw = (files / "run.trace").read_bytes()
        (files / "half").write_bytes(raw[: F.EXTENT * 2 - 7])
        assert main(["trace", "report", str(files / "half"), "--json"]) == 0
        json.loads(capsys.readouterr().out)

    @pytest.mark.parametrize("seed", range(40))
    def test_a_damaged_trace_is_a_line_or_a_report(self, files, capsys, seed):
        chance = random.Random(seed)
        raw = bytearray((files / "run.trace").read_bytes())
        for _ in range(20):
            extent = chance.randrange(len(raw) // F.EXTENT) * F.EXTENT
            raw[extent + chance.randrange(1500)] = chance.randrange(256)
        raw[: len(F.MAGIC)] = F.MAGIC
        (files / "damaged").write_bytes(raw)
        trace = str(files / "damaged")
        commands = (
            ["report", trace, "--json"],
            ["report", trace, "--html", str(files / "out.html")],
            ["compare", trace, trace],
        )
        for command in commands:
            code = main(["trace", *command])
            told = capsys.readouterr().err
            assert code == 0 or (code == 2 and told.count("\n") == 1)

    @pytest.mark.parametrize("words", [["--run", "99"], ["--loader", "other"], ["--html", "/nowhere/out.html"]])
    def test_what_is_not_there(self, trace, capsys, words):
        assert main(["trace", "report", trace, *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1

    def test_a_trace_is_not_written_over(self, trace, capsys):
        assert main(["trace", "export", trace, "-o", trace]) == 2
        assert main(["trace", "report", trace, "--json"]) == 0

    def test_no_place_to_write_to(self, trace, capsys):
        assert main(["trace", "export", trace, "-o", "/nowhere/out"]) == 2
        assert "cannot be written" in capsys.readouterr().err


def test_no_command_loads_torch(trace):
    program = (
        "import sys; from headrace.cli.__main__ import main; code = main(sys.argv[1:]); "
        "sys.exit(code or 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "trace", "report", trace], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
