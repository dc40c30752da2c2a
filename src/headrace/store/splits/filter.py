"""The rows that a condition holds for. SQLite answers, from a table in memory that has the columns the condition
names.

The condition comes from a user, and from scripts that were handed one. SQLite is asked to compile it first, and told of
every step what it may do: read that table's columns, compare, call the functions below. No other table, no SELECT, no
file, no clock and no random numbers, so that a split depends on its rows alone.
"""

import re
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing

import numpy as np

from headrace.core.errors import FilterError
from headrace.store.splits.frame import INTEGER, OTHER, REAL, TEXT, Bools, Column, Frame
from headrace.store.wording import quoted

FUNCTIONS = frozenset(
    {"abs", "coalesce", "glob", "ifnull", "iif", "instr", "length", "like", "lower", "ltrim", "max", "min", "nullif"}
    | {"round", "rtrim", "substr", "substring", "trim", "typeof", "unicode", "upper"}
)
"""Each gives little more than it is given, and the same every time."""
LONGEST = 1 << 20
"""Bytes of a condition: a list of fifty thousand keys."""
LARGEST = 1 << 26
"""Bytes of a value, also of one that is put together."""
STEPS = 1000
"""Of SQLite's machine for each row and character of a condition: far more than any can take without a loop."""

_TYPES = {INTEGER: "INTEGER", REAL: "REAL", TEXT: "TEXT", OTHER: "BLOB"}
_QUOTED = re.compile(r"""'(?:[^']|'')*'|"((?:[^"]|"")*)"|--[^\n]*|/\*.*?(?:\*/|$)""", re.DOTALL)
_EQUALS_NULL = re.compile(r"[=<>]\s*NULL\b", re.IGNORECASE)
_UNKNOWN = re.compile(r"no such column: (.*)", re.DOTALL)


def holds(condition: str, frame: Frame) -> Bools:
    """The answer to a condition, a boolean per row; where a value is missing and the answer therefore unknown, it
    is no.

    Raises ``FilterError``, one line that names the condition, for what is no condition over these columns.
    """
    if not condition.strip():
        raise FilterError("where: the filter is empty")
    try:
        return _answered(condition, frame)
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
        if isinstance(error, FilterError):
            raise
        raise _wrong(condition, _reason(str(error), frame)) from None


def _wrong(condition: str, reason: str) -> FilterError:
    return FilterError(f"where: {' '.join(condition.split())!r:.200}: {' '.join(reason.split())}")


def _reason(said: str, frame: Frame) -> str:
    if unknown := _UNKNOWN.fullmatch(said):
        return _no_column(unknown[1], frame)
    return "it is too large" if said in {"string or blob too big", "query string is too large"} else said


def _no_column(name: str, frame: Frame) -> str:
    return f"there is no column {name!r}; there are {', '.join(frame.columns) or 'none'}"


def _answered(condition: str, frame: Frame) -> Bools:
    _check_quotes(condition, frame)
    names = _compiled(condition, frame)
    row = "row"
    while row in map(str.lower, names):
        row += "_"
    with closing(_table([(row, "INTEGER PRIMARY KEY"), *((name, _type(frame, name)) for name in names)])) as table:
        _fill(table, [frame.columns[name] for name in names], frame.rows)
        guard = _Guard(frozenset({row, *names}))
        table.set_authorizer(guard)
        table.set_progress_handler(_Budget(STEPS * (len(condition) + 100) * (frame.rows + 1)), _Budget.EVERY)
        # A line of its own: a comment that ends the condition would hide the parenthesis.
        found = table.execute(f"SELECT {quoted(row)} FROM samples WHERE ({condition}\n)")
        mask = np.zeros(frame.rows, np.bool_)
        mask[np.fromiter((number for (number,) in found), np.int64)] = True
    return mask


def _check_quotes(condition: str, frame: Frame) -> None:
    """Refuse what SQLite lets pass: a column in double quotes that is not there counts as a text, and nothing
    equals NULL.
    """
    for found in _QUOTED.finditer(condition):
        name = found[1]
        if name is not None and name.replace('""', '"').lower() not in map(str.lower, frame.columns):
            raise _wrong(condition, _no_column(name, frame) + ". Texts have single quotes")
    if _EQUALS_NULL.search(_QUOTED.sub("''", condition)):
        raise _wrong(condition, "nothing equals NULL: write IS NULL or IS NOT NULL")


def _compiled(condition: str, frame: Frame) -> list[str]:
    """The columns it reads, if it is one condition and nothing else."""
    names = list(frame.columns)
    alike = {name.lower(): name for name in names}
    if len(alike) < len(names):
        twice = next(name for name in names if alike[name.lower()] != name)
        raise _wrong(condition, f"the columns {twice!r} and {alike[twice.lower()]!r} differ in case only: rename one")
    with closing(_table([(name, _type(frame, name)) for name in names])) as table:
        guard = _Guard(frozenset(names))
        table.set_authorizer(guard)
        try:
            # It must be whole by itself, and in parentheses: neither alone shuts out a closing one or a LIMIT.
            for statement in (f"{condition}\n", f"({condition}\n)"):
                guard.selects = 0
                table.execute(f"SELECT 1 FROM samples WHERE {statement}").fetchall()
        except sqlite3.Error:
            if guard.refused is None:
                raise
            raise _wrong(condition, guard.refused) from None
    return [name for name in names if name in guard.read]


class _Guard:
    """SQLite asks it about every step when it compiles a statement."""

    def __init__(self, columns: frozenset[str]) -> None:
        self._columns = columns
        self.selects = 0
        self.read: set[str] = set()
        self.refused: str | None = None

    def __call__(self, action: int, one: str | None, two: str | None, *_: str | None) -> int:
        self.refused = self._refusal(action, one, two)
        if self.refused is None:
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY

    def _refusal(self, action: int, one: str | None, two: str | None) -> str | None:
        if action == sqlite3.SQLITE_SELECT:
            self.selects += 1  # the first is ours, around the condition
            return None if self.selects == 1 else "a condition compares columns, and has no SELECT in it"
        if action == sqlite3.SQLITE_READ and one == "samples" and (not two or two in self._columns):
            self.read.add(two or "")
            return None
        if action == sqlite3.SQLITE_READ and one == "samples":
            return f"there is no column {two!r}; there are {', '.join(sorted(self._columns)) or 'none'}"
        if action == sqlite3.SQLITE_FUNCTION:
            known = str(two).lower() in FUNCTIONS
            return None if known else f"{two}() is not one of the functions there are: {', '.join(sorted(FUNCTIONS))}"
        return "a condition compares columns of these samples, and does nothing else"


class _Budget:
    """Ends what takes more steps than any condition can; an interrupt is heard meanwhile."""

    EVERY = 100_000

    def __init__(self, steps: int) -> None:
        self._left = 1 + steps // self.EVERY

    def __call__(self) -> int:
        self._left -= 1
        return int(self._left < 0)


def _type(frame: Frame, name: str) -> str:
    return _TYPES.get(frame.columns[name].kind, "")


def _table(columns: Sequence[tuple[str, str]]) -> sqlite3.Connection:
    """An empty one in memory, by the name of ``samples``."""
    made = sqlite3.connect(":memory:", isolation_level=None)
    try:
        made.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        made.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, LONGEST)
        made.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST)
        made.execute("CREATE TABLE samples (" + ", ".join(f"{quoted(name)} {kind}" for name, kind in columns) + ")")
    except BaseException:
        made.close()
        raise
    return made


def _fill(table: sqlite3.Connection, columns: Sequence[Column], rows: int) -> None:
    places = ", ".join("?" if column.kind != TEXT else "CAST(? AS TEXT)" for column in columns)
    values = zip(range(rows), *(_stored(column) for column in columns), strict=True)
    table.execute("BEGIN")
    table.executemany(f"INSERT INTO samples VALUES (?{places and ', ' + places})", values)
    table.execute("COMMIT")


def _stored(column: Column) -> Iterable[object]:
    """The values as SQLite can hold them. A value that cannot be compared is there, and equals nothing."""
    if column.kind == OTHER:
        return [None if value is None else value if isinstance(value, bytes) else b"" for value in column.listed()]
    if column.kind == TEXT:  # names of files may hold what has no UTF-8
        return [None if value is None else value.encode("utf-8", "surrogatepass") for value in column.listed()]
    return column.listed()
