"""Inputs that are not what they should be: damaged by chance, and made so on purpose."""

import csv
import io
import sqlite3

import pyarrow as pa
import pyarrow.parquet

WORDS = (
    b"", b"\0", b"\n", b"\r", b'"', b",", b"\t", b"path", b"label", b"key", b"../" * 20, b"/dev/zero",
    b"/proc/self/mem",
    b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"9" * 400, b"-1", b"1e999", b"nan", b"NULL", b"true",
    b"a" * 140_000,
    b"cos\nsystem\n(S'false'\ntR.", b"=cmd|' /C calc'!A0",
)  # fmt: skip


def damaged(content, draw):
    """Some of: bits turned, pieces cut out, doubled, exchanged or overwritten, odd words put in, an early end."""
    made = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 4, 16))):
        at = draw.randrange(len(made) + 1)
        size = min(draw.choice((1, 2, 4, 8, 64, 1000)), len(made) - at)
        what = draw.randrange(7)
        if what == 0 and at < len(made):
            made[at] ^= 1 << draw.randrange(8)
        elif what == 1:
            del made[at : at + size]
        elif what == 2:
            made[at:at] = made[at : at + size]
        elif what == 3:
            made[at : at + size] = draw.randbytes(size)
        elif what == 4:
            made[at:at] = draw.choice(WORDS)
        elif what == 5:
            made[at : at + size] = draw.choice((b"\0", b"\xff")) * size
        elif draw.random() < 0.3:
            del made[at:]
    return bytes(made)


def table(draw):
    """A manifest as it should be."""
    columns = ["path", "label", "age", "note", "key"]
    rows = [
        {"path": f"{n}.dat", "label": draw.choice(["a", "b"]), "age": n, "note": f'"{n}", x\n', "key": f"k{n}"}
        for n in range(6)
    ]
    return columns, rows


def text_manifest(draw, delimiter):
    columns, rows = table(draw)
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, columns, delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


def parquet_manifest(draw):
    _, rows = table(draw)
    odd = draw.randrange(6)
    if odd == 0:
        rows = [{**row, "path": draw.choice([None, b"\xff", 3, 2.5, [1], {"a": 1}])} for row in rows[:1]]
    elif odd == 1:
        rows = [{**row, "label": draw.choice([None, 7])} for row in rows[:1]]
    out = io.BytesIO()
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), out, compression=draw.choice(["none", "snappy", "zstd"]))
    return out.getvalue()


ENDLESS = """ALTER TABLE metadata RENAME TO m2;
CREATE VIEW metadata AS WITH RECURSIVE r(key, label, bytes) AS
(SELECT 'a', 1, 1 UNION ALL SELECT key || 'a', 1, 1 FROM r) SELECT * FROM r"""
STATEMENTS = (
    "DROP TABLE about", "DROP TABLE metadata", "DROP TABLE samples", "DROP TABLE origins", "DROP TABLE classes",
    "DELETE FROM about", "UPDATE about SET value = 'strange'", "UPDATE about SET value = x'ff'",
    "UPDATE metadata SET label = 'text'", "UPDATE metadata SET label = 1.5", "UPDATE metadata SET age = 'old'",
    "UPDATE metadata SET label = NULL", "UPDATE metadata SET bytes = 'many'", "UPDATE metadata SET age = x'00ff'",
    "UPDATE metadata SET bytes = -1", "UPDATE samples SET label = 'text'", "UPDATE samples SET label = 2.5",
    "UPDATE samples SET data = 'text'", "UPDATE samples SET data = 7", "UPDATE samples SET label = NULL",
    "UPDATE metadata SET dose = 'much'", "UPDATE metadata SET ok = 'perhaps'",
    "UPDATE metadata SET key = x'ff00' WHERE rowid = 1", "UPDATE classes SET number = 'one'",
    "UPDATE metadata SET key = CAST(x'ff41' AS TEXT) WHERE rowid = 2", "DELETE FROM samples WHERE id < 3",
    "UPDATE metadata SET dose = 9e999", "UPDATE metadata SET class = x'ff'", "UPDATE metadata SET class = 7",
    "ALTER TABLE metadata ADD COLUMN strange", "ALTER TABLE metadata ADD COLUMN s2 JSON", "PRAGMA user_version = 99",
    "ALTER TABLE metadata RENAME COLUMN bytes TO octets", "ALTER TABLE samples RENAME COLUMN data TO payload",
    "PRAGMA application_id = 7", "ALTER TABLE metadata RENAME TO other",
    "CREATE TRIGGER t AFTER INSERT ON samples BEGIN DELETE FROM samples; END",
    ENDLESS,
    "UPDATE samples SET data = zeroblob(40000000) WHERE id = 2",
)  # fmt: skip


def changed_database(path, draw):
    """A store that somebody has changed with SQLite's own means."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        for statement in draw.sample(STATEMENTS, draw.choice((1, 1, 2, 3))):
            try:
                connection.executescript(statement)
            except sqlite3.Error:
                continue  # an earlier one has taken away what this one changes
    finally:
        connection.close()
