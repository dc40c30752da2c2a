"""The filter means what SQLite means by it, whatever the columns came as; and the errors a user meets."""

import sqlite3

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import FilterError
from headrace.store.splits.filter import holds
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
    assert np.flatnonzero(holds(condition, columns(table))).tolist() == by_sqlite(condition, table)


FRAME = {"age": [20, 30, None], "name": ["a", "B", None], "data": [b"a", None, b"b"], "Patient id": ["P1", "P2", "P3"]}


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("", "the filter is empty"),
        ("age >", "'age >': .*syntax error|incomplete"),
        ("age > 3 4", "syntax error"),
        ("(age > 3", "syntax error|incomplete"),
        ("age = NULL", "'age = NULL': nothing equals NULL: write IS NULL"),
        ("name = 'x", "unrecognized token"),
        ("weight = 3", "there is no column 'weight'; there are age, name, data, Patient id$"),
        ("""age > 1 AND "Patient" = 'P1'""", "there is no column 'Patient'; there are age, name, data, Patient id"),
        ("rowid > 1", "there is no column 'ROWID'"),
        ("row > 1", "there is no column 'row'"),
        ("age > ?", "binding"),
        ("age > :other", "binding"),
        ("age > 3\0", "null"),
        ("age > '\ud800'", "surrogates"),
        ("(" * 5000 + "age = 1" + ")" * 5000, "overflow|depth|nesting|[Rr]ecursion"),
        ("age = 1" + " OR age = 1" * 5000, "depth"),
        (f"name = '{'x' * (1 << 20)}'", "too large|too big"),
    ],
)
def test_a_mistake_is_one_line(source, complaint):
    with pytest.raises(FilterError, match=complaint) as caught:
        holds(source, framed(FRAME))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "source",
    [
        "age > 3; DROP TABLE samples",
        "age > 3;",
        "1) OR (1",
        "1) LIMIT 1 /*",
        "1) LIMIT 1 --",
        "1) UNION SELECT 1 --",
        "1 ORDER BY age",
        "1 LIMIT 1",
        "1 GROUP BY age",
        "age IN (SELECT age FROM samples)",
        "age IN samples",
        "EXISTS (SELECT 1)",
        "age = (SELECT count(*) FROM sqlite_master)",
        "name IN sqlite_master",
        "age IN (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n)",
        "age IN pragma_table_info('samples')",
        "age IN (VALUES (20))",
        "load_extension('evil')",
        "readfile('/etc/passwd') IS NOT NULL",
        "random() > 0",
        "length(randomblob(1000000000)) > 1",
        "length(zeroblob(1000000000)) > 1",
        "length(printf('%1000000000d', 1)) > 1",
        "current_timestamp > name",
        "date('now') > name",
        "count(*) > 1",
        "sum(age) OVER () > 1",
        "raise(ABORT, 'no')",
        "name MATCH 'a'",
        "name REGEXP 'a'",
        "ATTACH 'x' AS y",
        "PRAGMA user_version",
    ],
)
def test_a_condition_does_nothing_else(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FilterError) as caught:
        holds(source, framed(FRAME))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("source", "rows"),
    [
        ("age >= 21", [1]),
        ("NOT age >= 21", [0]),
        ("age IS NULL", [2]),
        ("name LIKE 'b%'", [1]),
        ("name = 'b' COLLATE NOCASE", [1]),
        ("lower(name) IN ('a', 'b')", [0, 1]),
        ("substr(\"Patient id\", 2) = '2'", [1]),
        ("[patient ID] = 'P3'", [2]),
        ("AGE = 20", [0]),
        ("age % 20 = 10 OR CASE WHEN name IS NULL THEN 1 END", [1, 2]),
        ("data IS NOT NULL", [0, 2]),
        ("age = '20'", [0]),
        ("1", [0, 1, 2]),
        ("age > 3 -- grown", [0, 1]),
        ("name = 'it''s; DROP' OR age = 30", [1]),
        ("name = '\"weight\"' OR age = 20", [0]),
    ],
)
def test_what_sqlite_can_is_there(source, rows):
    assert np.flatnonzero(holds(source, framed(FRAME))).tolist() == rows


def test_columns_that_sqlite_takes_for_one():
    with pytest.raises(FilterError, match="'age' and 'Age' differ in case only"):
        holds("age > 1", framed({"age": [1], "Age": [2]}))


def test_names_of_any_kind():
    frame = framed({'a "b" c': [1, 2], "row": [3, 4], "select": [5, 6], "samples": [7, 8], "é": ["x", "y"]})
    assert holds('"a ""b"" c" = 2 AND row = 4 AND "select" = 6 AND samples = 8 AND é = \'y\'', frame).tolist() == [
        False,
        True,
    ]


def test_values_of_any_kind():
    frame = framed({"s": ["\udcff", "b"], "big": [2**64, 3], "x": [float("inf"), -0.0]})
    assert holds("s > 'b' AND big IS NOT NULL AND x > 1e308", frame).tolist() == [True, False]


def test_truth_values_are_one_and_zero():
    frame = framed({"healthy": [True, False, None]})
    assert holds("healthy = TRUE", frame).tolist() == [True, False, False]
    assert holds("healthy != 1", frame).tolist() == [False, True, False]


def test_a_pattern_with_many_wildcards_ends():
    frame = framed({"s": ["a" * 5000]})
    assert not holds(f"s LIKE '{'%a' * 50}%b'", frame).any()
