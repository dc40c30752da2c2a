"""Rows, records and metadata as messages: heads of plain values, and bytes behind them."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from headrace.core.errors import StoreError
from headrace.store.base import Kind, Label, LabelKind, Record, Row, Schema
from headrace.store.driver_process.direct import Listing

Message = tuple[dict[str, Any], list[bytes | memoryview]]


def row(found: Row) -> Message:
    """Label and payload."""
    label, blob = _label(found.label)
    return {"payload": len(found.payload), **label}, [found.payload, blob]


def read_row(key: str, head: dict[str, Any], body: memoryview) -> Row:
    """What ``row`` wrote."""
    size = head["payload"]
    return Row(key, bytes(body[:size]), _read_label(head, body[size:]))


def records(given: Sequence[Record], store: str) -> Message:
    """Rows to be written."""
    heads, parts = [], []
    for record in given:
        label, blob = _label(record.label)
        try:
            metadata = json.dumps(dict(record.metadata))
        except (TypeError, ValueError) as error:
            message = f"{store}: the row with the key {record.key!r} cannot be written: {error}"
            raise StoreError(message, server=store, key=record.key) from error
        heads.append({"key": record.key, "payload": len(record.payload), "metadata": metadata, **label})
        parts += [record.payload, blob]
    return {"records": heads}, parts


def read_records(head: dict[str, Any], body: memoryview) -> list[Record]:
    """What ``records`` wrote."""
    found, at = [], 0
    for one in head["records"]:
        end = at + one["payload"]
        label = _read_label(one, body[end:])
        found.append(Record(one["key"], bytes(body[at:end]), label, json.loads(one["metadata"])))
        at = end + one.get("blob", 0)
    return found


def listing(found: Listing) -> Message:
    """Columns, one behind the other."""
    parts = [json.dumps(values).encode() for values in found.values.values()]
    sizes = dict(zip(found.values, map(len, parts), strict=True))
    return {"labels": found.labels.value, "kinds": _kinds(found.kinds.items()), "sizes": sizes}, list(parts)


def read_listing(head: dict[str, Any], body: memoryview) -> Listing:
    """What ``listing`` wrote."""
    values, at = {}, 0
    for name, size in head["sizes"].items():
        values[name] = json.loads(bytes(body[at : at + size]))
        at += size
    return Listing(LabelKind(head["labels"]), _read_kinds(head["kinds"]), values)


def schema(found: Schema) -> dict[str, Any]:
    """Labels and columns."""
    return {"labels": found.labels.value, "kinds": _kinds(found.columns.items())}


def read_schema(head: dict[str, Any]) -> Schema:
    """What ``schema`` wrote."""
    return Schema(LabelKind(head["labels"]), _read_kinds(head["kinds"]))


def _kinds(kinds: Iterable[tuple[str, Kind]]) -> list[tuple[str, str]]:
    return [(name, kind.value) for name, kind in kinds]


def _read_kinds(kinds: list[list[str]]) -> dict[str, Kind]:
    return {name: Kind(kind) for name, kind in kinds}


def _label(label: Label) -> tuple[dict[str, Any], bytes]:
    """In the head, or behind the payload."""
    return ({"blob": len(label)}, label) if isinstance(label, bytes) else ({"label": label}, b"")


def _read_label(head: dict[str, Any], behind: memoryview) -> Label:
    if "blob" in head:
        return bytes(behind[: head["blob"]])
    label: int | None = head["label"]
    return label
