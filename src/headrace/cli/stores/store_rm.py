"""Remove rows from a store: by their keys, or by a condition on their metadata.

Asks before it does so; --dry-run only lists what would be removed.
"""

import argparse
import sys
from collections.abc import Collection, Sequence
from contextlib import closing
from pathlib import Path

from headrace.cli import Parser, UsageError, answer
from headrace.cli.ending import orderly
from headrace.cli.screen import counting
from headrace.store.base import Store
from headrace.store.catalogues.looking import matching
from headrace.store.catalogues.origin import RemovingStore
from headrace.store.locate import open_store
from headrace.store.wording import one_line

MOST_KEYS = 20
"""Lines of what would be removed; `--json` has all of them."""


def configure(parser: Parser) -> None:
    parser.mixed = True
    parser.add_argument("url", metavar="URL", help="a store, such as sqlite:///samples.db")
    parser.add_argument("keys", nargs="*", metavar="KEY", help="rows to remove")
    parser.add_argument("--keys-from", metavar="FILE", help="a file with a key in each line; - for the standard input")
    parser.add_argument("--where", metavar="CONDITION", help="rows like \"patient = 'P7' OR site IS NULL\"")
    asking(parser)


def asking(parser: argparse.ArgumentParser) -> None:
    """The options of every command that removes rows."""
    parser.add_argument("--dry-run", action="store_true", help="only list what would be removed")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(options: argparse.Namespace) -> int:
    """Choose, ask, remove, say; exit code 1 where a key was not there."""
    given = [*options.keys, *_listed(options.keys_from)]
    if bool(given) == (options.where is not None):
        raise UsageError("which rows? give keys, or --keys-from, or --where")
    with closing(open_store(options.url)) as store:
        there = set(store.keys())
        wanted = matching(store, options.where) if options.where is not None else list(dict.fromkeys(given))
        missing = [key for key in wanted if key not in there]
        keys = [key for key in wanted if key in there]
        removed = removal(store, keys, f"{len(keys)} of {len(there)} rows", options)
    done = {"store": store.name, "rows": len(there), "chosen": len(keys), "removed": removed, "missing": missing}
    lines = [told(store.name, len(keys), removed, options)]
    if options.dry_run:
        done["keys"] = keys
        lines += [f"  {one_line(key)}" for key in keys[:MOST_KEYS]]
        lines += [f"  and {len(keys) - MOST_KEYS} more; --json lists them all"] if len(keys) > MOST_KEYS else []
    lines += [f"  there is no row with the key {key!r}" for key in missing[:20]]
    answer(options, done, lambda: print(*lines, sep="\n"))
    return 1 if missing else 0


def told(store: str, chosen_rows: int, removed: int, options: argparse.Namespace) -> str:
    """A line on what was done."""
    would = options.dry_run and chosen_rows
    return f"{store}: {chosen_rows} rows would be removed" if would else f"{store}: {removed} rows removed"


def removal(store: Store, keys: Collection[str], what: str, options: argparse.Namespace) -> int:
    """Removes them if that is what the user wants; how many."""
    if not isinstance(store, RemovingStore):
        scheme = store.name.partition(":")[0]
        raise UsageError(f"{store.name}: rows of a store with the scheme {scheme}:// cannot be removed from here")
    if options.dry_run or not keys:
        return 0
    _ask(f"remove {what} from {store.name}", options)
    store.close()  # a reader would keep SQLite's log from being put away
    removed = 0
    with orderly(), counting("removing", len(keys)) as progress, closing(store.remove(keys)) as parts:
        for number in parts:
            removed += number
            progress(removed)
    return removed


def _ask(question: str, options: argparse.Namespace) -> None:
    if options.yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question}? There is nobody to ask: --yes, or --dry-run to see which")
    print(f"{question}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise UsageError("nothing was removed")


def _listed(name: str | None) -> Sequence[str]:
    if name is None:
        return []
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--keys-from: {name} cannot be read: {error}") from None
    # Not splitlines(), which also parts a key at the other separators of Unicode: half of it may be another row's.
    return [line for line in text.split("\n") if line]
