"""Which part of an experiment is run, and who is told how far it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass


class LeftOut(Exception):
    """What an experiment needs is not here; the message says what that is."""


@dataclass(frozen=True)
class Scope:
    """Some cases by name, or all."""

    quick: bool
    only: Collection[str] = ()
    say: Callable[[str], None] = lambda _: None
    """Called between runs."""

    def chosen(self, names: Collection[str]) -> list[str]:
        """The cases to run, in their own order."""
        return [name for name in names if not self.only or name in self.only]

    @property
    def part(self) -> str:
        """What a report of these cases is called, beside its experiment's name; nothing where all were asked for."""
        return "-".join(re.sub(r"\W+", "_", name).strip("_") for name in sorted(self.only))
