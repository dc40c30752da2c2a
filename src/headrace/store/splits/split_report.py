"""Report on a division: rows, groups and classes by part, wanted and got. Pure."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.store.splits.classes import Coded
from headrace.store.splits.frame import Ints


def counted(
    parts: Ints,
    fold: Ints | None,
    classes: Coded,
    groups: Coded | None,
    fractions: Mapping[str, float],
    folds: int,
) -> dict[str, Any]:
    """JSON: by part, and by fold, the number of rows, of groups and of rows of each class."""
    found: dict[str, Any] = {
        "splits": {
            name: {"wanted": share, **_of(parts == part, classes, groups)}
            for part, (name, share) in enumerate(fractions.items())
        }
    }
    if fold is not None:
        found["folds"] = [_of(fold == number, classes, groups) for number in range(folds)]
    found["total"] = _of(np.ones(len(parts), np.bool_), classes, groups)
    return found


def _of(rows: Any, classes: Coded, groups: Coded | None) -> dict[str, Any]:
    found: dict[str, Any] = {"rows": int(rows.sum())}
    if groups is not None:
        sizes = np.bincount(groups.codes[rows], minlength=len(groups.names))
        found["groups"] = int((sizes > 0).sum())
        found["largest_group"] = int(sizes.max(initial=0))
    if classes.names != ("",):
        counts = np.bincount(classes.codes[rows], minlength=len(classes.names))
        found["classes"] = dict(zip(classes.names, counts.tolist(), strict=True))
    return found


def empty(counts: Mapping[str, Any]) -> list[str]:
    """The parts that have no rows, and the folds, in words."""
    few = "too few groups" if "groups" in counts["total"] else "too few rows"
    found = [
        f"{name} is empty: there are {few} for its share" for name, part in counts["splits"].items() if not part["rows"]
    ]
    folds = counts.get("folds", [])
    without = [number for number, fold in enumerate(folds) if not fold["rows"]]
    if without:
        shown = ", ".join(map(str, without[:5])) + (", ..." if len(without) > 5 else "")
        found.append(f"{len(without)} of {len(folds)} folds are empty ({shown}): there are {few} for so many")
    return found


def concerns(facts: Mapping[str, Any]) -> list[str]:
    """Warnings that a user should know before training on the division, in words."""
    counts = facts["counts"]
    found = empty(counts)
    whole = sum(part["rows"] for part in counts["splits"].values())
    total_share = sum(part["wanted"] for part in counts["splits"].values())
    if total_share < 1 - 1e-9:
        found.append(f"fractions add up to {total_share:g}: what they leave of 1 is in no split")
    for name, part in counts["splits"].items():
        if not part["rows"]:
            continue
        share = part["wanted"] / total_share
        if facts["balance"] == "original" and abs(part["rows"] - share * whole) > max(0.02 * whole, 1):
            why = f"; the largest group has {counts['total']['largest_group']} rows" if "groups" in part else ""
            found.append(f"{name} has {part['rows'] / whole:.1%} of the rows instead of {share:.1%}{why}")
        absent = [label for label, rows in part.get("classes", {}).items() if not rows]
        absent = [label for label in absent if counts["total"]["classes"][label]]
        if absent:
            more = f" and {len(absent) - 5} more" if len(absent) > 5 else ""
            found.append(f"{name} has no row of class {', '.join(absent[:5])}{more}")
    return found
