"""Thousands of damaged shards: each gives what it has, or an error of one line; none costs memory or time."""

import io
import json
import random
import struct
import tarfile
import tracemalloc

import pytest

from headrace import store
from headrace.core.errors import HeadraceError
from headrace.store.ingest.source_options import ReadOptions
from headrace.store.ingest.sources.tars import Tars
from headrace.store.shards.tables.thrift import ThriftReader, written
from tests.malformed import bounded
from tests.store.malformed import damaged
from tests.store.shards.test_places import litdata_of, parquet_of
from tests.store.test_shards import COLUMNS, write_mds

FEW, MANY = 300, 10_000
EXTREMES = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1]
WORDS = [
    None,
    True,
    -1,
    0,
    2**31,
    2**40,
    10**30,
    1e308,
    float("nan"),
    "",
    "x" * 5000,
    "../../etc/passwd",
    "a\nb",
    "\0",
    [],
    {},
]
MOST = 4 << 20
"""Bytes that reading a shard of some kilobytes may take."""


def number_changed(raw, draw):
    """One of the numbers that a shard consists of is another."""
    raw, size = bytearray(raw), draw.choice([4, 8])
    at = draw.randrange(len(raw) // 4) * 4
    raw[at : at + size] = (draw.choice(EXTREMES) % (1 << 8 * size)).to_bytes(size, "little")
    return bytes(raw)


def field_changed(raw, draw):
    """A field of a tar's header changed, and the checksum made right: others believe it."""
    raw = bytearray(raw)
    header = 512 * draw.randrange(len(raw) // 512)
    begin, end = draw.choice([(0, 100), (124, 136), (156, 157), (257, 265), (345, 500), (482, 483), (100, 108)])
    size, kind = end - begin, draw.choice([b"x", b"g", b"L", b"K", b"S", b"1", b"5", b"?"])
    values = [
        draw.randbytes(size),
        bytes(size),
        b"7" * size,
        b"\xff" * size,
        b"\x80" + bytes(6) + draw.randbytes(5),
        kind,
    ]
    raw[header + begin : header + end] = draw.choice(values)[:size].ljust(size, b"\0")
    raw[header + 148 : header + 156] = b" " * 8
    raw[header + 148 : header + 156] = b"%06o\0 " % sum(raw[header : header + 512])
    return bytes(raw)


def value_changed(tree, draw):
    """Some value of a JSON document replaced by another, or taken away."""
    while isinstance(tree, (dict, list)) and tree:
        key = draw.choice(list(tree)) if isinstance(tree, dict) else draw.randrange(len(tree))
        if draw.random() < 0.4 or not isinstance(tree[key], (dict, list)) or not tree[key]:
            if draw.random() < 0.15:
                del tree[key]
            else:
                tree[key] = draw.choice(WORDS)
            return
        tree = tree[key]


def looked_at(*attempts):
    """Everything one may do with it; how much of it worked."""
    worked = 0
    for attempt in attempts:
        try:
            attempt()
            worked += 1
        except HeadraceError as error:
            told = str(error)
        else:
            told = "it works"
        assert told
        assert "\n" not in told
    return worked


def read_all(url):
    opened = store.open_store(url)
    keys = []
    worked = looked_at(lambda: keys.extend(opened.keys()), opened.columns, opened.info)
    assert len(keys) < 1000
    return worked + looked_at(*(lambda key=key: opened.get(key) for key in keys))


class Peak:
    """No more memory than a small file may take."""

    def __enter__(self):
        tracemalloc.start()

    def __exit__(self, *_):
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MOST


def tars(folder, seed, count):
    draw = random.Random(seed)
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for number in range(3):
            for extension, content in (
                ("cls", b"%d" % number), ("json", b'{"age": 3, "who": "me"}'), ("long" * 40 + ".bin", bytes(600)),
            ):  # fmt: skip
                info = tarfile.TarInfo(f"{number}.{extension}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    whole, worked = raw.getvalue(), 0
    for _ in range(count):
        change = draw.choice([damaged, number_changed, field_changed, field_changed])
        (folder / "a.tar").write_bytes(change(whole, draw))
        with Peak():
            worked += read_all(f"wds://{folder}") > 0

            def ingested():
                source = Tars(str(folder / "a.tar"), ReadOptions())
                for item in source.items():
                    if item.problem is None:
                        source.load(item)
                    else:
                        assert "\n" not in item.problem

            looked_at(ingested)
    assert count // 10 < worked < count, "some are refused, and some can be read"


def mds(folder, seed, count):
    draw = random.Random(seed)
    rows = [
        [struct.pack("<f", number / 4), bytes(50 * number), struct.pack("<q", number), b"who"] for number in range(5)
    ]
    write_mds(folder, COLUMNS, [rows[:2], rows[2:]])
    index, worked = (folder / "index.json").read_text(), 0
    shards = {path: path.read_bytes() for path in folder.glob("*.mds")}
    for _ in range(count):
        (folder / "index.json").write_text(index)
        for path, raw in shards.items():
            path.write_bytes(raw)
        match draw.randrange(3):
            case 0:
                path = draw.choice(sorted(shards))
                path.write_bytes(draw.choice([damaged, number_changed])(shards[path], draw))
            case 1:
                (folder / "index.json").write_bytes(damaged(index.encode(), draw))
            case _:
                tree = json.loads(index)
                value_changed(tree, draw)
                (folder / "index.json").write_text(json.dumps(tree))
        with Peak():
            worked += read_all(f"mds://{folder}") > 0
    assert count // 10 < worked < count


def packed_mds(folder, seed, count):
    """Compressed as a whole, by what is unpacked with a library and by what Python itself unpacks."""
    draw = random.Random(seed)
    rows = [[bytes(50 * number), struct.pack("<q", number)] for number in range(5)]
    worked = 0
    for codec in ("zstd", "gz"):
        for path in folder.iterdir():
            path.unlink()
        write_mds(folder, COLUMNS[1:3], [rows[:2], rows[2:]], packed=codec)
        shards = {path: path.read_bytes() for path in folder.glob("shard*")}
        for _ in range(count // 2):
            for path, raw in shards.items():
                path.write_bytes(raw)
            path = draw.choice(sorted(shards))
            path.write_bytes(damaged(shards[path], draw))
            with Peak():
                worked += read_all(f"mds://{folder}") > 0
    assert count // 10 < worked


def litdata(folder, seed, count):
    draw = random.Random(seed)
    litdata_of(folder)
    index, worked = (folder / "index.json").read_text(), 0
    chunks = {path: path.read_bytes()[:40_000] for path in folder.glob("*0.bin")} | {
        path: path.read_bytes() for path in folder.glob("*[12].bin")
    }
    for _ in range(count):
        (folder / "index.json").write_text(index)
        for path, raw in chunks.items():
            path.write_bytes(raw)
        match draw.randrange(3):
            case 0:
                path = draw.choice(sorted(chunks))
                head = draw.choice([damaged, number_changed])(chunks[path][:64], draw)
                path.write_bytes(head + chunks[path][64:])
            case 1:
                (folder / "index.json").write_bytes(damaged(index.encode(), draw))
            case _:
                tree = json.loads(index)
                value_changed(tree, draw)
                (folder / "index.json").write_text(json.dumps(tree))
        with Peak():
            worked += read_all(f"litdata://{folder}") > 0
    assert count // 10 < worked < count


def parquet(folder, seed, count):
    draw = random.Random(seed)
    parquet_of(folder)
    files = {path: path.read_bytes() for path in folder.glob("*.parquet")}
    worked = 0
    with bounded():
        for _ in range(count // 2):  # each takes three times as long as one of the others
            for path, raw in files.items():
                path.write_bytes(raw)
            path = draw.choice(sorted(files))
            raw = files[path]
            footer = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
            if draw.random() < 0.6:
                path.write_bytes(raw[:footer] + damaged(raw[footer:-8], draw)[: len(raw)] + raw[-8:])
            else:
                path.write_bytes(damaged(raw, draw))
            with Peak():
                worked += read_all(f"parquet://{folder}") > 0
    assert count // 10 < worked < count


EVERY = [tars, mds, packed_mds, litdata, parquet]


@pytest.mark.parametrize("fuzz", EVERY)
def test_a_few_hundred(tmp_path, fuzz):
    fuzz(tmp_path, 1, FEW)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(2, 6))
@pytest.mark.parametrize("fuzz", EVERY)
def test_ten_thousand(tmp_path, fuzz, seed):
    fuzz(tmp_path, seed, MANY // 4)


def test_an_index_nested_without_end(tmp_path):
    (tmp_path / "index.json").write_text("[" * 100_000)
    assert looked_at(store.open_store(f"mds://{tmp_path}").keys) == 0


def test_statistics_that_contradict_each_other_do_not_end_the_process(tmp_path):
    """pyarrow ends it where a level histogram has another length than its column's levels."""
    parquet_of(tmp_path)
    path = tmp_path / "part-0.parquet"
    raw = path.read_bytes()
    at = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    fields = ThriftReader(raw[at:-8]).struct()
    for group in fields[4][1][1]:
        for chunk in group[1][1][1]:
            chunk[3][1][16] = 12, {2: (9, (6, [1, 2, 3])), 3: (9, (6, [4] * 7))}
    footer = written(fields)
    path.write_bytes(raw[:at] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    opened = store.open_store(f"parquet://{tmp_path}")
    assert opened.get("000000003").label == 0
    assert len(opened.columns()["who"]) == 20


def test_metadata_of_a_parquet_file_nested_without_end(tmp_path):
    footer = b"\x19" * 5000
    (tmp_path / "a.parquet").write_bytes(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    assert looked_at(store.open_store(f"parquet://{tmp_path}").keys) == 0
