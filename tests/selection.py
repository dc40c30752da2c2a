"""Which tests run: `make test` proves a release in minutes, `make soak` has the rest and takes the time it is given.

``soak`` marks a test for `make soak` alone. ``sampled`` keeps of a test's cases as few as have every value of every
parameter once, ``sampled(2)`` every pair of values of two parameters; the other cases are for `make soak`.
Property tests are in both, with more examples there, and so is what is marked ``scaled``, which goes further there.
"""

import itertools
import time
from collections.abc import Iterable, Iterator
from typing import Any

import hypothesis
import pytest

TEST_EXAMPLES, SOAK_EXAMPLES = 40, 2000
"""Of a property that does not say how many it wants."""

ENDS = pytest.StashKey[float]()
TIME_OVER = "the time is over"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("headrace")
    group.addoption("--soak", action="store_true", help="run what `make test` leaves out, and nothing else")
    group.addoption(
        "--minutes", type=float, metavar="N", help="begin no test after so many minutes, and say what is left"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "soak: for `make soak`; `make test` leaves it out")
    config.addinivalue_line("markers", "scaled: does more of the same in `make soak` (tests.selection.scaled)")
    config.addinivalue_line("markers", "sampled(strength=1): a few cases that have each value once; the rest is soak")
    test = hypothesis.settings(deadline=None, max_examples=TEST_EXAMPLES, derandomize=True)
    hypothesis.settings.register_profile("test", test)
    hypothesis.settings.register_profile("soak", deadline=None, max_examples=SOAK_EXAMPLES)
    hypothesis.settings.load_profile("soak" if config.getoption("--soak") else "test")
    minutes, given = config.getoption("--minutes"), getattr(config, "workerinput", {})
    if minutes is not None:
        config.stash[ENDS] = given.get("ends", time.monotonic() + 60 * minutes)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """A process that runs tests ends with the others, whenever it began."""
    if ENDS in node.config.stash:
        node.workerinput["ends"] = node.config.stash[ENDS]


def scaled(usual: int, soak: int) -> int:
    """A number for `make test`, and one for `make soak`. A test that uses it has a mark of the same name."""
    return soak if hypothesis.settings.default.max_examples == SOAK_EXAMPLES else usual


def examples(weight: int) -> int:
    """How many examples for a property that is worth so many where others are worth 100."""
    return hypothesis.settings.default.max_examples * weight // 100


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if unsteady := [item.nodeid for item in items if " at 0x" in item.nodeid]:
        raise pytest.UsageError(f"an address is no name for a case, the next process has another: {unsteady[0]}")
    beyond = {item for item in items if item.get_closest_marker("soak")} | set(_unsampled(items))
    if config.getoption("--soak"):
        chosen = [item for item in items if item in beyond or item.get_closest_marker("scaled") or _is_property(item)]
    else:
        chosen = [item for item in items if item not in beyond]
    kept = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = chosen


def _is_property(item: pytest.Item) -> bool:
    return getattr(getattr(item, "obj", None), "is_hypothesis_test", False)


def _unsampled(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """The cases of sampled tests that are not among the few."""
    cases: dict[str, list[tuple[pytest.Item, list[str]]]] = {}
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is not None and item.get_closest_marker("sampled"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append((item, callspec._idlist))
    for group in cases.values():
        marker = group[0][0].get_closest_marker("sampled")
        strength = (marker.args or (1,))[0] if marker else 1
        kept = sample([ids for _, ids in group], strength)
        yield from (item for number, (item, _) in enumerate(group) if number not in kept)


def sample(cases: list[list[str]], strength: int) -> set[int]:
    """The numbers of a few cases, given by their values, that have every combination of so many parameters' values."""
    had = [set(itertools.combinations(enumerate(case), min(strength, len(case)))) for case in cases]
    missing, kept = set().union(*had), set()
    while missing:
        best = max(range(len(cases)), key=lambda number: len(had[number] & missing))
        missing -= had[best]
        kept.add(best)
    return kept


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.monotonic() > item.config.stash.get(ENDS, float("inf")):
        pytest.skip(TIME_OVER)
