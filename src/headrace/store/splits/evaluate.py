"""Which rows a filter holds for, with SQL's three answers: yes, no, and unknown where a value is missing. Pure."""

import math
import operator
import re
from dataclasses import dataclass
from typing import Any as Anything

import numpy as np
import numpy.typing as npt

from headrace.core.errors import FilterError
from headrace.store.splits import filter as F
from headrace.store.splits.frame import INTEGER, NOTHING, OTHER, REAL, TEXT, Bools, Column, Frame

_OPERATORS = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MIRRORED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_LEAST, _MOST = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class _Answer:
    yes: Bools
    no: Bools


def holds(condition: F.Condition, frame: Frame) -> Bools:
    """One boolean per row. Raises ``FilterError`` for a column that is not there or of another type."""
    return _answer(condition, frame).yes


def _answer(condition: F.Condition, frame: Frame) -> _Answer:
    match condition:
        case F.Not(part):
            inner = _answer(part, frame)
            return _Answer(inner.no, inner.yes)
        case F.All(parts):
            found = [_answer(part, frame) for part in parts]
            return _Answer(_all([each.yes for each in found]), ~_all([~each.no for each in found]))
        case F.Any(parts):
            found = [_answer(part, frame) for part in parts]
            return _Answer(~_all([~each.yes for each in found]), _all([each.no for each in found]))
        case _:
            return _predicate(condition, frame)


def _predicate(condition: F.Predicate, frame: Frame) -> _Answer:
    match condition:
        case F.IsNull(operand):
            empty = _column(operand, frame).null if isinstance(operand, F.Name) else np.zeros(frame.rows, np.bool_)
            return _Answer(empty, ~empty)
        case F.Compare(sign, left, right):
            return _compared(sign, left, right, frame)
        case F.In(operand, values):
            return _among(operand, values, frame)
        case F.Like(operand, pattern):
            return _like(operand, pattern, frame)


def _all(parts: list[Bools]) -> Bools:
    return np.asarray(np.logical_and.reduce(parts), np.bool_)


def _known(yes: Bools, null: Bools) -> _Answer:
    return _Answer(yes & ~null, ~yes & ~null)


def _column(name: F.Name, frame: Frame) -> Column:
    if name.name not in frame.columns:
        raise FilterError(f"there is no column {name.name!r}; there are {', '.join(frame.columns) or 'none'}")
    return frame.columns[name.name]


def _compared(sign: str, left: F.Operand, right: F.Operand, frame: Frame) -> _Answer:
    if isinstance(left, F.Literal) and isinstance(right, F.Literal):
        if isinstance(left.value, str) != isinstance(right.value, str):
            raise FilterError(f"{left.value!r} and {right.value!r} cannot be compared: one is text")
        return _known(np.full(frame.rows, _OPERATORS[sign](left.value, right.value)), np.zeros(frame.rows, np.bool_))
    if isinstance(left, F.Name) and isinstance(right, F.Name):
        return _columns_compared(sign, _column(left, frame), _column(right, frame))
    if isinstance(left, F.Literal):
        left, right, sign = right, left, _MIRRORED[sign]
    assert isinstance(left, F.Name)
    assert isinstance(right, F.Literal)
    column = _column(left, frame)
    return _known(_against(sign, column, right.value), column.null)


def _columns_compared(sign: str, left: Column, right: Column) -> _Answer:
    kinds = {left.kind, right.kind}
    null = left.null | right.null
    if NOTHING in kinds:
        return _known(null, null)
    if OTHER in kinds or (TEXT in kinds and len(kinds) == 2):
        raise FilterError(f"{left.name} has {left.kind} and {right.name} has {right.kind}: they cannot be compared")
    compare = _OPERATORS[sign]
    if len(kinds) == 2:  # Python compares integers and floats exactly, numpy rounds
        pairs = zip(left.values.tolist(), right.values.tolist(), strict=True)
        return _known(np.fromiter((compare(a, b) for a, b in pairs), np.bool_, len(null)), null)
    return _known(np.asarray(compare(left.values, right.values), np.bool_), null)


def _against(sign: str, column: Column, value: float | str) -> Bools:
    """A column compared with a literal; exact also where a number has no float, or no int64, of its own."""
    if column.kind == NOTHING:
        return column.null
    if column.kind == OTHER or (column.kind == TEXT) != isinstance(value, str):
        raise FilterError(_mismatch(column, value))
    if column.kind == INTEGER:
        return _integers_against(sign, column.values, value)  # type: ignore[arg-type]  # no text here
    if column.kind == REAL:
        return _reals_against(sign, column.values, value)  # type: ignore[arg-type]
    return np.asarray(_OPERATORS[sign](column.values, value), np.bool_)


def _mismatch(column: Column, value: float | str) -> str:
    if column.kind == OTHER:
        return f"{column.name} has {column.kind}; only IS NULL can be asked of it"
    if column.kind == TEXT:
        return f"{column.name} is text: compare it with '{value}', in single quotes"
    return f"{column.name} has {column.kind}: compare it with a number, not with '{value}'"


def _integers_against(sign: str, values: npt.NDArray[Anything], value: float) -> Bools:
    if not isinstance(value, int) and math.isfinite(value):
        if value.is_integer():
            value = int(value)
        elif sign in {"=", "!="}:
            return np.full(len(values), sign == "!=")
        else:
            sign, value = f"{sign[0]}=", math.floor(value) if sign[0] == "<" else math.ceil(value)
    if not _LEAST <= value <= _MOST:
        return np.full(len(values), _OPERATORS[sign](0, value))
    return np.asarray(_OPERATORS[sign](values, value), np.bool_)


def _reals_against(sign: str, values: npt.NDArray[Anything], value: float) -> Bools:
    nearest = float(value)
    if isinstance(value, int) and int(nearest) != value:
        if sign in {"=", "!="}:
            return np.full(len(values), sign == "!=")
        above = int(nearest) > value  # no float lies between the two
        sign = {"<": "<" if above else "<=", ">": ">=" if above else ">"}[sign[0]]
    return np.asarray(_OPERATORS[sign](values, nearest), np.bool_)


def _among(operand: F.Operand, values: tuple[F.Literal, ...], frame: Frame) -> _Answer:
    if isinstance(operand, F.Literal):
        parts = tuple(F.Compare("=", operand, value) for value in values)
        return _answer(F.Any(parts), frame) if parts else _nothing(frame.rows)
    column = _column(operand, frame)
    if not values:
        return _nothing(frame.rows)
    if column.kind == TEXT and all(isinstance(value.value, str) for value in values):
        wanted = {value.value for value in values}
        return _known(np.fromiter((v in wanted for v in column.values.tolist()), np.bool_, frame.rows), column.null)
    found = np.zeros(frame.rows, np.bool_)
    for value in values:
        found |= _against("=", column, value.value)
    return _known(found, column.null)


def _nothing(rows: int) -> _Answer:
    """No value is in an empty list, not even an unknown one."""
    none = np.zeros(rows, np.bool_)
    return _Answer(none, ~none)


def _like(operand: F.Operand, pattern: str, frame: Frame) -> _Answer:
    matches = re.compile(_expression(pattern), re.DOTALL).fullmatch
    if isinstance(operand, F.Literal):
        if not isinstance(operand.value, str):
            raise FilterError(f"LIKE is for text, and {operand.value} is a number")
        one = matches(_lowered(operand.value)) is not None
        return _known(np.full(frame.rows, one), np.zeros(frame.rows, np.bool_))
    column = _column(operand, frame)
    if column.kind == NOTHING:
        return _known(column.null, column.null)
    if column.kind != TEXT:
        raise FilterError(f"LIKE is for text, and {column.name} has {column.kind}")
    texts: list[str] = column.values.tolist()
    verdicts = {text: matches(_lowered(text)) is not None for text in set(texts)}
    return _known(np.fromiter(map(verdicts.__getitem__, texts), np.bool_, len(texts)), column.null)


def _expression(pattern: str) -> str:
    """Each part between two % is looked for once, leftmost, and never again: time is linear in the text."""
    first, *rest = ["".join("." if c == "_" else re.escape(c) for c in part) for part in _lowered(pattern).split("%")]
    if not rest:
        return first
    return first + "".join(f"(?>.*?{part})" for part in rest[:-1]) + f".*{rest[-1]}"


_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


def _lowered(text: str) -> str:
    """Only ASCII letters lose their case, as in SQLite."""
    return text.translate(_LOWER)
