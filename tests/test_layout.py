"""The shape of the source tree, as far as a machine can judge it."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "headrace"
SOURCES = sorted(PACKAGE.rglob("*.py"))

MAX_LINES = 500
VAGUE_NAMES = {"utils", "util", "common", "helpers", "misc"}

each_source = pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))


def test_there_are_sources() -> None:
    assert SOURCES


@each_source
def test_a_file_fits_in_the_head(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES


@each_source
def test_a_file_is_named_after_what_it_holds(path: Path) -> None:
    names = {path.stem, *path.relative_to(PACKAGE).parent.parts}
    assert not names & VAGUE_NAMES


@each_source
def test_nothing_is_left_to_do(path: Path) -> None:
    # Words are put together here so that this file does not contain them.
    unfinished = re.findall(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b", path.read_text())
    assert not unfinished


@each_source
def test_nothing_is_a_stub(path: Path) -> None:
    stubs = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Raise) and _name_of(node.exc) == "NotImplementedError"
    ]
    # An iteration refuses to be pickled with torch's own exception.
    assert len(stubs) == (path.name == "iteration.py")


def _name_of(raised: ast.expr | None) -> str | None:
    called = raised.func if isinstance(raised, ast.Call) else raised
    return called.id if isinstance(called, ast.Name) else None


@pytest.mark.parametrize("name", ["LICENSE", "README.md", "CHANGELOG.md"])
def test_the_project_says_what_it_is(name: str) -> None:
    assert (ROOT / name).stat().st_size > 0
