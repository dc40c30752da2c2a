"""Names of several shards in one text: ``train-{000..041}.tar``, ``{train,val}/a.tar``."""

import re
from itertools import product

MOST = 1 << 20
"""Names that one text may stand for."""
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def expanded(text: str) -> list[str]:
    """Every name it stands for, in order. Raises ``ValueError`` where it is none, or stands for too many."""
    pieces = _BRACES.split(text)
    choices = [_choices(piece) if number % 2 else [piece] for number, piece in enumerate(pieces)]
    count = 1
    for each in choices:
        count *= len(each)
        if count > MOST:
            raise ValueError(f"{text!r} stands for more than {MOST} names")
    return ["".join(parts) for parts in product(*choices)]


def is_list(text: str) -> bool:
    """True if the text stands for several names, or for those that are like it."""
    return any(mark in text for mark in "{*?")


def _choices(inside: str) -> list[str]:
    found = _RANGE.fullmatch(inside)
    if found is None:
        return inside.split(",")
    first, last = (int(each) for each in found.groups())
    if not 0 <= last - first < MOST:
        raise ValueError(f"{{{inside}}} is no range of at most {MOST} numbers")
    return [f"{number:0{len(found.group(1))}}" for number in range(first, last + 1)]
