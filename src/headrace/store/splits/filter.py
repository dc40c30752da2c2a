"""A filter over metadata in the SQL everybody knows, as a tree of values.

condition  := term (OR term)*
term       := factor (AND factor)*
factor     := NOT factor | ( condition ) | predicate
predicate  := operand (= | == | != | <> | < | <= | > | >=) operand
            | operand [NOT] IN ( [literal, ...] )
            | operand [NOT] LIKE 'pattern'
            | operand [NOT] BETWEEN operand AND operand
            | operand IS [NOT] NULL
operand    := column | "column" | literal
literal    := number | 'text' | TRUE | FALSE
"""

from dataclasses import dataclass
from typing import NoReturn

from headrace.core.errors import FilterError
from headrace.store.splits.lexer import END, KEYWORD, NAME, NUMBER, OPERATOR, STRING, Token, tokens, wrong

DEEPEST = 100
"""Parentheses and NOTs within each other."""

COMPARISONS = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


@dataclass(frozen=True, slots=True)
class Name:
    """A column."""

    name: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A number or a text; TRUE and FALSE are 1 and 0."""

    value: int | float | str


Operand = Name | Literal


@dataclass(frozen=True, slots=True)
class Compare:
    """``left operator right``, the operator one of = != < <= > >=."""

    operator: str
    left: Operand
    right: Operand


@dataclass(frozen=True, slots=True)
class In:
    """One of several values."""

    operand: Operand
    values: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class Like:
    """Text like a pattern: % is any text, _ any character, ASCII letters of either case are the same."""

    operand: Operand
    pattern: str


@dataclass(frozen=True, slots=True)
class IsNull:
    """There is no value."""

    operand: Operand


@dataclass(frozen=True, slots=True)
class Not:
    """The contrary; what is unknown stays unknown."""

    part: "Condition"


@dataclass(frozen=True, slots=True)
class All:
    """Every part holds."""

    parts: tuple["Condition", ...]


@dataclass(frozen=True, slots=True)
class Any:
    """Some part holds."""

    parts: tuple["Condition", ...]


Predicate = Compare | In | Like | IsNull
Condition = Predicate | Not | All | Any


def parse(source: str) -> Condition:
    """The filter as a tree. Raises ``FilterError``, which shows the place, where it is none."""
    if not source.strip():
        raise FilterError("the filter is empty")
    reader = _Reader(source)
    found = reader.condition()
    reader.expect(END, "", "AND, OR or the end")
    return found


class _Reader:
    """One token of look-ahead over the source."""

    def __init__(self, source: str) -> None:
        self.source, self.tokens, self.at, self.depth = source, list(tokens(source)), 0, 0

    @property
    def next(self) -> Token:
        return self.tokens[self.at]

    def taken(self, kind: str, *texts: str) -> Token | None:
        """The next token if it is such a one, and go on."""
        token = self.next
        if token.kind != kind or (texts and token.text not in texts):
            return None
        self.at += 1
        return token

    def expect(self, kind: str, text: str, wanted: str) -> None:
        if not self.taken(kind, text):
            self.complain(f"{wanted} is expected here")

    def complain(self, complaint: str, token: Token | None = None) -> NoReturn:
        raise wrong(self.source, (token or self.next).start, complaint)

    def condition(self) -> Condition:
        parts = [self.term()]
        while self.taken(KEYWORD, "OR"):
            parts.append(self.term())
        return parts[0] if len(parts) == 1 else Any(tuple(parts))

    def term(self) -> Condition:
        parts = [self.factor()]
        while self.taken(KEYWORD, "AND"):
            parts.append(self.factor())
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def factor(self) -> Condition:
        if self.depth >= DEEPEST:
            self.complain(f"more than {DEEPEST} parentheses and NOTs within each other")
        self.depth += 1
        if self.taken(KEYWORD, "NOT"):
            found: Condition = Not(self.factor())
        elif self.taken(OPERATOR, "("):
            found = self.condition()
            self.expect(OPERATOR, ")", "AND, OR or )")
        else:
            found = self.predicate()
        self.depth -= 1
        return found

    def predicate(self) -> Condition:
        left = self.operand()
        if token := self.taken(OPERATOR, *COMPARISONS):
            return Compare(COMPARISONS[token.text], left, self.operand())
        if self.taken(KEYWORD, "IS"):
            negated = self.taken(KEYWORD, "NOT")
            self.expect(KEYWORD, "NULL", "NULL" if negated else "NULL or NOT NULL")
            return Not(IsNull(left)) if negated else IsNull(left)
        negated = self.taken(KEYWORD, "NOT")
        found = self.membership(left)
        return Not(found) if negated else found

    def membership(self, left: Operand) -> Condition:
        if self.taken(KEYWORD, "IN"):
            return In(left, self.listed())
        if self.taken(KEYWORD, "LIKE"):
            pattern = self.taken(STRING)
            if pattern is None:
                self.complain("a pattern in single quotes is expected here")
            return Like(left, pattern.text)
        self.expect(KEYWORD, "BETWEEN", "a comparison, IN, LIKE, BETWEEN or IS NULL")
        low = self.operand()
        self.expect(KEYWORD, "AND", "AND and the upper bound")
        return All((Compare(">=", left, low), Compare("<=", left, self.operand())))

    def listed(self) -> tuple[Literal, ...]:
        self.expect(OPERATOR, "(", "( and a list of values")
        found: list[Literal] = []
        while not self.taken(OPERATOR, ")"):
            if found:
                self.expect(OPERATOR, ",", ", or )")
            token = self.next
            value = self.operand()
            if isinstance(value, Name):
                self.complain("a list has numbers and 'quoted text', no columns", token)
            found.append(value)
        return tuple(found)

    def operand(self) -> Operand:
        if token := self.taken(NAME):
            return Name(token.text)
        if token := self.taken(STRING):
            return Literal(token.text)
        if token := self.taken(KEYWORD, "TRUE", "FALSE"):
            return Literal(int(token.text == "TRUE"))
        if self.next.text == "NULL":
            self.complain("nothing equals NULL: write IS NULL or IS NOT NULL")
        sign = self.taken(OPERATOR, "+", "-")
        number = self.taken(NUMBER)
        if number is None:
            self.complain("a column, a number or 'text' is expected here")
        return Literal(_number(number.text, negative=sign is not None and sign.text == "-"))


def _number(text: str, *, negative: bool) -> int | float:
    """As SQLite reads it: what has no 64-bit integer is a float."""
    sign = -1 if negative else 1
    if not text.isdecimal():
        return sign * float(text)
    value = sign * int(text) if len(text) < 20 else sign * 10**20
    return value if -(2**63) <= value < 2**63 else sign * float(text)
