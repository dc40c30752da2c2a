"""Look at caches, and empty them."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from headrace.cli import UsageError
from headrace.core.errors import CacheError

if TYPE_CHECKING:
    from headrace.cache.division import DivisionFacts

SUMMARIES = {
    "ls": "List the caches in the shared memory of this host",
    "info": "Say what a cache holds, by form, and how and why it is divided",
    "clear": "Empty a cache; one in shared memory gives its memory back",
}
FORMS = {1: "encoded", 2: "decoded", 3: "augmented"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the commands, each with ``--json`` behind its own name too."""
    commands = parser.add_subparsers(dest="cache_command", required=True, metavar="command")
    for name, summary in SUMMARIES.items():
        command = commands.add_parser(name, help=summary, description=f"{summary}.")
        command.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print the result as JSON")
        if name != "ls":
            command.add_argument(
                "url", metavar="URL", help="shm://name, redis://[user:password@]host:port or rediss://…"
            )
            command.add_argument("--namespace", default="cache", help="of a cache on a server (cache)")


def run(options: argparse.Namespace) -> int:
    """Run one of them; a cache that cannot be had is the user's to mend."""
    act = {"ls": _ls, "info": _info, "clear": _clear}[options.cache_command]
    try:
        return act(options)
    except (CacheError, ValueError) as error:
        raise UsageError(str(error)) from error


def _ls(options: argparse.Namespace) -> int:
    from headrace.cache import shm

    found = []
    for name in shm.names():
        try:
            found.append(_described(f"shm://{name}", options))
        except (CacheError, OSError) as error:
            found.append({"url": f"shm://{name}", "error": str(error)})
    if options.json:
        print(json.dumps(found))
    else:
        _table(found)
    return 0


def _info(options: argparse.Namespace) -> int:
    found = _described(options.url, options)
    if options.json:
        print(json.dumps(found))
    else:
        _table([found])
        for each in found["divisions"]:
            _show_division(each)
    return 0


def _show_division(each: dict[str, Any]) -> None:
    from headrace.plan.partition import FORMS as NAMES

    parts = ", ".join(f"{part} % {name}" for part, name in zip(each["split"], NAMES, strict=True) if part)
    print(f"{each['samples']:,} samples, {each['ranks']} ranks: {parts} ({each['why']})")
    measured = [f"{name.replace('_', ' ')} {value:,.4g}" for name, value in each["measured"].items()]
    if measured:
        print(f"  measured: {', '.join(measured)}")


def _clear(options: argparse.Namespace) -> int:
    from headrace.cache.overview import clear

    cleared = clear(options.url, options.namespace)
    done = {"url": cleared.url, "entries": cleared.entries, "bytes": cleared.bytes, "disk_bytes": cleared.disk}
    if options.json:
        print(json.dumps(done))
    else:
        disk = f", {bytes_text(cleared.disk)} of them on disk" if cleared.disk else ""
        held = bytes_text(cleared.bytes + cleared.disk)
        print(f"{cleared.url} is empty: {cleared.entries:,} entries, {held}{disk}, given back")
    return 0


def _described(url: str, options: argparse.Namespace) -> dict[str, Any]:
    from headrace.cache.overview import overview

    about = overview(url, getattr(options, "namespace", "cache"))
    return {
        "url": about.url,
        "entries": sum(entries for entries, _ in about.forms.values()),
        "bytes": sum(size for _, size in about.forms.values()),
        "limit": about.limit,
        "processes": about.ranks,
        "forms": {name: {"entries": entries, "bytes": size} for name, (entries, size) in about.forms.items()},
        "divisions": [_division(facts) for facts in about.facts],
    }


def _division(facts: DivisionFacts) -> dict[str, Any]:
    from headrace.cache.division import figures
    from headrace.plan.splitting import told

    division = facts.division
    return {
        "samples": facts.samples,
        "ranks": len(facts.ranks),
        "split": list(division.parts),
        "fixed": division.fixed,
        "why": told(division),
        "measured": dict(figures(facts)),
    }


def _table(found: list[dict[str, Any]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from headrace.cli.screen import screen

    if not found:
        print("there is no cache in the shared memory of this host")
        return
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("cache", "entries", "held", "of", *FORMS.values(), "used by"):
        table.add_column(heading, justify="left" if heading == "cache" else "right", no_wrap=True)
    for each in found:
        if "error" in each:
            continue
        forms = [bytes_text(form["bytes"]) if form["entries"] else "" for form in each["forms"].values()]
        limit = "" if each["limit"] is None else bytes_text(each["limit"])
        users = "" if each["processes"] is None else str(each["processes"])
        table.add_row(each["url"], f"{each['entries']:,}", bytes_text(each["bytes"]), limit, *forms[:3], users)
    screen().print(table)
    for each in found:
        if "error" in each:  # below: in the table it would leave no room for the others
            print(f"{each['url']}: {each['error']}")


def bytes_text(count: float) -> str:
    """For people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"
