"""Count samples, bytes, classes and metadata columns, without reading payloads."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.store.base import Info

MOST_CLASSES = 30


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("url", metavar="URL", help="a store, such as sqlite:///samples.db")


def run(options: argparse.Namespace) -> int:
    """Ask the store, print."""
    from headrace.store.locate import open_store

    store = open_store(options.url)
    try:
        info = store.info()
    finally:
        store.close()
    if options.json:
        json.dump(_data(info), sys.stdout, indent=1)
        print()
    else:
        _show(info)
    return 0


def _data(info: Info) -> dict[str, object]:
    return {
        "store": info.url,
        "samples": info.rows,
        "payload_bytes": info.payload_bytes,
        "labels": info.labels.value,
        "classes": dict(info.classes),
        "columns": {name: kind.value for name, kind in info.columns.items()},
    }


def _show(info: Info) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from headrace.cli.screen import screen

    out = screen()
    size = "unknown" if info.payload_bytes is None else f"{_bytes(info.payload_bytes)}"
    mean = "" if not info.payload_bytes or not info.rows else f", {_bytes(info.payload_bytes / info.rows)} each"
    out.print(f"{info.url}\n  samples   {info.rows}\n  payloads  {size}{mean}\n  labels    {info.labels.value}")
    columns = ", ".join(f"{name} ({kind.value})" for name, kind in info.columns.items())
    out.print(f"  metadata  {columns or 'none'}")
    if info.classes:
        table = Table(title=f"{len(info.classes)} classes", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("class", no_wrap=True)
        table.add_column("samples", justify="right")
        table.add_column("share", justify="right")
        common = sorted(info.classes, key=lambda name: -info.classes[name])[:MOST_CLASSES]
        for name in (each for each in info.classes if each in set(common)):
            table.add_row(name or "(none)", str(info.classes[name]), f"{info.classes[name] / info.rows:.1%}")
        if len(info.classes) > MOST_CLASSES:
            rest = sum(info.classes.values()) - sum(info.classes[name] for name in common)
            table.add_row(f"{len(info.classes) - MOST_CLASSES} more", str(rest), f"{rest / info.rows:.1%}")
        out.print(table)


def _bytes(number: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if number < 1000 or unit == "TB":
            return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= 1000
    raise AssertionError
