"""Look at caches, and empty them."""

import argparse
from typing import Any
from urllib.parse import urlsplit

from headrace.cache.backends import shm
from headrace.cache.division import DivisionFacts, figures
from headrace.cache.overview import clear, overview
from headrace.caching.dividing import told
from headrace.cli import UsageError, add_command, answer
from headrace.cli.screen import screen, table
from headrace.core.errors import CacheError
from headrace.plan.partition import FORMS


def configure(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="command")
    add_command(commands, "ls", "List the caches in the shared memory of this host.", _ls)
    for name, about, act in (
        ("info", "Say what a cache holds, by form, and how and why it is divided.", _info),
        ("clear", "Empty a cache; one in shared memory gives its memory back.", _clear),
    ):
        command = add_command(commands, name, about, act)
        command.add_argument("url", metavar="URL", help="shm://name, redis://[user:password@]host:port or rediss://…")
        command.add_argument("--namespace", default="cache", help="of a cache on a server (cache)")


def _ls(options: argparse.Namespace) -> int:
    found = []
    for name in shm.names():
        try:
            found.append(_described(f"shm://{name}", options))
        except (CacheError, OSError) as error:
            found.append({"url": f"shm://{name}", "error": str(error)})
    answer(options, found, lambda: _show(found))
    return 0


def _info(options: argparse.Namespace) -> int:
    found = _described(_url(options), options)

    def show() -> None:
        _show([found])
        for each in found["divisions"]:
            _show_division(each)

    answer(options, found, show)
    return 0


def _show_division(each: dict[str, Any]) -> None:
    parts = ", ".join(f"{part} % {name}" for part, name in zip(each["split"], FORMS, strict=True) if part)
    print(f"{each['samples']:,} samples, {each['ranks']} ranks: {parts} ({each['why']})")
    measured = [f"{name.replace('_', ' ')} {value:,.4g}" for name, value in each["measured"].items()]
    if measured:
        print(f"  measured: {', '.join(measured)}")


def _clear(options: argparse.Namespace) -> int:
    cleared = clear(_url(options), options.namespace)
    done = {"url": cleared.url, "entries": cleared.entries, "bytes": cleared.bytes, "disk_bytes": cleared.disk}
    disk = f", {bytes_text(cleared.disk)} of them on disk" if cleared.disk else ""
    held = bytes_text(cleared.bytes + cleared.disk)
    told = f"{cleared.url} is empty: {cleared.entries:,} entries, {held}{disk}, given back"
    answer(options, done, lambda: print(told))
    return 0


def _url(options: argparse.Namespace) -> str:
    try:
        urlsplit(options.url)
    except ValueError as error:
        raise UsageError(f"{options.url}: {error}") from None
    return str(options.url)


def _described(url: str, options: argparse.Namespace) -> dict[str, Any]:
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
    division = facts.division
    return {
        "samples": facts.samples,
        "ranks": len(facts.ranks),
        "split": list(division.parts),
        "fixed": division.fixed,
        "why": told(division),
        "measured": dict(figures(facts)),
    }


def _show(found: list[dict[str, Any]]) -> None:
    if not found:
        print("there is no cache in the shared memory of this host")
        return
    made = table("", "cache", "entries", "held", "of", *FORMS, "used by")
    for each in found:
        if "error" in each:
            continue
        forms = [bytes_text(form["bytes"]) if form["entries"] else "" for form in each["forms"].values()]
        limit = "" if each["limit"] is None else bytes_text(each["limit"])
        users = "" if each["processes"] is None else str(each["processes"])
        made.add_row(each["url"], f"{each['entries']:,}", bytes_text(each["bytes"]), limit, *forms[:3], users)
    screen().print(made)
    for each in found:
        if "error" in each:  # below: in the table it would leave no room for the others
            print(f"{each['url']}: {each['error']}")


def bytes_text(count: float) -> str:
    """The number of bytes in words for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.3g} {unit}" if count < 999.5 else f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"
