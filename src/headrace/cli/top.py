"""Show the loaders that run on this host, live."""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

from headrace.cli.cache import bytes_text
from headrace.cli.screen import screen
from headrace.engine.trainer.page import CacheFigures, Snapshot, loaders
from headrace.plan.partition import FORMS

COLUMNS = ("process", "loader", "epoch", "samples/s", "waits", "lanes", "ready", "slow", "over", "lost")
"""``over``: from which cost on a sample is slow; ``lost``: samples failed + workers died. The JSON has more."""
ELSEWHERE = ("process", "loader", "lanes there", "samples", "made here", "nodes")
"""``made here``: of the samples that were asked for there."""
CACHES = ("process", "loader", "hits", *FORMS, "misses", "held", "split")
"""``hits``: between two looks; ``held``: for all jobs; ``split``: of the room, in percent."""
LONGEST = 11
"""Letters of a dataset's name that are shown."""


Look = Mapping[tuple[int, int], Snapshot]
"""What was seen at one moment, by process and loader."""


@dataclass(frozen=True, slots=True)
class LoaderRates:
    """Rates of a loader between two looks."""

    samples: float
    """Per second."""
    batches: float
    waiting: float
    """Share of the time that the trainer waited."""


def rates(before: Snapshot | None, now: Snapshot, seconds: float) -> LoaderRates:
    """The rates between two looks; with one look, since the loader began."""
    if before is None:
        seconds = (now.updated - now.began) / 1e9
        samples, batches, waited = now.samples, now.batches, now.wait_ns
    else:
        samples, batches = now.samples - before.samples, now.batches - before.batches
        waited = now.wait_ns - before.wait_ns
    if seconds <= 0:
        return LoaderRates(0.0, 0.0, 0.0)
    return LoaderRates(samples / seconds, batches / seconds, min(1.0, waited / 1e9 / seconds))


def hit_share(before: CacheFigures | None, now: CacheFigures) -> float | None:
    """The share of samples served between two looks that the cache had; None where none were served."""
    served = now.served - (before.served if before else 0)
    missed = now.misses - (before.misses if before else 0)
    return 1 - missed / served if served > 0 else None


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--interval", type=_positive, default=1.0, metavar="SECONDS", help="between two looks (1)")
    parser.add_argument("--once", action="store_true", help="look twice, print, end")
    parser.add_argument("--process", type=int, metavar="PID", help="only the loaders of this process")


def run(options: argparse.Namespace) -> int:
    """Show the tables until interrupted."""
    console, before = screen(), _look(options.process)
    prints = options.once or options.json
    try:
        with (
            nullcontext() if prints else Live(_tables(before, before, 0.0), console=console, auto_refresh=False) as live
        ):
            while True:
                time.sleep(options.interval)
                now = _look(options.process)
                if live is None:
                    _print(console, before, now, options)
                else:
                    live.update(_tables(before, now, options.interval), refresh=True)
                if options.once:
                    return 0
                before = now
    except KeyboardInterrupt:
        return 0


def _look(process: int | None) -> Look:
    return {(each.process, each.number): each for each in loaders() if process in {None, each.process}}


def _print(console: Console, before: Look, now: Look, options: argparse.Namespace) -> None:
    if not options.json:
        console.print(_tables(before, now, options.interval))
        return
    for key, each in now.items():
        figures = rates(before.get(key), each, options.interval)
        known = asdict(each) | {"samples_per_second": figures.samples, "batches_per_second": figures.batches}
        print(json.dumps(known | {"waiting_share": figures.waiting}), flush=True)


def _tables(before: Look, now: Look, seconds: float) -> Group:
    tables: list[RenderableType] = [_table(before, now, seconds)]
    for more in (_caches(before, now), _elsewhere(now)):
        if more is not None:
            tables += ["", more]
    return Group(*tables)


def _elsewhere(now: Look) -> Table | None:
    """A table of the loaders with ``remote=``; None where none has it."""
    table = _empty(ELSEWHERE)
    for key in sorted(now):
        each, use = now[key], now[key].elsewhere
        if use is None:
            continue
        nodes = ", ".join(f"{node}: {_count(count)}" for node, count in use.nodes)
        counts = (str(use.lanes), _count(use.samples), _count(use.given_back), nodes)
        table.add_row(str(each.process), _called(each), *counts)
    return table if table.row_count else None


def _caches(before: Look, now: Look) -> Table | None:
    """A table of the loaders that have a cache; None where none has."""
    table = _empty(CACHES)
    for key in sorted(now):
        each, use = now[key], now[key].cache
        if use is None:
            continue
        last = before.get(key)
        share = hit_share(None if last is None or last is each else last.cache, use)
        counts = (use.encoded, use.decoded, use.augmented, use.misses)
        table.add_row(
            str(each.process),
            _called(each),
            "" if share is None else f"{share:.0%}",
            *map(_count, counts),
            bytes_text(use.bytes),
            "-".join(map(str, use.split)),
        )
    return table if table.row_count else None


def _table(before: Look, now: Look, seconds: float) -> Table:
    table = _empty(COLUMNS, None if now else "no loader runs here that this user may see")
    for key in sorted(now):
        table.add_row(*_row(now[key], rates(before.get(key) if seconds else None, now[key], seconds)))
    return table


def _empty(columns: Sequence[str], title: str | None = None) -> Table:
    """An empty table for 80 columns, so that no figure is cut."""
    table = Table(box=None, padding=(0, 1, 0, 0), title=title)
    for column in columns:
        table.add_column(column, justify="left" if column == "loader" else "right", no_wrap=True)
    return table


def _called(each: Snapshot) -> str:
    name = each.name if len(each.name) <= LONGEST else f"{each.name[: LONGEST - 1]}…"
    return f"{name} {each.number}"


def _count(value: int) -> str:
    """A number of at most six letters."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 100 * size or (unit != "k" and value >= size):
            return f"{value / size:.3g}{unit}"
    return f"{value:,}"


def _row(each: Snapshot, figures: LoaderRates) -> Sequence[str]:
    idle = (time.monotonic_ns() - each.updated) / 1e9
    resting = "between" if each.finished else f"idle {idle:.0f} s" if idle > 5 else ""
    return (
        str(each.process),
        _called(each),
        str(each.epoch),
        resting or f"{figures.samples:,.0f}",
        f"{figures.waiting:.0%}",
        f"{each.lanes}/{each.workers}" if each.workers else "here",
        f"{each.ready}/{each.outstanding}",
        _count(each.slow),
        f"{each.threshold_ns / 1e6:,.3g} ms" if each.threshold_ns else "",
        f"{each.skipped}+{each.restarts}",
    )


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.01 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"between 0.01 and 3600 seconds, not {text}")
    return value
