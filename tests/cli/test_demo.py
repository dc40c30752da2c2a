"""``headrace demo``: store, splits, cache and trace in one run, and every sample counted."""

import json

import pytest

from headrace.cli.__main__ import main


def test_the_whole_is_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = main(["demo", "--images", "48", "--epochs", "2", "--workers", "1", "--batch-size", "8", "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert code == 0
    torch, ours = facts["loaders"]
    assert (torch["complete"], ours["complete"]) == (True, True)
    assert (torch["hits"], ours["hits"]) == (None, 0.5)  # all of the second epoch's
    assert 32 <= facts["samples"] <= 40  # whole patients
    for file in ("demo.trace", "report.html", "timeline.json"):
        assert (tmp_path / "headrace-demo" / file).stat().st_size > 1000
    assert main(["cache", "ls", "--json"]) == 0
    assert "headrace-demo" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--images", "3"], "--images must be at least 32"),
        (["--output", "/dev/null/x"], "--output /dev/null/x"),
        (["--redis", "redis://127.0.0.1:1"], "--redis: no cache can be kept there"),
    ],
)
def test_mistakes_are_told_in_a_line(tmp_path, monkeypatch, capsys, arguments, says):
    monkeypatch.chdir(tmp_path)
    assert main(["demo", *arguments]) == 2
    assert says in capsys.readouterr().err
