"""All commands have one style: arguments in capitals, ``--json`` anywhere, and a closed pipe is no accident."""

import argparse
import io
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from headrace.cli import run, top
from headrace.cli.__main__ import COMMANDS, main, parser
from headrace.cli.traces.trace_tables import show as show_report
from headrace.engine.trainer.page import CacheFigures, Snapshot
from headrace.running.comparison import BothLoaders, LoaderFigures
from headrace.trace import format as F
from headrace.trace.calibrate import Calibration
from headrace.trace.report import report
from tests.trace.made import Made


def parsers(whole, name="headrace"):
    yield name, whole
    for action in whole._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, command in action.choices.items():
                yield from parsers(command, f"{name} {word}")


def test_what_a_user_fills_in_stands_in_capitals():
    wrong = []
    for name, command in parsers(parser()):
        for action in command._actions:
            if isinstance(action, argparse._SubParsersAction) or action.nargs == 0:
                continue
            shown = action.metavar if action.metavar is not None else action.dest if not action.option_strings else ""
            shown = shown if isinstance(shown, str) else " ".join(shown)
            if re.search("[a-z]{2}", shown) and not action.choices:
                wrong.append(f"{name}: {shown}")
    assert wrong == []


def test_every_command_says_what_it_does_and_takes_json():
    for name, command in parsers(parser()):
        assert command.description, name
        assert any("--json" in action.option_strings for action in command._actions), name


@pytest.mark.parametrize("arguments", [["--json", "cache", "ls"], ["cache", "--json", "ls"], ["cache", "ls", "--json"]])
def test_json_is_taken_anywhere(capsys, arguments):
    assert main(arguments) == 0
    json.loads(capsys.readouterr().out)


def at_80_columns(print_to):
    """What is printed to a terminal of 80 columns, line by line; figures are whole."""
    out = io.StringIO()
    print_to(Console(file=out, width=80, markup=False, highlight=False))
    lines = out.getvalue().splitlines()
    assert max(map(cell_len, lines)) <= 80
    assert not re.search(r"[\d.]…", out.getvalue()), out.getvalue()
    return out.getvalue()


def test_a_report_fits_a_terminal(tmp_path):
    made = Made(tmp_path / "t")
    made.run("StoreDataset 1", workers=4)
    for number in range(400):
        operations = {"decode": 12.34, "RandomHorizontalFlipWithALongName": 3.21}
        made.sample(
            number % 4, 33 * number, 1234 if number % 99 == 7 else 16, number, batch=number, operations=operations
        )
        made.batch(number, 33 * number, 33 * number + 16)
    for index in range(4):
        key = f"a/rather/long/folder/with/many/levels/picture-{index}.png"
        made.stream(0).sample(index, made.at(0), 2_000_000_000, -1, 0, *made.stream(0).keyed(key, F.SLOW, []))
    found = report(made.read(), Calibration(1.0, 1.0, 1.0, 1.0), 4)
    shown = at_80_columns(lambda out: show_report(found, out))
    assert "levels/picture-3.png" in shown
    (loader,) = found.loaders
    assert shown.count(f"{loader.figures.busy:.0%}") >= 2  # where it is told, and where it is listed


def test_the_loaders_of_a_machine_fit_a_terminal():
    cache = CacheFigures(0, 12_345_678, 0, 1_234_567, 1, 1, 123_456_789_012, (0, 100, 0))
    each = Snapshot(
        *(1_234_567, 12, 64, 48, 12, 128, False, 123, 99_999, 12_345_678, 0, 123_456, 1, 2, 0, 3, 123_456_789),
        *(time.monotonic_ns(), 0, "StoreDatasetOfMine", cache, None),
    )
    at_80_columns(lambda out: out.print(top._tables({}, {(1, 1): each}, 1.0)))


def test_a_comparison_fits_a_terminal():
    figures = LoaderFigures(batches=100, first=123.45, rate=12345.67, wait=0.5, cpu=12.3456, spread=1.0, workers=128)
    at_80_columns(lambda out: run.show(BothLoaders(figures, figures, automatic=figures), out))


def test_exit_codes_are_documented():
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
    assert all(re.search(rf"^\| ({code})", page, re.MULTILINE) for code in ("0", "1", "2", "130", "141"))
    assert all(f"headrace {name}" in page for name in COMMANDS)


@pytest.mark.parametrize("arguments", [["completion", "bash"], ["cache", "ls"], ["cache", "ls", "--json"]])
def test_a_closed_pipe_is_no_accident(arguments):
    program = [sys.executable, "-m", "headrace", *arguments]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    with process:
        said = process.stderr.read()
    assert (process.returncode, said) == (141, "")


def test_names_that_are_no_text_are_shown(tmp_path):
    folder = tmp_path / os.fsdecode(b"cat\xff")
    folder.mkdir()
    (folder / "a.bin").write_bytes(b"a")
    program = [sys.executable, "-m", "headrace", "store", "info", f"file://{tmp_path}"]
    done = subprocess.run(program, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert r"cat\udcff" in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_shells_are_told_the_commands(capsys, shell):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(word in script for word in ("doctor", "ingest", "--compare"))


def test_names_that_look_like_emoji_are_shown_as_they_are(tmp_path):
    (tmp_path / ":x:").mkdir()
    (tmp_path / ":x:" / "a.bin").write_bytes(b"a")
    program = [sys.executable, "-m", "headrace", "store", "info", f"file://{tmp_path}"]
    assert ":x:" in subprocess.run(program, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("arguments", [["cache", "ls"], ["cache", "ls", "--json"]])
def test_an_output_that_is_full_is_one_line(arguments):
    with Path("/dev/full").open("w") as full:
        program = [sys.executable, "-m", "headrace", *arguments]
        done = subprocess.run(program, check=False, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "headrace cache ls: No space left on device\n")


def test_without_an_output_all_is_done_nevertheless():
    program = ["sh", "-c", '"$0" -m headrace cache ls --json >&-', sys.executable]
    done = subprocess.run(program, check=False, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interrupt_while_a_command_is_imported_is_an_interrupt(monkeypatch, capsys):
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headrace.cli.__main__.parser", interrupted)
    assert main(["ingest", "a", "b"]) == 130
    assert capsys.readouterr().err == "headrace ingest: interrupted\n"
