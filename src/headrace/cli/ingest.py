"""Put samples into a store: from folders, manifests, tars, datasets.

SOURCE is a folder of class folders, a CSV or Parquet manifest (a column of paths, perhaps `label`, all others are
metadata), WebDataset tars, torchvision:NAME?root=..., module:factory, a dataset of Hugging Face on disk, or another
store. Run it again after an interruption and it goes on; what is stored is not stored twice.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.cli import UsageError, answer, listed
from headrace.cli.ending import orderly
from headrace.cli.screen import bar, screen
from headrace.store.base import Kind
from headrace.store.ingest.ingesting import Working, ingest
from headrace.store.ingest.outcome import IngestTally, Outcome, Progress
from headrace.store.ingest.source_options import ReadOptions
from headrace.store.pictures import Check, Encoding
from headrace.store.wording import one_line

MOST_FAILURES = 20
"""Lines of the report; `--json` has all of them."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="what to read")
    parser.add_argument("url", metavar="URL", help="the store to write to, such as sqlite:///samples.db")
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="processes (0: in this one)")
    parser.add_argument("--spark", metavar="MASTER", help="let a Spark cluster do it: spark://host:7077, local[4]")
    parser.add_argument("--spark-conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark's")
    parser.add_argument("--resize", metavar="N|WxH", help="pictures to a shorter side of N, or to W×H pixels")
    parser.add_argument("--encode", metavar="FORMAT", help="pictures as jpeg, png, webp, tiff or bmp")
    parser.add_argument("--quality", type=int, default=90, metavar="Q", help="of jpeg and webp, 1 to 100 (90)")
    parser.add_argument("--label-column", metavar="NAME", help="the column of the labels (label)")
    parser.add_argument(
        "--label-files", metavar="NAME", help="the column with paths of files that are the labels: masks"
    )
    parser.add_argument("--key", metavar="NAME", help="the column of the keys (made of content and place)")
    parser.add_argument(
        "--path-column",
        metavar="NAME",
        help="the column of a manifest with the files' paths (path, filename, image ...)",
    )
    parser.add_argument("--columns", metavar="A,B,...", help="the metadata to keep (all)")
    parser.add_argument("--types", metavar="NAME=KIND,...", help="columns of a CSV: integer, number, text or truth")
    parser.add_argument("--root", metavar="DIR", help="where the paths of a manifest begin (its own folder)")
    parser.add_argument("--classes", metavar="A,B,...", help="names of classes in the order of their numbers (sorted)")
    parser.add_argument("--payload", metavar="NAME", help="the column that is the sample itself")
    parser.add_argument("--extensions", metavar="E,...", help="only such files of a folder: jpg,png")
    parser.add_argument(
        "--rewrite", action="store_true", help="write again what is stored; of two with one key the last"
    )
    parser.add_argument(
        "--check",
        choices=["structure", "full", "none"],
        default="structure",
        help="pictures: header and structure (the default), decode every one, or take files for what they are called",
    )
    parser.add_argument(
        "--allow-outside", action="store_true", help="paths of a manifest may lead out of its folder, or of --root"
    )


def run(options: argparse.Namespace) -> int:
    """Ingest with a bar on the terminal; exit code 1 where items failed, or differ from what is stored."""
    encoding = Encoding(_size(options.resize), _format(options.encode), options.quality)
    settings = dict(_pairs(options.spark_conf, "--spark-conf"))
    if settings and options.spark is None:
        raise UsageError("--spark-conf needs --spark")
    working = Working(options.workers, options.spark, settings, options.rewrite)
    with orderly(), _bar() as progress:
        outcome = ingest(options.source, options.url, _reading(options), encoding, working, progress)
    answer(options, outcome.data(), lambda: _show(outcome))
    return 0 if outcome.whole else 1


def _reading(options: argparse.Namespace) -> ReadOptions:
    types = {}
    for name, kind in _pairs(listed(options.types), "--types"):
        if kind not in {each.value for each in Kind}:
            raise UsageError(f"--types: {kind!r} is not integer, number, text or truth")
        types[name] = Kind(kind)
    return ReadOptions(
        label=options.label_column,
        label_files=options.label_files,
        key=options.key,
        path_column=options.path_column,
        columns=tuple(listed(options.columns)) if options.columns is not None else None,
        types=types,
        root=options.root,
        classes=tuple(listed(options.classes)),
        payload=options.payload,
        extensions=tuple(listed(options.extensions)),
        check=Check(options.check),
        allow_outside=options.allow_outside,
    )


def _pairs(parts: list[str], option: str) -> list[tuple[str, str]]:
    for part in parts:
        if "=" not in part:
            raise UsageError(f"{option}: {part!r} is not NAME=VALUE")
    return [(name, value) for name, _, value in (part.partition("=") for part in parts)]


def _size(text: str | None) -> int | tuple[int, int] | None:
    if text is None:
        return None
    sides = text.lower().replace("×", "x").split("x")
    if len(sides) > 2 or not all(side.isdecimal() for side in sides):
        raise UsageError(f"--resize: {text!r} is neither a number of pixels nor WIDTHxHEIGHT")
    return int(sides[0]) if len(sides) == 1 else (int(sides[0]), int(sides[1]))


def _format(text: str | None) -> str | None:
    names = {"jpg": "jpeg", "tif": "tiff"}
    return None if text is None else names.get(text.lower(), text.lower())


@contextmanager
def _bar() -> Iterator[Progress | None]:
    """A progress bar on a terminal, with how far it is and how fast; nothing where nobody looks."""
    with bar() as shown:
        if shown is None:
            yield None
            return
        task = shown.add_task("listing", total=None)

        def progress(tally: IngestTally, total: int | None) -> None:
            speed = shown.tasks[0].speed
            rate = f" {speed:.0f}/s" if speed else ""
            failed = f" {len(tally.failures)} failed" if tally.failures else ""
            shown.update(task, completed=tally.items, total=total, description=f"ingesting{rate}{failed}")

        yield progress


def _show(outcome: Outcome) -> None:
    out = screen()
    rate = (outcome.written + outcome.present) / max(outcome.seconds, 1e-9)
    out.print(
        f"{outcome.store}: {outcome.written} samples written ({outcome.payload_bytes / 1e6:.1f} MB), "
        f"{outcome.present} were there already, {len(outcome.failures)} failed"
        f"{f', {outcome.tally.differ} differ' if outcome.tally.differ else ''}; "
        f"{outcome.seconds:.1f} s, {rate:.0f} samples/s"
    )
    if outcome.tally.derived and outcome.written:
        out.print(
            "  keys are made of content and place: a file that changes is a new sample, unless --key names a column"
        )
    for concern in outcome.concerns():
        out.print(f"  {one_line(concern)}", style="yellow")
    for failure in outcome.failures[:MOST_FAILURES]:
        out.print(f"  {one_line(failure.item)}: {one_line(failure.error)}", style="red")
    if len(outcome.failures) > MOST_FAILURES:
        out.print(f"  and {len(outcome.failures) - MOST_FAILURES} more; --json lists them all", style="red")
