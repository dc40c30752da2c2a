"""Divide the samples of a store into train, test and the rest, by their metadata.

Groups never straddle splits, class ratios are kept as closely as groups allow, and the same seed gives the same splits
on any machine. When the store has changed, --keep leaves every sample where an earlier split has it. Payloads are not
read.
"""

import argparse
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

from rich.table import Table

from headrace.cli import UsageError, answer, listed
from headrace.cli.screen import screen, table
from headrace.store import parquet
from headrace.store.locate import open_store
from headrace.store.splits.assignment import split
from headrace.store.splits.result import Splits
from headrace.store.splits.split_file import read
from headrace.store.url import StoreUrl
from headrace.store.wording import one_line

MOST_CLASSES = 20
"""Lines of the table; the rest are counted together."""
MOST_WENT = 20
"""Keys that went which are listed."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="a store, such as sqlite:///samples.db")
    parser.add_argument("--fractions", metavar="NAME=SHARE,...", help="such as train=0.8,val=0.1,test=0.1")
    parser.add_argument("--group-by", metavar="COLUMN", help="samples with the same value stay together")
    parser.add_argument("--stratify", metavar="COLUMN,...", help="keep the ratios of these classes in every split")
    parser.add_argument(
        "--balance",
        metavar="RULE",
        help="set the ratios instead, by leaving samples out: uniform, or CLASS=WEIGHT,..., or SPLIT=uniform,...",
    )
    parser.add_argument("--where", metavar="CONDITION", help="only samples like \"age >= 18 AND site IN ('a', 'b')\"")
    parser.add_argument("--folds", type=int, metavar="K", help="divide the first split into folds for cross-validation")
    parser.add_argument("--seed", type=int, help="another seed gives other splits (0)")
    parser.add_argument(
        "--keep",
        metavar="FILE",
        help="an earlier split: samples stay where it has them, new ones are placed, and options not given are as then",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="(splits.parquet; splits.json where pyarrow is not installed, which .json does not need)",
    )
    parser.add_argument("--force", action="store_true", help="replace a file that is there")
    parser.add_argument("--allow-empty", action="store_true", help="splits and folds may have no samples")


def run(options: argparse.Namespace) -> int:
    """Read the metadata, divide, write the file, print what came of it."""
    output = options.output or ("splits.parquet" if parquet.is_there() else "splits.json")
    before = None if options.keep is None else read(options.keep)
    source = StoreUrl.parse(options.url)
    with closing(open_store(source)) as store:
        columns = store.columns()
    made = split(
        columns,
        _fractions(options.fractions),
        group_by=options.group_by,
        stratify=listed(options.stratify),
        balance=_balance(options.balance),
        where=options.where,
        folds=options.folds,
        seed=options.seed,
        keep=before,
        allow_empty=options.allow_empty,
    )
    in_table = source.path.strip("/").replace("/", ".") if source.scheme == "cassandra" else None
    made = replace(made, facts={"store": source.redacted, "table": in_table, **made.facts})
    made.save(output, force=options.force)
    facts = {"file": output, **made.facts, "concerns": made.concerns()}
    answer(options, facts, lambda: _show(made, output))
    return 0


def _pairs(text: str, option: str) -> list[tuple[str, str]]:
    pairs = [part.rpartition("=") for part in listed(text)]
    for name, equals, value in pairs:
        if not (name and equals and value):
            raise UsageError(f"{option}: {name or value!r} is not NAME=VALUE")
    if len({name for name, _, _ in pairs}) < len(pairs):
        raise UsageError(f"{option}: a name is there twice")
    return [(name, value) for name, _, value in pairs]


def _number(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{option}: {text!r} is no number") from None


def _fractions(text: str | None) -> Mapping[str, float] | None:
    if text is None:
        return None
    return {name: _number(value, "--fractions") for name, value in _pairs(text, "--fractions")}


def _balance(text: str | None) -> Any:
    """A word, weights by class (numbers), or rules by split (words)."""
    if text is None or "=" not in text:
        return text
    pairs = _pairs(text, "--balance")
    if all(value in {"original", "uniform"} for _, value in pairs):
        return dict(pairs)
    return {name: _number(value, "--balance") for name, value in pairs}


def _show(made: Splits, file: str) -> None:
    out = screen()
    counts = made.facts["counts"]
    out.print(_sizes(counts))
    if "classes" in counts["total"]:
        out.print(_classes(counts))
    for concern in made.concerns():
        out.print(concern, style="yellow")
    if "kept" in made.facts:
        _kept(made.facts["kept"])
    left = made.facts["left_out"]
    out.print(f"{len(made)} samples in {file}" + (f", {left} left out" if left else ""))


def _kept(kept: Mapping[str, Any]) -> None:
    out, went = screen(), kept["went"]
    out.print(f"{kept['kept']} samples are where they were, {kept['new']} are new, {len(went)} went")
    for key in went[:MOST_WENT]:
        out.print(f"  went: {one_line(key)}", style="yellow")
    if len(went) > MOST_WENT:
        out.print(f"  and {len(went) - MOST_WENT} more; --json lists them all", style="yellow")


def _sizes(counts: Mapping[str, Any]) -> Table:
    grouped = "groups" in counts["total"]
    made = table("splits", "", "samples", "share", "wanted", *(["groups"] if grouped else []))
    whole = sum(part["rows"] for part in counts["splits"].values())
    asked = sum(part["wanted"] for part in counts["splits"].values())
    for name, part in counts["splits"].items():
        shares = [f"{part['rows'] / max(whole, 1):.2%}", f"{part['wanted'] / asked:.2%}"]
        made.add_row(name, str(part["rows"]), *shares, *([str(part["groups"])] if grouped else []))
    for number, fold in enumerate(counts.get("folds", [])):
        inside = sum(each["rows"] for each in counts["folds"])
        shares = [f"{fold['rows'] / max(inside, 1):.2%}", f"{1 / len(counts['folds']):.2%}"]
        made.add_row(f"fold {number}", str(fold["rows"]), *shares, *([str(fold["groups"])] if grouped else []))
    return made


def _classes(counts: Mapping[str, Any]) -> Table:
    """The table of each class's part of every split: equal along a line where ratios are kept."""
    names = list(counts["splits"])
    made = table("classes", "", "all", *names)
    whole = counts["total"]["classes"]
    common = sorted(whole, key=lambda label: -whole[label])
    shown = [label for label in whole if label in set(common[:MOST_CLASSES])]
    rest = [label for label in whole if label not in set(shown)]
    for label, those in [*((label, [label]) for label in shown), *([(f"{len(rest)} more", rest)] if rest else [])]:
        parts = [counts["total"], *(counts["splits"][name] for name in names)]
        made.add_row(label, *(_cell(sum(part["classes"][each] for each in those), part["rows"]) for part in parts))
    return made


def _cell(count: int, rows: int) -> str:
    return f"{count} ({count / rows:.1%})" if rows else "0"
