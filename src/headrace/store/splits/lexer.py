"""The words of a filter: names, numbers, quoted text, operators. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.core.errors import FilterError

NAME, NUMBER, STRING, OPERATOR, KEYWORD, END = "name", "number", "text", "operator", "keyword", "end"

KEYWORDS = {"AND", "OR", "NOT", "IN", "LIKE", "BETWEEN", "IS", "NULL", "TRUE", "FALSE"}

_WORD = re.compile(
    r"""\s*(?:
      (?P<name>[^\W\d]\w*)
    | (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.])
    | (?P<text>'(?:[^']|'')*')
    | "(?P<quoted>(?:[^"]|"")*)"
    | (?P<operator><=|>=|<>|!=|==|[=<>(),+-])
    )""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Token:
    """A word and where it begins. ``text`` is what it means: quotes removed, keywords in capitals."""

    kind: str
    text: str
    start: int


def tokens(source: str) -> Iterator[Token]:
    """The words of the filter, the last of them END. Raises ``FilterError`` at what is no word."""
    position, length = 0, len(source.rstrip())
    while position < length:
        match = _WORD.match(source, position)
        if match is None:
            start = position + len(source[position:]) - len(source[position:].lstrip())
            raise wrong(source, start, _complaint(source[start]))
        kind = str(match.lastgroup)
        yield _token(kind, match.group(kind), match.start(kind))
        position = match.end()
    yield Token(END, "", length)


def _token(kind: str, text: str, start: int) -> Token:
    if kind == "name" and text.upper() in KEYWORDS:
        return Token(KEYWORD, text.upper(), start)
    if kind == "text":
        return Token(STRING, text[1:-1].replace("''", "'"), start)
    if kind == "quoted":
        return Token(NAME, text.replace('""', '"'), start - 1)
    return Token(kind, text, start)


def _complaint(character: str) -> str:
    if character in "'\"":
        return f"this {character} is never closed"
    return "this is no number" if character.isdigit() or character == "." else f"{character!r} has no meaning here"


def wrong(source: str, start: int, complaint: str) -> FilterError:
    """An error that shows the place."""
    return FilterError(f"{complaint}\n  {source}\n  {' ' * start}^")
