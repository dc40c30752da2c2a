"""Show one row of a store: its label, metadata and payload. A picture is drawn in a terminal; -o writes a file.

Texts are printed, arrays described.
"""

import argparse
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.text import Text

from headrace.cli import UsageError, answer
from headrace.cli.screen import screen
from headrace.cli.stores.store_head import told_label
from headrace.store import pictures
from headrace.store.base import Row
from headrace.store.catalogues.looking import form, shown
from headrace.store.contents import Form, form_of
from headrace.store.locate import open_store
from headrace.store.wording import one_line
from headrace.trace.analysis.number_format import size

LONGEST_TEXT = 2000
WIDEST, HIGHEST = 80, 48
"""Columns and half lines of a picture in the terminal."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="a store, such as sqlite:///samples.db")
    parser.add_argument("key", metavar="KEY", help="which row; headrace store ls has the keys")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the payload there; - for the standard output")
    parser.add_argument("--label", action="store_true", help="the label's file in place of the payload: a mask, say")


def run(options: argparse.Namespace) -> int:
    """Read the row, print or write it."""
    with closing(open_store(options.url)) as store:
        [(facts, row)] = shown(store, [options.key])
    content = _content(options, row)
    told = {**facts, "label": facts.get("label", told_label(row.label))}
    told |= {"bytes": len(row.payload), "form": form(row.payload)}
    if options.output == "-":
        sys.stdout.buffer.write(content)
        return 0
    if options.output is not None:
        target = Path(options.output)
        if target.exists():
            raise UsageError(f"{target}: is there already")
        target.write_bytes(content)
        told["file"] = str(target)
    answer(options, {"store": store.name, **told}, lambda: _show(told, content))
    return 0


def _content(options: argparse.Namespace, row: Row) -> bytes:
    if not options.label:
        return bytes(row.payload)
    if not isinstance(row.label, (bytes, memoryview)):
        raise UsageError(f"--label: the label of {options.key!r} is no file, it is {row.label!r}")
    return bytes(row.label)


def _show(told: dict[str, Any], content: bytes) -> None:
    out = screen()
    width = max(map(len, told))
    for name, value in told.items():
        if value is not None:
            out.print(f"{name:{width}}  {one_line(size(value) if name == 'bytes' else str(value))}")
    if "file" in told:
        return
    if form_of(content) is Form.PICTURE and out.is_terminal:
        try:
            out.print(_drawn(content, min(WIDEST, out.width)))
        except Exception as error:  # noqa: BLE001  (a picture may be broken in any way, and is shown as far as it goes)
            out.print(f"the picture cannot be drawn: {one_line(str(error))}", style="yellow")
    elif form(content) == "text":
        text = content.decode(errors="replace")
        out.print("".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text[:LONGEST_TEXT]))
    elif form_of(content) is Form.ARRAY:
        array = pictures.array(content)
        out.print(f"an array of {array.dtype}, {' x '.join(map(str, array.shape)) or 'one number'}")


def _drawn(content: bytes, width: int) -> Text:
    """A picture of half blocks: two pixels above each other in each letter."""
    pixels = pictures.small(content, width, HIGHEST)
    drawn = Text()
    for upper, lower in zip(pixels[::2], pixels[1::2], strict=True):
        for above, below in zip(upper.tolist(), lower.tolist(), strict=True):
            drawn.append("▀", f"rgb({','.join(map(str, above))}) on rgb({','.join(map(str, below))})")
        drawn.append("\n")
    return drawn
