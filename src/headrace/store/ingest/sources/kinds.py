"""Kinds of a CSV column's texts: integers, numbers, truth values, or texts. Pure."""

import re

from headrace.store.base import Kind, Scalar

_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,17})")
_NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9]\d{0,17})(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|nan", re.IGNORECASE)
_TRUTH = {"true": True, "false": False}


class Guess:
    """The kinds that all values seen so far can be. Numbers with leading zeros, or too long for 64 bits, are texts:
    names.
    """

    def __init__(self) -> None:
        self.kinds = [Kind.INTEGER, Kind.NUMBER, Kind.TRUTH]

    def see(self, text: str) -> None:
        """Rule out what it is not; an empty one is missing and says nothing."""
        if text:
            self.kinds = [kind for kind in self.kinds if _fits(text, kind)]

    @property
    def kind(self) -> Kind:
        """Texts where nothing else is left, or nothing was seen."""
        # No text is all three (a truth value is no number), so three are left only where nothing was ruled out.
        return self.kinds[0] if 0 < len(self.kinds) < 3 else Kind.TEXT


def _fits(text: str, kind: Kind) -> bool:
    if kind is Kind.TRUTH:
        return text.lower() in _TRUTH
    return bool((_INTEGER if kind is Kind.INTEGER else _NUMBER).fullmatch(text))


def converted(text: str, kind: Kind) -> Scalar:
    """The value a text stands for, None for an empty one. Raises ``ValueError`` where it is none of that kind."""
    if not text:
        return None
    if kind is Kind.TEXT:
        return text
    if kind is Kind.TRUTH:
        if text.lower() not in _TRUTH:
            raise ValueError(f"{text!r} is neither true nor false")
        return _TRUTH[text.lower()]
    return int(text) if kind is Kind.INTEGER else float(text)
