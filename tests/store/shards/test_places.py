"""Shards in buckets and on web servers: the same samples as in a folder, by parts of objects, and what can go wrong."""

import asyncio
import io
import json
import struct
import urllib.request
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace import store
from headrace.core.errors import BadRow, BadStoreUrl, StoreRefused
from headrace.store import Record
from headrace.store.objects.object_driver import Bucket
from headrace.store.url import StoreUrl
from headrace.testing.stores import StoreConformance, reader
from tests.store.shards.web import serving
from tests.store.test_shards import COLUMNS, write_mds, write_tar

pytestmark = pytest.mark.service


@pytest.fixture
def web(client):
    with serving() as made:
        yield made


def upload(endpoint, folder, prefix):
    for path in folder.rglob("*"):
        if path.is_file():
            place = f"{endpoint}/bucket/{prefix}/{quote(str(path.relative_to(folder)))}"
            headers = {"Content-Type": "application/octet-stream"}
            request = urllib.request.Request(place, path.read_bytes(), headers, method="PUT")
            urllib.request.urlopen(request, timeout=10).close()


def url_of(what, endpoint, prefix, more=""):
    return f"{what}+s3://key:secret@bucket/{prefix}?endpoint={endpoint}{more}"


def mds_of(folder):
    records, rows = [], []
    for number in range(10):
        payload, who = bytes([number]) * (700 * number + 1), f"p{number}é"
        records.append(Record(f"{number:09}", payload, number % 3, {"dose": number / 4, "who": who}))
        rows.append([struct.pack("<f", number / 4), payload, struct.pack("<q", number % 3), who.encode()])
    write_mds(folder, COLUMNS, [rows[:4], [], rows[4:]])
    return records


def tars_of(folder):
    records = []
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(3):
        files = []
        for number in range(4 * shard, 4 * shard + 4):
            told = {"class": "ab"[number % 2], "dose": number / 4} | ({"age": number} if number % 3 else {})
            payload = bytes([number]) * (600 * number)
            records.append(Record(f"train/{number:04}", payload, number % 2, told))
            files += [
                (f"train/{number:04}.cls", b"%d" % (number % 2)),
                (f"train/{number:04}.json", json.dumps({**told, "boxes": [1, 2]}).encode()),
                (f"train/{number:04}.JPG", payload),
            ]
        write_tar(folder / f"shard-{shard:03}.tar", files)
    return records


class TestMdsInABucket(StoreConformance):
    columns_kept = ("dose", "who")

    @pytest.fixture(scope="class")
    @classmethod
    def filled(cls, endpoint, tmp_path_factory):
        folder = tmp_path_factory.mktemp("mds")
        records = mds_of(folder)
        upload(endpoint, folder, "mds")
        return store.open_store(url_of("mds", endpoint, "mds")), records

    @pytest.fixture(autouse=True)
    def given(self, filled):
        self.store, self.records = filled


class TestTarsInABucket(StoreConformance):
    columns_kept = ("class", "age", "dose")

    @pytest.fixture(scope="class")
    @classmethod
    def filled(cls, endpoint, tmp_path_factory):
        folder = tmp_path_factory.mktemp("wds")
        records = tars_of(folder)
        upload(endpoint, folder, "wds")
        index = f"&index={folder}/index.sqlite"
        return store.open_store(url_of("wds", endpoint, "wds/shard-{000..002}.tar", index)), records

    @pytest.fixture(autouse=True)
    def given(self, filled):
        self.store, self.records = filled


def parquet_of(folder):
    """Two files of several row groups, with pictures as Hugging Face has them."""
    records = []
    folder.mkdir(parents=True, exist_ok=True)
    for file in range(2):
        rows = []
        for number in range(10 * file, 10 * file + 10):
            payload, who = bytes([number]) * (300 * number), None if number % 4 == 0 else f"p{number}é"
            records.append(Record(f"{number:09}", payload, number % 3, {"dose": number / 4, "who": who}))
            picture = {"bytes": payload, "path": f"{number}.bin"}
            rows.append({"image": picture, "label": number % 3, "dose": number / 4, "who": who, "tags": [number, 2]})
        table = pa.Table.from_pylist(rows)
        pq.write_table(
            table,
            folder / f"part-{file}.parquet",
            row_group_size=4,
            compression=["snappy", "zstd"][file],
            write_page_index=bool(file),
        )
    return records


class TestParquetInABucket(StoreConformance):
    columns_kept = ("dose", "who")

    @pytest.fixture(scope="class")
    @classmethod
    def filled(cls, endpoint, tmp_path_factory):
        folder = tmp_path_factory.mktemp("parquet")
        records = parquet_of(folder)
        upload(endpoint, folder, "parquet")
        return store.open_store(url_of("parquet", endpoint, "parquet")), records

    @pytest.fixture(autouse=True)
    def given(self, filled):
        self.store, self.records = filled


class TestParquetInAFolder(StoreConformance):
    columns_kept = ("dose", "who")

    @pytest.fixture(autouse=True)
    def given(self, tmp_path):
        self.records = parquet_of(tmp_path / "a")
        self.store = store.open_store(f"parquet://{tmp_path}/a/part-{{0..1}}.parquet")


def litdata_of(folder):
    """As LitData's writer lays it out."""
    folder.mkdir(parents=True, exist_ok=True)
    records, chunks = [], []
    names = ["image", "label", "who", "dose"]
    leaf = {"type": None, "context": None, "children_spec": []}
    spec = [1, {"type": "builtins.dict", "context": json.dumps(names), "children_spec": [leaf] * 4}]
    for chunk in range(3):
        items = []
        for number in range(4 * chunk, 4 * chunk + 4):
            payload = bytes([number]) * (5000 * number)
            records.append(Record(f"{number:09}", payload, number % 3, {"who": f"p{number}é", "dose": number / 4}))
            parts = [payload, struct.pack("<q", number % 3), f"p{number}é".encode(), struct.pack("<d", number / 4)]
            items.append(struct.pack("<4I", *map(len, parts)) + b"".join(parts))
        offsets = [24]
        for item in items:
            offsets.append(offsets[-1] + len(item))
        raw = struct.pack(f"<I{len(offsets)}I", len(items), *offsets) + b"".join(items)
        (folder / f"chunk-0-{chunk}.bin").write_bytes(raw)
        chunks.append({"chunk_bytes": len(raw), "chunk_size": 4, "dim": None, "filename": f"chunk-0-{chunk}.bin"})
    config = {
        "compression": None, "data_format": ["jpeg", "int", "str", "float"], "data_spec": json.dumps(spec),
        "encryption": None, "item_loader": "PyTreeLoader",
    }  # fmt: skip
    (folder / "index.json").write_text(json.dumps({"chunks": chunks, "config": config}))
    return records


class TestLitDataInABucket(StoreConformance):
    columns_kept = ("who", "dose")

    @pytest.fixture(scope="class")
    @classmethod
    def filled(cls, endpoint, tmp_path_factory):
        folder = tmp_path_factory.mktemp("litdata")
        records = litdata_of(folder)
        upload(endpoint, folder, "litdata")
        return store.open_store(url_of("litdata", endpoint, "litdata")), records

    @pytest.fixture(autouse=True)
    def given(self, filled):
        self.store, self.records = filled


class TestFilesInABucket(StoreConformance):
    columns_kept = ("class",)

    @pytest.fixture(scope="class")
    @classmethod
    def filled(cls, endpoint, tmp_path_factory):
        folder = tmp_path_factory.mktemp("files")
        records = []
        for number in range(12):
            name = ["cat", "dog", "élan"][number % 3]
            payload = bytes([number]) * (100 * number)
            (folder / name).mkdir(exist_ok=True)
            (folder / name / f"{number}.jpg").write_bytes(payload)
            records.append(Record(f"{name}/{number}.jpg", payload, number % 3, {"class": name}))
        (folder / "notes.txt").write_text("beside the classes")
        (folder / "cat" / ".DS_Store").write_text("of a system")
        upload(endpoint, folder, "files")
        return store.open_store(url_of("files", endpoint, "files")), sorted(records, key=lambda record: record.key)

    @pytest.fixture(autouse=True)
    def given(self, filled):
        self.store, self.records = filled


class TestParquetFiles:
    def test_token_ids_are_arrays(self, tmp_path):
        table = pa.table(
            {"text": ["a", "b"], "input_ids": pa.array([[1, 2, 3], [4]], pa.list_(pa.int32())), "n": [1, None]}
        )
        pq.write_table(table, tmp_path / "a.parquet")
        opened = store.open_store(f"parquet://{tmp_path}/a.parquet")
        found = [np.load(io.BytesIO(opened.get(key).payload)) for key in opened.keys()]  # noqa: SIM118
        assert [(each.tolist(), each.dtype) for each in found] == [([1, 2, 3], np.int32), ([4], np.int32)]
        assert opened.columns()["n"].tolist() == [1, None]
        text = store.open_store(f"parquet://{tmp_path}/a.parquet?data=text&label=input_ids")
        assert bytes(text.get("000000001").payload) == b"b"
        assert np.load(io.BytesIO(text.get("000000001").label)).tolist() == [4]

    def test_a_row_costs_its_row_group_of_the_payload_and_is_read_once(self, web, tmp_path):
        parquet_of(tmp_path / "a")
        web.files = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
        opened = store.open_store(f"parquet+http://{web.address}/part-{{0..1}}.parquet")
        opened.keys()
        web.asked.clear()
        with reader(opened) as local:
            for key in ("000000004", "000000005", "000000007"):
                local.get(key)
        spans = [span for method, _, span in web.asked if method == "GET"]
        assert len(spans) == len(set(spans)) == 2, "one piece of labels, one of payloads"

    @pytest.mark.parametrize(
        ("content", "told"),
        [
            (b"", "it has 0 bytes"),
            (b"x" * 100, "does not end like one"),
            (b"x" * 90 + b"\xff\xff\0\0PAR1", "are to have"),
        ],
    )
    def test_what_is_none_is_named(self, tmp_path, content, told):
        (tmp_path / "a.parquet").write_bytes(content)
        with pytest.raises(StoreRefused, match=f"'a.parquet' is no Parquet file: .*{told}"):
            store.open_store(f"parquet://{tmp_path}").keys()

    def test_a_page_that_is_damaged_fails_for_its_rows(self, tmp_path):
        parquet_of(tmp_path / "a")
        path = tmp_path / "a" / "part-1.parquet"
        raw = bytearray(path.read_bytes())
        raw[40:90] = b"\xff" * 50
        path.write_bytes(raw)
        opened = store.open_store(f"parquet://{tmp_path}/a")
        with pytest.raises(BadRow, match=r"'000000010' of 'part-1\.parquet' cannot be read"):
            opened.get("000000010")
        assert opened.get("000000001").label == 1


class TestWeb:
    def test_shards_on_a_web_server(self, web, tmp_path):
        expected = {record.key: (record.payload, record.label) for record in mds_of(tmp_path / "a")}
        web.files = {f"set/{path.name}": path.read_bytes() for path in (tmp_path / "a").iterdir()}
        with reader(store.open_store(f"mds+http://{web.address}/set")) as opened:
            assert {row.key: (bytes(row.payload), row.label) for row in opened.get_many(list(expected))} == expected
        assert {span for _, path, span in web.asked if path.endswith(".mds")} >= {None}
        assert all(span is not None for method, path, span in web.asked if method == "GET" and path.endswith(".mds"))

    def test_tars_that_a_list_or_an_index_names(self, web, tmp_path):
        expected = [record.key for record in tars_of(tmp_path / "a")]
        web.files = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
        shards = [{"url": f"gs://other/place/{name}", "nsamples": 4} for name in sorted(web.files)]
        web.files["index.json"] = json.dumps({"wids_version": 1, "shardlist": shards}).encode()
        for name in ("shard-{000..002}.tar", "{shard-000,shard-001,shard-002}.tar", "index.json"):
            assert store.open_store(f"wds+http://{web.address}/{name}").keys() == expected
        with pytest.raises(StoreRefused, match="does not say which files it has"):
            store.open_store(f"wds+http://{web.address}/").keys()
        with pytest.raises(StoreRefused, match=r"no tar files shard-003\.tar and 1 more"):
            store.open_store(f"wds+http://{web.address}/shard-{{000..004}}.tar").keys()

    def test_headers_are_read_once_and_never_again_while_the_tar_is_the_same(self, web, tmp_path):
        tars_of(tmp_path / "a")
        web.files = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
        url = f"wds+http://{web.address}/shard-{{000..002}}.tar?index={tmp_path}/index.sqlite"
        first = store.open_store(url).columns()
        web.asked.clear()
        again = store.open_store(url).columns()
        assert {name: values.tolist() for name, values in again.items()} == {
            name: values.tolist() for name, values in first.items()
        }
        assert {method for method, *_ in web.asked} == {"HEAD"}
        web.files["shard-001.tar"] = web.files["shard-002.tar"]
        web.asked.clear()
        assert store.open_store(url).keys() != first["key"].tolist()
        assert {path for method, path, _ in web.asked if method == "GET"} == {"shard-001.tar"}
        (tmp_path / "index.sqlite").write_bytes(b"no database" * 1000)
        assert len(store.open_store(url).keys()) == 12

    @pytest.mark.parametrize(
        ("odd", "told"),
        [
            ("ignores ranges", r"gives 'shard\.00000\.mds' only whole"),
            ("gives other bytes", r"'000000001' of 'shard\.00000\.mds' cannot be read: its server"),
        ],
    )
    def test_servers_that_give_something_else(self, web, tmp_path, odd, told):
        mds_of(tmp_path / "a")
        web.files = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
        with reader(store.open_store(f"mds+http://{web.address}")) as opened:
            opened.get("000000000")
            web.odd = odd
            with pytest.raises((BadRow, StoreRefused), match=told):
                opened.get("000000001")

    @pytest.mark.parametrize("odd", [None, "forgets conditions"])
    def test_a_shard_that_is_another_one_in_mid_epoch(self, web, tmp_path, odd):
        mds_of(tmp_path / "a")
        web.files = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
        web.odd = odd
        with reader(store.open_store(f"mds+http://{web.address}")) as opened:
            opened.get("000000000")
            web.files["shard.00000.mds"] = bytes(reversed(web.files["shard.00000.mds"]))
            with pytest.raises(BadRow, match=r"'000000001' of 'shard\.00000\.mds' cannot be read: it was replaced"):
                opened.get("000000001")
            del web.files["shard.00000.mds"]
            with pytest.raises(BadRow, match=r"'000000002' of 'shard\.00000\.mds' cannot be read: it is gone"):
                opened.get("000000002")
            assert opened.get("000000004").label == 1

    def test_a_file_that_is_another_one_in_mid_epoch(self, tmp_path):
        mds_of(tmp_path / "a")
        opened = store.open_store(f"mds+file://{tmp_path}/a")
        opened.get("000000000")
        shard = tmp_path / "a" / "shard.00000.mds"
        shard.write_bytes(bytes(reversed(shard.read_bytes())) + b"x")
        with pytest.raises(BadRow, match=r"'000000001' of 'shard\.00000\.mds' cannot be read: it was replaced"):
            opened.get("000000001")


class TestAddresses:
    def test_where_aws_says_the_endpoint_is(self, endpoint, tmp_path, monkeypatch):
        mds_of(tmp_path / "a")
        upload(endpoint, tmp_path / "a", "outside")
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        assert len(store.open_store("mds+s3://bucket/outside").keys()) == 10

    @pytest.mark.parametrize(
        ("url", "told"),
        [
            ("mds+ftp://host/x", "read from s3, gs, az, https, http, file"),
            ("sqlite+s3://bucket/x", "no store has the scheme"),
            ("mds+s3:///x", r"write mds\+s3://bucket/prefix"),
            ("mds+s3://b/x?endpoint=host", "endpoint= takes http"),
            ("mds+s3://b/x?lable=y", "no option 'lable'"),
            ("mds+s3://b/x?anonymous=perhaps", "takes only 'true'"),
            ("mds+https://me:hunter2@host/x", "without a password"),
            ("mds+file://host/x", r"write mds\+file:///folder"),
        ],
    )
    def test_addresses_that_are_none(self, url, told):
        with pytest.raises(BadStoreUrl, match=told) as caught:
            store.open_store(url)
        assert "hunter2" not in str(caught.value)

    def test_nothing_there(self, endpoint):
        with pytest.raises(StoreRefused, match=r"there is no index\.json"):
            store.open_store(url_of("mds", endpoint, "nowhere")).keys()
        with pytest.raises(StoreRefused, match="there are no tar files"):
            store.open_store(url_of("wds", endpoint, "nowhere")).keys()
        with pytest.raises(StoreRefused, match="there is no such bucket"):
            store.open_store(f"wds+s3://key:secret@nobucket/x?endpoint={endpoint}").keys()


class TestWhatIsThere:
    """A place that is named without saying what it holds."""

    def test_in_a_bucket(self, endpoint, tmp_path):
        mds_of(tmp_path / "a")
        tars_of(tmp_path / "b")
        upload(endpoint, tmp_path / "a", "hints/a")
        upload(endpoint, tmp_path / "b", "hints/b/train")
        (tmp_path / "c").mkdir()
        (tmp_path / "c" / "x.jpg").write_bytes(b"x")
        upload(endpoint, tmp_path / "c", "hints/c")
        for prefix, told in (
            (
                "hints/a",
                r"no headrace.json: what lies there are MDS shards: mds\+s3://key:\*\*\*@bucket/hints/a\?endpoint",
            ),
            ("hints/b", r"WebDataset tars: wds\+s3://key:\*\*\*@bucket/hints/b/train\?endpoint"),
            ("hints/c", r"plain objects: files\+s3://key:\*\*\*@bucket/hints/c\?endpoint"),
            ("hints/d", "nothing was stored there yet"),
        ):
            with pytest.raises(StoreRefused, match=told):
                store.open_store(f"s3://key:secret@bucket/{prefix}?endpoint={endpoint}").keys()

    def test_in_a_folder(self, tmp_path):
        mds_of(tmp_path / "a")
        tars_of(tmp_path / "b" / "train")
        for folder, told in (("a", r"mds\+file:///.*/a reads"), ("b", r"wds\+file:///.*/b/train reads")):
            with pytest.raises(StoreRefused, match=told):
                store.open_store(f"file://{tmp_path}/{folder}").keys()
        (tmp_path / "b" / "notes.txt").write_text("a sample")
        assert len(store.open_store(f"file://{tmp_path}/b?labels=none").keys()) == 4


def test_training_from_a_bucket_and_splits_by_metadata(endpoint, tmp_path):
    """The fetch stage brings the rows; what a split and labels need is read without payloads."""
    import headrace

    tars_of(tmp_path / "a")
    upload(endpoint, tmp_path / "a", "training")
    url = url_of("wds", endpoint, "training", f"&index={tmp_path}/index.sqlite")
    chosen = headrace.split(store.open_store(url).columns(), {"all": 1}, where="class = 'a'").keys("all")
    dataset = headrace.StoreDataset(url, split=chosen, decode=len, keys=True, metadata=["dose"])
    assert set(dataset.labels.tolist()) == {0}
    with headrace.DataLoader(dataset, batch_size=2, num_workers=1, shuffle=True) as loader:
        found = {key: size for sizes, _, who in loader for key, size in zip(who["key"], sizes.tolist(), strict=True)}
    assert found == {f"train/{number:04}": 600 * number for number in range(0, 12, 2)}


def test_shards_are_ingested_from_where_they_lie(endpoint, tmp_path):
    from headrace.store.ingest import ReadOptions, ingest

    mds_of(tmp_path / "a")
    upload(endpoint, tmp_path / "a", "source")
    outcome = ingest(url_of("mds", endpoint, "source"), f"sqlite:///{tmp_path}/a.db", ReadOptions())
    assert (outcome.written, outcome.failures) == (10, ())
    with reader(store.open_store(f"sqlite:///{tmp_path}/a.db")) as made:
        assert sorted(made.columns()["who"].tolist()) == [f"p{number}é" for number in range(10)]


def test_samples_of_a_damaged_shard_are_skipped_and_listed(endpoint, tmp_path):
    import headrace

    records = mds_of(tmp_path / "a")
    upload(endpoint, tmp_path / "a", "damaged")
    url = url_of("mds", endpoint, "damaged")
    dataset = headrace.StoreDataset(url, decode=bytes)
    other = tmp_path / "b"
    mds_of(other)
    shard = other / "shard.00000.mds"
    shard.write_bytes(bytes(reversed(shard.read_bytes())))
    with headrace.DataLoader(
        dataset, batch_size=2, num_workers=1, on_error=headrace.Skip(max_fraction=1.0), collate_fn=list
    ) as loader:
        bucket = Bucket(StoreUrl.parse(f"s3://key:secret@bucket/damaged?endpoint={endpoint}"))
        asyncio.run(bucket.put(shard.name, shard.read_bytes()))
        bucket.close()
        found = [payload for batch in loader for payload, _ in batch]
        assert found == [record.payload for record in records[4:]]
        failures = loader.stats().skipped
    assert len(failures) == 4
    assert all("shard.00000.mds" in str(failure) for failure in failures)


def test_samples_by_id_from_shards(endpoint, tmp_path):
    import headrace

    records = tars_of(tmp_path / "a")
    upload(endpoint, tmp_path / "a", "byid")
    url = url_of("wds", endpoint, "byid", f"&index={tmp_path}/index.sqlite")
    keys = [record.key for record in records[5:8]]
    assert {each.key: bytes(each.data) for each in headrace.fetch(url, keys)} == {
        record.key: record.payload for record in records[5:8]
    }


def test_neighbours_in_several_pages_are_each_their_own(web, tmp_path):
    """A block of the planner's may reach over pages: none of its rows is another's."""
    count = 40
    table = pa.table({"image": [b"%d." % n * (200 + n) for n in range(count)], "label": list(range(count))})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=20, write_page_index=True, data_page_size=2000, write_batch_size=2)
    web.files = {"a.parquet": path.read_bytes()}
    opened = store.open_store(f"parquet+http://{web.address}/a.parquet")
    lying = opened.lying(opened.keys())
    assert not lying.whole
    assert lying.counts.tolist() == [20, 20]
    assert int(lying.sizes.sum()) < path.stat().st_size

    async def rows():
        session = await opened.connect()
        try:
            return await session.around("000000027", 7, 12)
        finally:
            await session.close()

    found = asyncio.run(rows())
    assert [(bytes(row.payload), row.label) for row in found] == [(b"%d." % n * (200 + n), n) for n in range(20, 40)]
