"""Look at caches, and empty them."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from headrace.cli import UsageError
from headrace.core.errors import CacheError

if TYPE_CHECKING:
    from headrace.cache.division import Facts
    from headrace.cache.tier import Tier

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
            command.add_argument("url", help="shm://name, redis://[user:password@]host:port or rediss://…")
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
        except CacheError as error:
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
    url = options.url
    if url.startswith("shm://"):
        from headrace.cache import shm
        from headrace.cache.ledger_files import ledgers

        name = url.removeprefix("shm://")
        size = shm.size_of(name)
        shm.remove(name)
        for path in ledgers(name):
            path.unlink(missing_ok=True)
        done = {"url": url, "bytes": size}
    else:
        tier = _opened(url, options)
        try:
            done = {"url": _shown(tier, url), "bytes": tier.usage().bytes}
            tier.clear()
        finally:
            tier.close()
    if options.json:
        print(json.dumps(done))
    else:
        print(f"{done['url']} is empty: {bytes_text(done['bytes'])} given back")
    return 0


def _opened(url: str, options: argparse.Namespace) -> Tier:
    from headrace.cache import shm
    from headrace.cache.options import Cache, open_tier

    namespace = getattr(options, "namespace", "cache")
    size = shm.size_of(url.removeprefix("shm://")) if url.startswith("shm://") else 1 << 62
    return open_tier(Cache(url, size, namespace=namespace))


def _shown(tier: Tier, url: str) -> str:
    """The URL without what is secret in it."""
    return str(getattr(tier, "where", url))


def _described(url: str, options: argparse.Namespace) -> dict[str, Any]:
    tier = _opened(url, options)
    try:
        usage, local = tier.usage(), url.startswith("shm://")
        forms = {name: {"entries": 0, "bytes": 0} for name in FORMS.values()}
        for key, size in tier.listed():
            form = forms.setdefault(FORMS.get(key.form, str(key.form)), {"entries": 0, "bytes": 0})
            form["entries"] += 1
            form["bytes"] += size
        found = {
            "url": _shown(tier, url),
            "entries": usage.entries,
            "bytes": usage.bytes,
            "limit": usage.limit if local else None,
            "processes": tier.readers() - 1 if local else None,  # type: ignore[attr-defined]  # that kind has it
            "forms": forms,
            "divisions": [_division(facts) for facts in _facts(tier, url)],
        }
    finally:
        tier.close()
    return found


def _facts(tier: Tier, url: str) -> list[Facts]:
    """Of each dataset."""
    if url.startswith("shm://"):
        from headrace.cache.ledger_files import described

        return described(url.removeprefix("shm://"))
    from headrace.cache import redis_book

    return redis_book.described(tier.server)  # type: ignore[attr-defined]  # of that URL it is one on a server


def _division(facts: Facts) -> dict[str, Any]:
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
