"""See it work: store, splits, cache and trace, with torch's DataLoader and with headrace's.

Makes a small set of JPEG files of uneven size, ingests it into a store, divides it by patient, and trains a small model
for three epochs with each loader. Every sample is checked to come once. Only what was measured is printed.
"""

from __future__ import annotations

import argparse
import io
import os
import tempfile
from collections.abc import Callable
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli import UsageError, answer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console
    from rich.progress import Progress

    from headrace.cli.demos.contest import Contest, Contestant

MINIMA = {"images": 32, "workers": 1, "batch_size": 1, "epochs": 1}
SIDE = 64


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--images", type=int, default=800, metavar="N", help="images in the set (800)")
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="worker processes (4)")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="samples in a batch (32)")
    parser.add_argument("--epochs", type=int, default=3, metavar="N", help="epochs with each loader (3)")
    parser.add_argument("--output", default="headrace-demo", metavar="FOLDER", help="for the trace and the report")
    parser.add_argument("--cassandra", metavar="URL", help="store the samples there: cassandra://host/keyspace/table")
    parser.add_argument("--redis", metavar="URL", help="cache them there: redis://host:port")
    parser.add_argument("--device", metavar="NAME", help="train there, cuda say, which also decodes and augments")


def run(options: argparse.Namespace) -> int:
    """Make the images, run both loaders, print the table or JSON."""
    for name, least in MINIMA.items():
        if getattr(options, name) < least:
            raise UsageError(f"--{name.replace('_', '-')} must be at least {least}")
    from rich.console import Console

    from headrace.cli.demos import demo_pictures
    from headrace.core.errors import HeadraceError

    demo_pictures.require_pillow()
    output = Path(options.output)
    try:
        output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder, _progress(Console(stderr=True)) as bar:
            outcome = _outcome(options, Path(folder), output, bar)
    except OSError as error:
        raise UsageError(f"--output {output}: {error.strerror}") from error
    except HeadraceError as error:
        raise UsageError(str(error)) from error
    answer(options, outcome, lambda: _show(outcome))
    return 0 if all(entry["complete"] for entry in outcome["loaders"]) else 1


def _outcome(options: argparse.Namespace, folder: Path, output: Path, bar: Progress) -> dict[str, Any]:
    import torch

    from headrace.cli.demos.contest import Contest
    from headrace.store.locate import open_store

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # with both loaders alike, or training would take the cores that workers are measured on
    try:
        with (
            _cache(options) as cache,
            _store(options, folder) as url,
            _dataset(options, url, folder, bar) as dataset,
        ):
            contest = Contest(dataset, options.batch_size, options.device)
            bar.add_task("measuring samples alone", total=1, completed=1)
            ideal, reason = contest.bound()
            entries = _entries(options, contest, cache, output, bar)
    finally:
        torch.set_num_threads(threads)
    return {
        "samples": len(dataset),
        "workers": options.workers,
        "ideal": ideal,
        "ideal_reason": reason,
        "loaders": [entry.data() for entry in entries],
        "files": _looked_at(output),
        "left": None if options.cassandra is None else f"{open_store(options.cassandra).name}, without rows",
    }


@contextmanager
def _store(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    """The URL for the samples. The demo's rows are removed from a server afterwards; a table with others is
    refused.
    """
    from headrace.core.errors import StoreRefused
    from headrace.store.catalogues.origin import RemovingStore
    from headrace.store.locate import open_store

    if options.cassandra is None:
        yield f"sqlite:///{folder}/demo.db"
        return
    store = open_store(options.cassandra)
    if not isinstance(store, RemovingStore):
        raise UsageError(f"--cassandra {store.name}: no rows can be written there, or removed")

    def keys() -> Sequence[str]:
        try:
            return store.keys()
        except StoreRefused:  # there is no table yet; whatever else is refused, ingesting will say
            return ()
        finally:
            store.close()

    if found := len(keys()):
        raise UsageError(f"--cassandra {store.name}: it has {found} rows, and the demo wants a table of its own")
    try:
        yield options.cassandra
    finally:
        mine = keys()
        for _ in store.remove(mine) if mine else ():
            pass


def _dataset(options: argparse.Namespace, url: str, folder: Path, bar: Progress) -> Any:
    """The training split of a store that was filled just now."""
    from torchvision import transforms  # type: ignore[import-untyped]

    import headrace
    from headrace.cli.demos import demo_pictures
    from headrace.store.ingest import ingest

    task = bar.add_task("making images", total=options.images)
    for _ in demo_pictures.write(folder, options.images):
        bar.update(task, advance=1, refresh=True)
    task = bar.add_task("ingesting them", total=1)
    outcome = ingest(str(folder / "manifest.csv"), url)
    if outcome.failures:
        raise UsageError(f"{url} did not take all images: {outcome.failures[0]}")
    bar.update(task, advance=1, refresh=True)
    with headrace.StoreDataset(url) as whole:
        frame = {"key": list(whole.keys), "label": whole.labels, "patient_id": whole.metadata["patient_id"]}
    splits = headrace.split(frame, {"train": 0.8, "test": 0.2}, group_by="patient_id", stratify="label", seed=7)
    augment = transforms.Compose(
        [
            transforms.Resize(SIDE * 3 // 2),
            transforms.RandomCrop(SIDE),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    return headrace.StoreDataset(url, splits.keys("train"), transform=augment, keys=True)


def _entries(
    options: argparse.Namespace, contest: Contest, cache: Any, output: Path, bar: Progress
) -> list[Contestant]:
    import torch

    import headrace

    common: dict[str, Any] = {
        "batch_size": options.batch_size,
        "shuffle": True,
        "num_workers": options.workers,
        "persistent_workers": True,
    }
    batches = -(-len(contest.dataset) // options.batch_size) * options.epochs
    ours: dict[str, Any] = {**common, "in_order": False, "cache": cache, "trace": output / "demo.trace"}
    if options.device:
        ours |= {"device": options.device, "on_device": True}
    loaders: dict[str, Callable[[], Any]] = {
        "torch": partial(torch.utils.data.DataLoader, contest.dataset, **common),
        "headrace": partial(headrace.DataLoader, contest.dataset, **ours),
    }
    tasks = {name: bar.add_task(f"training with {name}'s loader", total=batches) for name in loaders}
    return [
        contest.run(name, build, options.epochs, partial(bar.update, tasks[name], advance=1, refresh=True))
        for name, build in loaders.items()
    ]


@contextmanager
def _cache(options: argparse.Namespace) -> Iterator[Any]:
    """A cache of the demo's own, removed afterwards. A server that cannot be used is refused now."""
    import headrace
    from headrace.cli.__main__ import main

    name = f"headrace-demo-{os.getpid()}"
    url = options.redis or f"shm://{name}"

    def clear() -> int:
        with redirect_stdout(io.StringIO()):
            return main(["cache", "clear", url, "--namespace", name])

    if options.redis and clear():  # which has said why
        raise UsageError("--redis: no cache can be kept there")
    try:
        yield headrace.Cache(url, size="512MiB", namespace=name)
    finally:
        clear()


def _looked_at(output: Path) -> dict[str, str]:
    """The trace as a page and as a timeline."""
    from headrace.trace import chrome
    from headrace.trace.calibrate import calibrate
    from headrace.trace.html import page
    from headrace.trace.reader import read
    from headrace.trace.report import report

    trace = read(output / "demo.trace")
    html, timeline = output / "report.html", output / "timeline.json"
    html.write_text(page(trace, report(trace, calibrate(), len(os.sched_getaffinity(0))), 0.0), encoding="utf-8")
    with timeline.open("w", encoding="utf-8") as file:
        chrome.write(trace, file, coarse=False)
    return {"trace": str(trace.path), "report": str(html), "timeline": str(timeline)}


def _progress(console: Console) -> Progress:
    """Bars drawn by the main thread alone: workers are forked while they are on screen."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description:<32}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        auto_refresh=False,
    )


def _show(outcome: dict[str, Any]) -> None:
    from headrace.cli.screen import screen, table

    out = screen()
    torch, ours = outcome["loaders"]
    samples, epochs = outcome["samples"], len(torch["laps"])
    numbers = [f"epoch {number}" for number in range(1, epochs + 1)]
    title = f"{samples} images an epoch, {outcome['workers']} workers"
    made = table(title, "loader", *numbers, "waited", "ideal", "CPU/sample", "hits")
    for entry in (torch, ours):
        hits = "-" if entry["hits"] is None else f"{entry['hits']:.0%}"
        made.add_row(
            entry["name"],
            *(f"{lap['seconds']:.2f} s" for lap in entry["laps"]),
            f"{entry['wait_share']:.0%}",
            f"{outcome['ideal'] / entry['laps'][0]['seconds']:.0%}",
            f"{entry['cpu'] / samples / epochs * 1e3:.2f} ms",
            hits,
        )
    out.print(made)
    out.print(
        f"waited: share of the time in next(). ideal: the first epoch could not take less than {outcome['ideal']:.2f} "
        f"s, which is {outcome['ideal_reason']}; the share of that which was reached.",
        style="dim",
    )
    for line in _remarks(outcome, torch, ours):
        out.print(line)
    if outcome["left"]:
        out.print(f"Its table stays: {outcome['left']}; remove it with DROP TABLE.")
    out.print(f"Report: {outcome['files']['report']}. Timeline for ui.perfetto.dev: {outcome['files']['timeline']}.")


def _remarks(outcome: dict[str, Any], torch: dict[str, Any], ours: dict[str, Any]) -> Iterator[str]:
    from headrace.running.meter import Neighbours

    gain = torch["seconds"] / ours["seconds"]
    compared = f"{gain:.2f} times as fast" if gain >= 1 else f"{1 / gain:.2f} times as slow"
    yield f"All epochs: {compared} as torch's."
    yield from ours["notes"]
    if all(entry["complete"] for entry in outcome["loaders"]):
        yield "Every image came exactly once in each epoch, with both."
    else:
        wrong = [entry["name"] for entry in outcome["loaders"] if not entry["complete"]]
        yield f"Samples were lost or came twice: {', '.join(wrong)}."
    if remark := Neighbours.remark(max(entry["others"] for entry in outcome["loaders"])):
        yield remark
