"""The files that a URL's last part means: one, a brace list, a pattern, or all of a folder."""

import fnmatch
from collections.abc import Sequence

from headrace.store.shards.places.brace_lists import expanded
from headrace.store.shards.shard import Below, DamagedShard, Listed, Look, Steps


def found_files(names: str, usual: str, called: str) -> Steps[list[Listed]]:
    """The files, sorted where they are not listed. ``usual``: the pattern where there are no ``names``; ``called``:
    what they are to people. Raises ``DamagedShard`` where one is not there.
    """
    if names and not any(mark in names for mark in "*?"):
        return (yield from looked_at(expanded(names), called))
    (listed,) = yield [Below()]
    if listed is None:
        example = usual.replace("*", "name-{000..041}")
        raise DamagedShard(f"a web server does not say which files it has: name them, as in {example}")
    pattern = names or usual
    found = [each for each in listed if "/" not in each.object and fnmatch.fnmatchcase(each.object, pattern)]
    if not found:
        deeper = {each.object.rpartition("/")[0] for each in listed if fnmatch.fnmatchcase(each.object, usual)} - {""}
        beside = f", but in its folder {min(deeper)!r}" if deeper else ""
        raise DamagedShard(f"there are no {called}{beside}")
    return found


def looked_at(names: Sequence[str], called: str) -> Steps[list[Listed]]:
    """List these very files."""
    found = yield [Look(name) for name in names]
    missing = [name for name, listed in zip(names, found, strict=True) if listed is None]
    if missing:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise DamagedShard(f"there are no {called} {missing[0]}{more}")
    return list(found)
