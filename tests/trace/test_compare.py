"""Two traces held against each other."""

import json
import random

import numpy as np
import pytest

from headrace.core.errors import TraceError
from headrace.trace.analysis.compare import compare, difference, quantile
from tests.trace.made import Made


def run(path, decode, seed, batches=200):
    """Input-bound batches of one sample whose decoding takes about ``decode`` ms; flipping takes about 1."""
    chance = random.Random(seed)
    made = Made(path)
    made.run(workers=1)
    clock = 0.0
    for number in range(batches):
        cost = {"decode": decode * chance.uniform(0.5, 1.5), "flip": chance.uniform(0.5, 1.5)}
        length = sum(cost.values())
        made.sample(0, clock, length, number, batch=number, operations=cost)
        made.batch(number, clock + 0.1, clock + length)
        clock += length
    return made.read()


@pytest.fixture
def found(tmp_path):
    both = run(tmp_path / "a", 5, seed=1), run(tmp_path / "b", 8, seed=2)
    (loader,) = compare(*both).loaders
    return {one.name: one for one in loader.differences}


def test_what_changed_is_seen(found):
    decode = found["operation decode"]
    assert decode.seen
    assert decode.low < 0.6 < decode.high
    assert found["throughput"].seen
    assert found["throughput"].change == pytest.approx(6 / 9 - 1, abs=0.06)
    assert found["batch preprocessing"].seen
    assert found["wait"].seen


def test_what_did_not_is_not(found):
    assert found["operation flip"].seen is False
    assert found["operation flip"].words == "no difference seen"


def test_few_values_say_nothing(found):
    assert found["first batch of an epoch"].seen is None
    assert found["first batch of an epoch"].words == "too few to tell"


def test_the_same_twice_differs_in_nothing(tmp_path):
    trace = run(tmp_path / "a", 5, seed=1)
    (loader,) = compare(trace, trace).loaders
    assert not [one for one in loader.differences if one.seen]


def test_equal_things_are_hardly_ever_called_different():
    """At 99 % confidence one in a hundred pairs of equal series would be."""
    chance = np.random.default_rng(7)
    seen = sum(
        bool(difference("x", "s", chance.exponential(1, 100), chance.exponential(1, 100)).seen) for _ in range(300)
    )
    assert seen <= 12


def test_neighbours_that_are_alike_count_once():
    """A slow drift makes single values look certain; blocks of neighbours know better."""
    chance = np.random.default_rng(7)
    seen = 0
    for _ in range(100):
        first, second = (np.repeat(chance.normal(10, 2, 20), 50) for _ in range(2))
        seen += bool(difference("x", "s", first, second).seen)
    assert seen <= 6


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    [(0.995, 5, 4.032), (0.995, 10, 3.169), (0.975, 30, 2.042), (0.995, 4, 4.604)],
)
def test_student_s_t(probability, freedom, expected):
    assert quantile(probability, freedom) == pytest.approx(expected, rel=0.02)


def test_it_is_json(tmp_path):
    trace = run(tmp_path / "a", 5, seed=1)
    data = json.loads(json.dumps(compare(trace, trace).data()))
    first = data["loaders"][0]["differences"][0]
    assert (first["name"], first["words"]) == ("throughput", "no difference seen")


def test_loaders_are_compared_with_their_like(tmp_path):
    found = []
    for name, factor in (("a", 1), ("b", 3)):
        made = Made(tmp_path / name)
        for loader, length in (("train", 1), ("val", factor)):
            made.run(loader)
            for number in range(40):
                made.sample(0, 4 * number, length, number, operations={f"{loader} in {name}": length})
                made.batch(number, 4 * number, 4 * number + length)
        found.append(made.read())
    train, val = compare(*found).loaders
    seen = [{one.name: one.seen for one in loader.differences} for loader in (train, val)]
    assert (seen[0]["sample"], seen[1]["sample"]) == (False, True)
    assert (train.only_first, train.only_second) == (("operation train in a",), ("operation train in b",))


def test_nothing_in_common(tmp_path):
    made = Made(tmp_path / "empty")
    with pytest.raises(TraceError, match="no loader in common"):
        compare(run(tmp_path / "a", 5, seed=1), made.read())


def test_from_nothing_to_something():
    zeros, ones = np.zeros(100), np.ones(100)
    assert difference("x", "s", zeros, ones).words == "new"
    assert difference("x", "s", zeros, zeros).words == "no difference seen"
