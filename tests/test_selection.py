"""Which tests `make test` runs, and which are left to `make soak`."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

from tests.selection import sample

ROOT = Path(__file__).parents[1]
PROGRAM = """
import hypothesis, pytest
from hypothesis import strategies as st

seen = []

def test_usual(): pass

@pytest.mark.soak
def test_long(): pass

@pytest.mark.sampled
@pytest.mark.parametrize("a", range(3))
@pytest.mark.parametrize("b", range(4))
def test_product(a, b): pass

@hypothesis.given(st.integers())
def test_property(number): seen.append(number)

def test_examples(): print("examples:", len(seen))

@pytest.mark.scaled
def test_scaled(): pass
"""


def collected(tmp_path: Path, *options: str) -> list[str]:
    (tmp_path / "test_some.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "tests.selection", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"--rootdir={tmp_path}", *options, tmp_path / "test_some.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.partition("::")[2] or line for line in done.stdout.splitlines()]


def test_some_cases_have_every_value() -> None:
    cases = [list(case) for case in itertools.product("abc", "pqrs", "xy")]
    kept = [cases[number] for number in sample(cases, 1)]
    assert len(kept) == 4
    assert [set(values) for values in zip(*kept, strict=True)] == [set("abc"), set("pqrs"), set("xy")]


def test_some_cases_have_every_pair_of_values() -> None:
    cases = [list(case) for case in itertools.product("abc", repeat=4)]
    kept = [cases[number] for number in sample(cases, 2)]
    assert len(kept) < 20
    for one, other in itertools.combinations(range(4), 2):
        assert len({(case[one], case[other]) for case in kept}) == 9


def test_a_test_has_what_a_soak_leaves_out_and_the_other_way_round(tmp_path: Path) -> None:
    test = collected(tmp_path, "--collect-only")
    assert [line for line in test if line.startswith("test_")][:1] == ["test_usual"]
    assert "test_long" not in test
    assert sum(line.startswith("test_product") for line in test) == 4
    soak = collected(tmp_path, "--collect-only", "--soak")
    assert "test_usual" not in soak
    assert "test_long" in soak
    assert sum(line.startswith("test_product") for line in soak) == 12 - 4
    assert "test_property" in test
    assert "test_property" in soak
    assert "test_scaled" in test
    assert "test_scaled" in soak


def test_a_soak_begins_nothing_after_its_time(tmp_path: Path) -> None:
    found = collected(tmp_path, "--soak", "--minutes", "0")
    assert found[-1].startswith("11 skipped")


def test_a_test_has_the_usual_number_of_examples(tmp_path: Path) -> None:
    (line,) = (line for line in collected(tmp_path) if "examples:" in line)
    assert int(line.rpartition(" ")[2]) <= 101
