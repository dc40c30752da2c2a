"""Decoding of units into tables, stream by stream. Pure: knows no file."""

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.trace import format as F

Units = npt.NDArray[np.uint64]

_SPAN = [("start", "i8"), ("elapsed", "i8"), ("cpu", "i8")]
_WHERE = [("stream", "i4"), ("run", "i4")]
SCHEMAS: dict[str, list[tuple[str, str]]] = {
    "samples": [
        *_SPAN,
        *_WHERE,
        ("index", "i8"),
        ("key", "i4"),
        ("batch", "i8"),
        ("row", "i4"),
        ("bytes_in", "i8"),
        ("bytes_out", "i8"),
        ("operations", "i4"),
        ("slow", "?"),
        ("failed", "?"),
        ("repeated", "?"),
        ("tier", "i1"),
        ("retries", "i1"),
        ("node", "i4"),
    ],
    "operations": [*_SPAN, *_WHERE, ("name", "i4"), ("sample", "i8"), ("position", "i4")],
    "rows": [*_SPAN, *_WHERE, ("batch", "i8"), ("first", "i4"), ("count", "i4")],
    "collations": [*_SPAN, *_WHERE, ("batch", "i8"), ("samples", "i4")],
    "batches": [*_SPAN, *_WHERE, ("batch", "i8"), ("samples", "i4"), ("ready", "i4"), ("outstanding", "i4")],
    "copies": [*_SPAN, *_WHERE, ("batch", "i8"), ("bytes", "i8")],
    "spans": [*_SPAN, *_WHERE, ("name", "i4")],
    "counters": [("time", "i8"), *_WHERE, ("name", "i4"), ("value", "i8")],
    "marks": [("time", "i8"), *_WHERE, ("name", "i4"), ("value", "i8")],
}
"""The fields of every table, in order. ``row`` is the sample's row in its batch, ``position`` an operation's place
among those of its sample, ``tier`` the form a cache had (1 encoded, 2 decoded, 3 augmented, 0 none), ``node`` the
name of the span that says on which other host it was made, -1 for none."""

_PAIRS = {
    "rows": (F.ROWS, F.ROWS_ID),
    "collations": (F.COLLATE, F.COLLATE_ID),
    "batches": (F.BATCH, F.BATCH_ID),
    "copies": (F.COPY, F.COPY_ID),
    "spans": (F.SPAN, F.SPAN_ID),
}


class Decoder:
    """Collects the tables of all streams."""

    def __init__(self) -> None:
        self.streams: list[tuple[int, int, str, int]] = []
        self.runs: list[tuple[str, int]] = []
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._run_ids: dict[int, int] = {}
        self._parts: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in SCHEMAS}
        self._samples = 0

    def stream(self, parts: list[tuple[int, int, Units]]) -> None:
        process, thread, _ = parts[0]
        number = len(self.streams)
        units = np.concatenate([part[2] for part in parts])
        units = units[: _whole(units)]
        value, word = units[:, 0], units[:, 1]
        tag = (word >> np.uint64(F.TAG_SHIFT)).astype(np.int64)
        payload = (word & np.uint64(F.PAYLOAD)).astype(np.int64)
        texts = _texts(units, tag)
        role, lane = "main", -1
        for (kind, _), text in texts.items():
            if kind == F.STREAM_TEXT:
                facts = json.loads(text)
                role, lane = facts["role"], facts["lane"]
            elif kind == F.RUN_TEXT:
                self._describe(text, process)
        self.streams.append((process, thread, role, lane))
        at_run = np.flatnonzero(tag == F.RUN)
        known = np.array([-1, *(self._run(int(run), process) for run in value[at_run])], np.int64)
        run = known[np.searchsorted(at_run, np.arange(len(tag)), side="right")]
        view = _RecordView(value, payload, tag, run, number)
        self._sampled(view, texts)
        for name, (first, _) in _PAIRS.items():
            self._pairs(view, name, first, texts)
        for name, which in (("counters", F.COUNTER), ("marks", F.EVENT)):
            at = np.flatnonzero(tag == which)
            table = view.table(name, at, timed=False)
            table["time"] = payload[at]
            table["name"] = self._named(texts, F.NAME, (value[at] >> np.uint64(48)).astype(np.int64))
            table["value"] = (value[at] & np.uint64(F.MASK48)).astype(np.int64)
            self._parts[name].append(table)

    def tables(self) -> dict[str, npt.NDArray[Any]]:
        """All there is, each table in order of stream, then time."""
        return {
            name: np.concatenate(parts) if parts else np.empty(0, SCHEMAS[name]) for name, parts in self._parts.items()
        }

    def _run(self, run: int, process: int) -> int:
        """The position of a run in the list, which is described by another stream, perhaps later."""
        if run not in self._run_ids:
            self._run_ids[run] = len(self.runs)
            self.runs.append(("", process))
        return self._run_ids[run]

    def _describe(self, text: str, process: int) -> None:
        facts = json.loads(text)
        position = self._run(int(facts.pop("run")), process)
        self.runs[position] = json.dumps(facts), process

    def _named(self, texts: dict[tuple[int, int], str], kind: int, numbers: npt.NDArray[np.int64]) -> Any:
        """Numbers of a stream's texts, as positions in ``names``."""
        unique, inverse = np.unique(numbers, return_inverse=True)
        found = []
        for number in unique.tolist():
            text = texts.get((kind, number), "?")
            found.append(self._numbers.setdefault(text, len(self._numbers)))
        self.names.extend(list(self._numbers)[len(self.names) :])
        return np.array(found, np.int64)[inverse] if found else np.empty(0, np.int64)

    def _sampled(self, view: "_RecordView", texts: dict[tuple[int, int], str]) -> None:
        at = np.flatnonzero(view.tag == F.SAMPLE)
        samples = view.table("samples", at)
        word, sizes = view.payload[at + 1], view.value[at + 1]
        flags = word >> 32 & 0xFFF
        samples["index"] = word & F.MASK32
        samples["key"] = samples["batch"] = samples["row"] = -1
        samples["bytes_in"], samples["bytes_out"] = (sizes >> np.uint64(32)), sizes & np.uint64(F.MASK32)
        for field, flag in (("slow", F.SLOW), ("failed", F.FAILED), ("repeated", F.REPEATED)):
            samples[field] = flags & flag != 0
        samples["tier"], samples["retries"] = flags >> F.TIER_SHIFT & 3, flags >> F.RETRIES_SHIFT & 31
        wide = flags & F.WIDE_INDEX != 0
        samples["index"][wide] = view.payload[at[wide] + 2]
        keyed = flags & F.KEY != 0
        samples["operations"] = (word >> 44 & 0xFF) - (wide | keyed)  # the unit of a wide index or key is counted in it
        samples["index"][keyed & (samples["index"] == F.NO_INDEX)] = -1
        samples["key"][keyed] = self._named(texts, F.KEY_TEXT, view.payload[at[keyed] + 2])
        samples["node"] = self._nodes(view, texts, at)
        _land(samples, at, view)
        at_op = np.flatnonzero((view.tag > 0) & (view.tag <= F.LAST_OPERATION))
        operations = view.table("operations", at_op)
        operations["name"] = self._named(texts, F.OPERATION, view.tag[at_op])
        sample = np.searchsorted(at, at_op) - 1
        operations["sample"] = sample + self._samples
        if len(at):
            operations["position"] = at_op - at[sample] - 2 - (wide | keyed)[sample]
        self._samples += len(samples)
        self._parts["samples"].append(samples)
        self._parts["operations"].append(operations)

    def _nodes(self, view: "_RecordView", texts: dict[tuple[int, int], str], at: Any) -> Any:
        """For each sample, the name of the span before it that says where it was made; -1: here."""
        found = np.full(len(at), -1)
        nodes = [number for (kind, number), text in texts.items() if kind == F.NAME and text.startswith(F.ELSEWHERE)]
        if nodes:
            spans = np.flatnonzero(view.tag == F.SPAN)
            names = view.payload[spans + 1]
            of = np.searchsorted(at, spans)
            told = np.isin(names, nodes) & (of < len(at))
            found[of[told]] = self._named(texts, F.NAME, names[told])
        return found

    def _pairs(self, view: "_RecordView", name: str, first: int, texts: dict[tuple[int, int], str]) -> None:
        at = np.flatnonzero(view.tag == first)
        table = view.table(name, at)
        identity, value = view.payload[at + 1], view.value[at + 1]
        if name == "spans":
            table["name"] = self._named(texts, F.NAME, identity)
        else:
            table["batch"] = identity
        if name == "rows":
            table["first"], table["count"] = value >> np.uint64(32), value & np.uint64(F.MASK32)
        elif name == "batches":
            table["samples"] = value >> np.uint64(32)
            table["ready"], table["outstanding"] = value >> np.uint64(16) & np.uint64(0xFFFF), value & np.uint64(0xFFFF)
        elif name in {"collations", "copies"}:
            table["samples" if name == "collations" else "bytes"] = value
        self._parts[name].append(table)


class _RecordView:
    """Fields of a stream's records, taken apart."""

    def __init__(self, value: Any, payload: Any, tag: Any, run: Any, number: int) -> None:
        self.value, self.payload, self.tag, self.run, self.number = value, payload, tag, run, number

    def table(self, name: str, at: Any, *, timed: bool = True) -> npt.NDArray[Any]:
        """An empty table with what its rows have in common filled in."""
        table = np.zeros(len(at), SCHEMAS[name])
        table["stream"], table["run"] = self.number, self.run[at]
        if timed:
            value = self.value[at]
            elapsed = (value & np.uint64(F.LENGTH)).astype(np.int64)
            share = (value >> np.uint64(F.CPU_SHIFT)).astype(np.int64)
            cpu = np.rint(elapsed * (share / F.CPU_FULL)).astype(np.int64)
            table["start"], table["elapsed"] = self.payload[at], elapsed
            table["cpu"] = np.where(share > F.CPU_FULL, -1, cpu)
        return table


def _whole(units: Units) -> int:
    """Units up to the last complete record: a killed process leaves at most one incomplete, at the end."""
    # No record is longer: a sample has 250 operations at most, a text 3,000 bytes, which are 215 units.
    tags = (units[-300:, 1] >> np.uint64(F.TAG_SHIFT)).astype(np.int64)
    heads = units[-300:, 1] & np.uint64(F.PAYLOAD)
    needs_one = {F.SAMPLE: F.SAMPLE_ID} | dict(_PAIRS.values())
    for back in range(len(tags) - 1, -1, -1):
        tag, left = int(tags[back]), len(tags) - back - 1
        if tag in {F.TEXT, F.SAMPLE_ID, F.WIDE, *dict(_PAIRS.values()).values()} or 0 < tag <= F.LAST_OPERATION:
            continue
        wanted = 0
        if tag in needs_one:
            wanted = 1
        if tag == F.SAMPLE and left:
            identity = int(heads[back + 1])
            wanted += identity >> 44 & 0xFF
        if tag == F.DEFINE:
            wanted = -(-(int(heads[back]) & 0xFFFFFF) // F.TEXT_BYTES)
        return len(units) - left - 1 if left < wanted else len(units)
    return len(units)


def _texts(units: Units, tag: npt.NDArray[np.int64]) -> dict[tuple[int, int], str]:
    """(kind, number) → text, of every definition in the stream."""
    found = {}
    for at in np.flatnonzero(tag == F.DEFINE).tolist():
        word = int(units[at, 1]) & F.PAYLOAD
        number, length = word >> 24, word & 0xFFFFFF
        pieces = units[at + 1 : at + 1 + -(-length // F.TEXT_BYTES)]
        raw = b"".join(int(v).to_bytes(8, "little") + (int(w) & F.MASK48).to_bytes(6, "little") for v, w in pieces)
        found[int(units[at, 0]), number] = raw[:length].decode(errors="replace")
    return found


def _land(samples: npt.NDArray[Any], at: Any, view: _RecordView) -> None:
    """Tell samples the batch and row they went to: a write is of the samples that landed nowhere before it."""
    at_rows = np.flatnonzero(view.tag == F.ROWS)
    if not len(at_rows) or not len(at):
        return
    counts = (view.value[at_rows + 1] & np.uint64(F.MASK32)).astype(np.int64).tolist()
    firsts = (view.value[at_rows + 1] >> np.uint64(32)).astype(np.int64).tolist()
    batches, runs = view.payload[at_rows + 1].tolist(), view.run[at_rows].tolist()
    seen = np.searchsorted(at, at_rows).tolist()  # samples recorded before each write
    failed, run_of = samples["failed"], samples["run"]
    next_sample = 0
    for count, first, batch, run, before in zip(counts, firsts, batches, runs, seen, strict=True):
        while next_sample < before and (failed[next_sample] or run_of[next_sample] != run):
            next_sample += 1
        row = first
        while row < first + count and next_sample < before:
            if not failed[next_sample] and run_of[next_sample] == run:
                samples["batch"][next_sample], samples["row"][next_sample] = batch, row
                row += 1
            next_sample += 1
