"""Objects on an S3 server (moto's, which speaks the real protocol over HTTP)."""

import asyncio
import json
import tracemalloc
import urllib.request

import pytest

from headrace import store
from headrace.core.errors import BadStoreUrl, StoreRefused, StoreUnavailable
from headrace.store import Kind, LabelKind, Record, Schema
from headrace.testing.stores import StoreConformance, WritableConformance, fill, reader, sample_records
from tests.services import objects
from tests.services.objects import url_of

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def endpoint():
    with objects.endpoint() as found:
        yield found


def put(place, content):
    headers = {"Content-Type": "application/octet-stream"}  # else it is taken for a form, and nothing is stored
    urllib.request.urlopen(urllib.request.Request(place, content, headers, method="PUT"), timeout=10).close()


class TestReading(StoreConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def filled(cls, endpoint):
        records = sample_records(labels=cls.labels)
        made = store.open_writable(url_of(endpoint, cls.__name__))
        fill(made, records, cls.labels)
        return made, records

    @pytest.fixture(autouse=True)
    def given(self, filled):
        self.store, self.records = filled


class TestBlobs(TestReading):
    labels = LabelKind.BLOB


class TestNoLabels(TestReading):
    labels = LabelKind.NONE


class TestWriting(WritableConformance):
    @pytest.fixture(autouse=True)
    def given(self, endpoint, request):
        self.records = sample_records(6)
        self.store = store.open_writable(url_of(endpoint, f"writing/{request.node.name}"))
        fill(self.store, self.records)


class TestRevisions:
    def test_objects_that_a_writer_left_without_their_metadata_are_another_revision(self, endpoint, monkeypatch):
        records = sample_records(2)
        made = store.open_writable(url_of(endpoint, "interrupted"))
        fill(made, records)
        before = made.provenance()
        with made.writer() as writer:
            monkeypatch.setattr(type(writer), "_append", _fails)
            with pytest.raises(RuntimeError, match="killed here"):
                writer.put([records[0]._replace(payload=b"half")])
            with reader(made) as local:
                assert bytes(local.get(records[0].key).payload) == b"half"
            between = made.provenance()
            assert between.revision != before.revision
            with pytest.raises(RuntimeError, match="killed here"):
                writer.remove([records[0].key])
            assert made.provenance().revision != between.revision

    def test_a_store_of_an_older_release_is_told_by_its_metadata(self, endpoint):
        records, url = sample_records(2), url_of(endpoint, "older")
        made = store.open_writable(url)
        fill(made, records)
        asyncio.run(made._bucket.delete("revision"))
        before = made.provenance()
        assert made.provenance() == before
        assert asyncio.run(_said(made)) is None
        fill(made, records)
        assert made.provenance().revision != before.revision
        assert asyncio.run(_said(made)) == made.provenance().revision


async def _said(made):
    return await (await made.connect()).revision()


async def _fails(*_):
    raise RuntimeError("killed here")


class TestKeys:
    def test_any_text_is_a_key(self, endpoint):
        made = store.open_writable(url_of(endpoint, "keys"))
        made.create(Schema())
        keys = ["a/b", "..", ".", "100%", "é ü", "a//b", "?x=1&y#z", "/", "data", "no\udcfftext"]
        with made.writer() as writer:
            writer.put([Record(key, ascii(key).encode(), number, {}) for number, key in enumerate(keys)])
        with reader(made) as local:
            found = {row.key: bytes(row.payload).decode() for row in local.get_many(keys)}
            assert found == {key: ascii(key) for key in keys}
        assert made.keys() == sorted(keys)


class TestFailures:
    def test_nothing_stored_there(self, endpoint):
        with pytest.raises(StoreRefused, match=r"no headrace\.json"):
            store.open_store(url_of(endpoint, "nothing")).keys()

    def test_no_such_bucket(self, endpoint):
        with pytest.raises(StoreRefused, match="nowhere"):
            store.open_store(url_of(endpoint, "x", bucket="nowhere")).keys()
        with pytest.raises(StoreRefused, match="bucket"):
            store.open_writable(url_of(endpoint, "x", bucket="nowhere")).create(Schema())

    def test_nobody_there(self):
        with pytest.raises(StoreUnavailable) as caught:
            store.open_store("s3://me:hunter2@bucket/x?endpoint=http://127.0.0.1:1").keys()
        assert "hunter2" not in str(caught.value)

    def test_a_description_that_makes_no_sense(self, endpoint):
        for number, text in enumerate((b"[]", b"{", json.dumps({"format": 9}).encode())):
            put(f"{endpoint}/bucket/odd{number}/headrace.json", text)
            with pytest.raises(StoreRefused, match=r"headrace\.json|format 9"):
                store.open_store(url_of(endpoint, f"odd{number}")).keys()

    @pytest.mark.parametrize(
        "line",
        [b"{", b"[]", b'{"key": 1}', b'{"key": "a", "bytes": "x"}', b'{"key": "a", "bytes": 99999999999999999999}'],
    )
    def test_metadata_that_make_no_sense(self, endpoint, line):
        made = store.open_writable(url_of(endpoint, f"damaged{line.hex()}"))
        made.create(Schema(LabelKind.NONE))
        put(f"{endpoint}/bucket/damaged{line.hex()}/metadata/1-x.jsonl", line)
        with pytest.raises(StoreRefused, match="metadata is damaged"):
            made.info()

    @pytest.mark.parametrize("url", ["s3://bucket:80/x", "s3:///x", "s3://b/x?endpoint=host:80", "s3://b/x?end=1"])
    def test_urls_that_are_none(self, url):
        with pytest.raises(BadStoreUrl):
            store.open_store(url)


class TestKeysThatAreThere:
    def test_are_known_exactly_in_little_memory(self):
        from headrace.store.catalogues.known_keys import KnownKeys

        there, count = KnownKeys(), 50_000
        tracemalloc.start()
        for number in range(count):
            there.note([f"a-rather-long-key-{number:08}"], there=True)
        taken = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert taken < 60 * count
        asked = [f"a-rather-long-key-{number:08}" for number in range(count - 5000, count + 5000)]
        assert there.present(asked) == set(asked[:5000])
        for key in asked[:4000]:
            there.note([key], there=False)
        there.note(asked[1000:1001], there=True)
        assert there.present(asked) == {asked[1000], *asked[4000:5000]}

    def test_the_last_part_counts_whatever_the_clock_says(self, endpoint, monkeypatch):
        made = store.open_writable(url_of(endpoint, "clock"))
        made.create(Schema(columns={"age": Kind.INTEGER}))
        for age, now in enumerate([2_000, 1_000, 1_000, 500]):
            monkeypatch.setattr("headrace.store.objects.object_store.time.time_ns", lambda now=now: now)
            with made.writer() as writer:
                writer.put([Record("a", b"1", 1, {"age": age})])
            assert made.columns()["age"].tolist() == [age]

    def test_the_last_part_that_names_a_key_counts(self, endpoint):
        made = store.open_writable(url_of(endpoint, "twice"))
        made.create(Schema(columns={"age": Kind.INTEGER}))
        with made.writer() as writer:
            writer.put([Record("b", b"1", 1, {"age": 1}), Record("a", b"2", 2, {})])
            writer.put([Record("b", b"333", 3, {"age": 3})])
            assert writer.present(["a", "b", "c"]) == {"a", "b"}
        columns = made.columns()
        assert columns["key"].tolist() == ["a", "b"]
        assert columns["age"].tolist() == [None, 3]
        assert columns["bytes"].tolist() == [1, 3]
