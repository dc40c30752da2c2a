"""The shape of the source tree, as far as a machine can judge it."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "headrace"
SOURCES = {str(path.relative_to(PACKAGE)): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}

MAX_LINES = 500
VAGUE_NAMES = {"utils", "util", "common", "helpers", "misc"}


def test_there_are_sources() -> None:
    assert SOURCES


def test_a_file_fits_in_the_head() -> None:
    assert not [name for name, text in SOURCES.items() if len(text.splitlines()) > MAX_LINES]


def test_a_file_is_named_after_what_it_holds() -> None:
    assert not [name for name in SOURCES if set(Path(name).with_suffix("").parts) & VAGUE_NAMES]


def test_a_name_of_a_module_is_used_once() -> None:
    names = Counter(Path(name).name for name in SOURCES if not Path(name).name.startswith("__"))
    assert not [name for name, count in names.items() if count > 1]


def test_nothing_is_left_to_do() -> None:
    # Words are put together here so that this file does not contain them.
    unfinished = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
    assert not [name for name, text in SOURCES.items() if unfinished.search(text)]


def test_nothing_is_a_stub() -> None:
    stubs = [
        name
        for name, text in SOURCES.items()
        if "NotImplementedError" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Raise) and _name_of(node.exc) == "NotImplementedError"
    ]
    # An iteration refuses to be pickled with torch's own exception.
    assert [Path(name).name for name in stubs] == ["iteration.py"]


def _name_of(raised: ast.expr | None) -> str | None:
    called = raised.func if isinstance(raised, ast.Call) else raised
    return called.id if isinstance(called, ast.Name) else None


@pytest.mark.parametrize("name", ["LICENSE", "README.md", "CHANGELOG.md"])
def test_the_project_says_what_it_is(name: str) -> None:
    assert (ROOT / name).stat().st_size > 0
