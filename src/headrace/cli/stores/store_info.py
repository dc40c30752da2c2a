"""Count samples, bytes, classes and metadata columns, without reading payloads."""

import argparse
from contextlib import closing

from headrace.cli import answer
from headrace.cli.screen import screen, table
from headrace.store.base import Info
from headrace.store.locate import open_store
from headrace.trace.analysis.number_format import size

MOST_CLASSES = 30


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="a store, such as sqlite:///samples.db")


def run(options: argparse.Namespace) -> int:
    with closing(open_store(options.url)) as store:
        info = store.info()
    answer(options, _data(info), lambda: _show(info))
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
    out = screen()
    whole = "unknown" if info.payload_bytes is None else size(info.payload_bytes)
    mean = "" if not info.payload_bytes or not info.rows else f", {size(info.payload_bytes / info.rows)} each"
    out.print(f"{info.url}\n  samples   {info.rows}\n  payloads  {whole}{mean}\n  labels    {info.labels.value}")
    columns = ", ".join(f"{name} ({kind.value})" for name, kind in info.columns.items())
    out.print(f"  metadata  {columns or 'none'}")
    if info.classes:
        made = table(f"{len(info.classes)} classes", "class", "samples", "share")
        common = sorted(info.classes, key=lambda name: -info.classes[name])[:MOST_CLASSES]
        for name in (each for each in info.classes if each in set(common)):
            made.add_row(name or "(none)", str(info.classes[name]), f"{info.classes[name] / info.rows:.1%}")
        if len(info.classes) > MOST_CLASSES:
            rest = sum(info.classes.values()) - sum(info.classes[name] for name in common)
            made.add_row(f"{len(info.classes) - MOST_CLASSES} more", str(rest), f"{rest / info.rows:.1%}")
        out.print(made)
