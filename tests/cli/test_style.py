"""All commands have one style: arguments in capitals, ``--json`` anywhere, and a closed pipe is no accident."""

import argparse
import json
import os
import re
import subprocess
import sys

import pytest

from headrace.cli.__main__ import main, parser


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


def test_a_closed_pipe_is_no_accident():
    program = [sys.executable, "-m", "headrace", "completion", "bash"]
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
