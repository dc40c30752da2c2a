"""The filter against SQLite, which says what SQL means, and the errors a user meets."""

import sqlite3

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import FilterError
from headrace.store.splits.evaluate import holds
from headrace.store.splits.filter import parse
from headrace.store.splits.frame import framed

EDGES = [0, 1, -1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63)]
REALS = [0.0, 0.5, -1.5, 1e18, float(2**53), 9.223372036854775e18, 1e300]

integers = st.one_of(st.sampled_from(EDGES), st.integers(-9, 9))
reals = st.one_of(st.sampled_from(REALS), st.floats(-9, 9).map(lambda value: round(value, 2)))
texts = st.text("aAbB%_' é\\.*\n", max_size=5)
COLUMNS = {"n": integers, "m": integers, "x": reals, "y": reals, "s": texts, "t": texts}
rows = st.lists(st.fixed_dictionaries({name: st.none() | values for name, values in COLUMNS.items()}), max_size=12)

NUMERIC, TEXTUAL = ["n", "m", "x", "y"], ["s", "t"]
signs = st.sampled_from(["=", "==", "!=", "<>", "<", "<=", ">", ">="])
numbers = st.one_of(integers.map(str), reals.map(repr))
quoted = texts.map(lambda text: "'" + text.replace("'", "''") + "'")
nots = st.sampled_from(["", "NOT "])


def operands(columns, literals):
    return st.sampled_from([*columns, *(f'"{name}"' for name in columns)]) | literals


def predicates(columns, literals):
    one = operands(columns, literals)
    name = st.sampled_from(columns)
    listed = st.lists(literals, max_size=4).map(", ".join)
    return st.one_of(
        st.builds("{} {} {}".format, one, signs, one),
        st.builds("{} {}IN ({})".format, name, nots, listed),
        st.builds("{} {}BETWEEN {} AND {}".format, name, nots, one, one),
        st.builds("{} IS {}NULL".format, name, nots),
    )


likes = st.builds("{} {}LIKE {}".format, operands(TEXTUAL, quoted), nots, quoted)
leaves = st.one_of(predicates(NUMERIC, numbers), predicates(TEXTUAL, quoted), likes)
conditions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds("NOT ({})".format, inner),
        st.builds("NOT {}".format, inner),
        st.builds("({}) AND ({})".format, inner, inner),
        st.builds("{} and {}".format, inner, inner),
        st.builds("{} OR {}".format, inner, inner),
        st.builds("({})".format, inner),
    ),
    max_leaves=6,
)


def by_sqlite(condition, table):
    with sqlite3.connect(":memory:") as database:
        database.execute("CREATE TABLE one (row INTEGER, n INTEGER, m INTEGER, x REAL, y REAL, s TEXT, t TEXT)")
        values = [(number, *(row[name] for name in COLUMNS)) for number, row in enumerate(table)]
        database.executemany("INSERT INTO one VALUES (?, ?, ?, ?, ?, ?, ?)", values)
        found = [row for (row,) in database.execute(f"SELECT row FROM one WHERE {condition} ORDER BY row")]
    database.close()
    return found


def columns(table):
    made = {name: [row[name] for row in table] for name in COLUMNS}
    for name in ("n", "m"):  # as stores give them: integers, or objects where some are missing
        made[name] = np.array(made[name], object if None in made[name] else np.int64)
    for name in ("x", "y"):
        made[name] = np.array([np.nan if value is None else value for value in made[name]], np.float64)
    return framed(made)


@given(conditions, rows)
def test_means_what_it_means_in_sqlite(condition, table):
    assert np.flatnonzero(holds(parse(condition), columns(table))).tolist() == by_sqlite(condition, table)


@pytest.mark.parametrize(
    ("source", "complaint", "column"),
    [
        ("", "the filter is empty", None),
        ("age >", "a column, a number or 'text' is expected", 5),
        ("age > 3 4", "AND, OR or the end is expected", 8),
        ("(age > 3", r"AND, OR or \) is expected", 8),
        ("age = NULL", "write IS NULL", 6),
        ("age IN (1, NULL)", "write IS NULL", 11),
        ("age IN (1, other)", "no columns", 11),
        ("name = 'x", "never closed", 7),
        ("age > 3; DROP TABLE x", "';' has no meaning", 7),
        ("age > 3x", "no number", 6),
        ("name LIKE 3", "pattern in single quotes", 10),
        ("age IS 3", "NULL or NOT NULL is expected", 7),
        ("age", "a comparison, IN, LIKE, BETWEEN or IS NULL is expected", 3),
        ("age BETWEEN 1 OR 2", "AND and the upper bound", 14),
        ("__import__('os')", "a comparison", 10),
        ("(" * 5000 + "a = 1" + ")" * 5000, "more than 100 parentheses", 100),
        ("NOT " * 5000 + "a = 1", "more than 100 parentheses", 400),
    ],
)
def test_a_mistake_is_shown_where_it_is(source, complaint, column):
    with pytest.raises(FilterError, match=complaint) as caught:
        parse(source)
    if column is not None:
        assert str(caught.value).splitlines()[-1] == "  " + " " * column + "^"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("weight = 3", "there is no column 'weight'; there are age, name, data"),
        ("name = 3", "name is text: compare it with '3', in single quotes"),
        ("name IN ('a', 3)", "name is text"),
        ("age = '3'", "age has integers: compare it with a number, not with '3'"),
        ("age < name", "age has integers and name has text: they cannot be compared"),
        ("age LIKE '3%'", "LIKE is for text, and age has integers"),
        ("data = 'x'", "only IS NULL can be asked of it"),
        ("3 = 'x'", "one is text"),
    ],
)
def test_types_do_not_mix(source, complaint):
    frame = framed({"age": [1, 2], "name": ["a", "b"], "data": [b"a", b"b"]})
    with pytest.raises(FilterError, match=complaint):
        holds(parse(source), frame)


def test_truth_values_are_one_and_zero():
    frame = framed({"healthy": [True, False, None]})
    assert holds(parse("healthy = TRUE"), frame).tolist() == [True, False, False]
    assert holds(parse("healthy != 1"), frame).tolist() == [False, True, False]


def test_a_pattern_with_many_wildcards_takes_linear_time():
    frame = framed({"s": ["a" * 5000]})
    assert not holds(parse(f"s LIKE '{'%a' * 50}%b'"), frame).any()
