"""What goes wrong between a client and real Cassandra servers, and what it is called."""

import asyncio
import os
import threading

import pytest

from headrace import store
from headrace.core.errors import BadRow, BadStoreUrl, MissingKey, StoreRefused, StoreUnavailable
from headrace.core.options import Prefetch, Retry
from headrace.store import Blocking, LabelKind, Record, Retrying, Schema, Tally
from headrace.store.reading.in_flight import arrivals
from headrace.store.reading.window import Window
from headrace.testing.stores import fill, reader, sample_records
from tests.services.fixtures import tls_front
from tests.store.test_loading import ROWS, loader_of, records

pytestmark = pytest.mark.service

FULL, HOLLOW = (f"{digit * 8}-0000-0000-0000-000000000000" for digit in "01")


@pytest.fixture(scope="module")
def filled(cassandra_server):
    """The keyspace of twenty samples that these tests only read."""
    with cassandra_server.keyspace() as name:
        fill(store.open_writable(cassandra_server.url(name)), sample_records())
        yield name


def read(url):
    with reader(store.open_store(url)) as local:
        return local.get(sample_records()[0].key)


class TestTls:
    def test_with_the_right_authority(self, cassandra_server, filled, tls):
        assert read(cassandra_server.url(filled, ca=tls.ca)).label == 0

    def test_by_name(self, cassandra_server, filled, tls):
        at = f"localhost:{cassandra_server.port}"
        assert read(cassandra_server.url(filled, ca=tls.ca, at=at)).label == 0

    def test_with_another_authority(self, cassandra_server, filled, tls):
        with pytest.raises(StoreRefused, match=r"(?i)certificate"):
            read(cassandra_server.url(filled, ca=tls.other_ca))

    @pytest.mark.parametrize("bad", ["expired", "other_host"])
    def test_with_a_certificate_that_is_no_good(self, cassandra_server, filled, tls, bad):
        front = tls_front(getattr(tls, bad), ("127.0.0.1", cassandra_server.port))
        with front as port, pytest.raises(StoreRefused, match=r"(?i)expired|match"):
            read(cassandra_server.url(filled, ca=tls.ca, at=f"127.0.0.1:{port}"))

    def test_only_the_host_is_wrong_with_the_certificate_of_another_host(self, cassandra_server, filled, tls):
        with tls_front(tls.other_host, ("127.0.0.1", cassandra_server.port)) as port:
            url = cassandra_server.url(filled, ca=tls.ca, at=f"127.0.0.1:{port}", verify="certificate")
            assert read(url).label == 0

    def test_a_file_that_is_not_there(self, cassandra_server, filled):
        with pytest.raises(StoreRefused, match="ca= file cannot be read"):
            read(cassandra_server.url(filled, ca="/nowhere/ca.pem"))


@pytest.mark.timeout(600)
class TestPair:
    """Two nodes that want certificates. The last test kills one."""

    @pytest.fixture(scope="class")
    @classmethod
    def url(cls, cassandra_pair, tls):
        given = {"ca": tls.ca, "cert": tls.client.cert, "key": tls.client.key, "replication": 2}
        fill(store.open_writable(cassandra_pair.url("pair", consistency="ALL", **given)), records())
        return cassandra_pair.url("pair", ca=tls.ca)

    def test_with_a_certificate(self, url, tls):
        with reader(store.open_store(f"{url}&cert={tls.client.cert}&key={tls.client.key}")) as local:
            assert local.get("s0007").label == 7

    def test_without_one(self, url):
        with pytest.raises((StoreRefused, StoreUnavailable)):
            read(url)

    def test_with_a_stranger_s(self, url, tls):
        with pytest.raises((StoreRefused, StoreUnavailable)):
            read(f"{url}&cert={tls.stranger.cert}&key={tls.stranger.key}")

    def test_one_that_is_killed_during_an_epoch_costs_no_sample(self, url, tls, cassandra_pair):
        secure = f"{url}&cert={tls.client.cert}&key={tls.client.key}&consistency=LOCAL_ONE"
        with loader_of(secure, retry=Retry(first=0.05)) as loader:
            found = []
            for number, (_, label) in enumerate(loader):
                found += label.tolist()
                if number == 2:
                    cassandra_pair.kill(1)
        assert sorted(found) == list(range(ROWS))


class TestRights:
    def test_a_wrong_password(self, cassandra_server, filled):
        url = cassandra_server.url(filled).replace("cassandra:cassandra@", "cassandra:hunter2@")
        with pytest.raises(StoreRefused, match=r"(?i)credentials|password") as caught:
            read(url)
        assert "hunter2" not in str(caught.value)
        assert "hunter2" not in repr(caught.value)

    def test_a_password_from_a_file(self, cassandra_server, filled, tmp_path):
        (tmp_path / "secret").write_text("cassandra\n")
        url = cassandra_server.url(filled, password_file=tmp_path / "secret")
        assert read(url.replace("cassandra:cassandra@", "cassandra@")).label == 0

    def test_a_table_one_may_not_read(self, cassandra_server, filled):
        user = f"u{os.getpid()}"
        cassandra_server.execute(f"CREATE ROLE IF NOT EXISTS {user} WITH PASSWORD = 'p' AND LOGIN = true")
        try:
            with pytest.raises(StoreRefused, match=r"(?i)permission"):
                read(cassandra_server.url(filled).replace("cassandra:cassandra@", f"{user}:p@"))
        finally:
            cassandra_server.execute(f"DROP ROLE {user}")


class TestTables:
    def test_one_that_is_not_there(self, cassandra_server, filled):
        with pytest.raises(StoreRefused, match=r"there is no table .*\.nope"):
            read(cassandra_server.url(filled, table="nope"))
        with pytest.raises(StoreRefused, match="there is no table"):
            store.open_store(cassandra_server.url("nope")).keys()

    def test_columns_that_are_not_there(self, cassandra_server, filled):
        with pytest.raises(StoreRefused, match=r"'image' of samples is not there; the table has data blob"):
            read(cassandra_server.url(filled, data_column="image"))

    def test_somebody_else_s_table_named_by_its_columns(self, cassandra_server, keyspace):
        cassandra_server.execute(
            f"CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}",
            f'CREATE TABLE {keyspace}.patches ("patchId" uuid PRIMARY KEY, mask blob, "Image" blob)',
            f'INSERT INTO {keyspace}.patches ("patchId", mask, "Image") VALUES ({FULL}, 0x01, 0x02)',
            f'INSERT INTO {keyspace}.patches ("patchId", mask) VALUES ({HOLLOW}, 0x01)',
        )
        named = {"id_column": "patchId", "label_column": "mask", "data_column": "Image"}
        opened = store.open_store(cassandra_server.url(keyspace, table="patches", **named))
        assert opened.keys() == [FULL, HOLLOW]
        assert opened.info().labels is LabelKind.BLOB
        assert list(opened.columns()) == ["key"]
        with reader(opened) as local:
            assert local.get(FULL) == (FULL, b"\2", b"\1")
            with pytest.raises(BadRow, match="has no payload"):
                local.get(HOLLOW)
            with pytest.raises(MissingKey):
                local.get("not a uuid")

    def test_tables_are_made_without_compression(self, cassandra_server, filled):
        query = (
            f"SELECT compression FROM system_schema.tables WHERE keyspace_name = '{filled}' AND table_name = 'samples'"
        )
        assert cassandra_server.execute(query) == [[{"enabled": "false"}]]

    def test_keys_that_are_no_uuids_are_refused_in_writing(self, cassandra_server, keyspace):
        made = store.open_writable(cassandra_server.url(keyspace, id_type="uuid"))
        made.create(Schema(LabelKind.NONE))
        with made.writer() as writer, pytest.raises(store.base.StoreError, match="is no uuid"):
            writer.put([Record("a", b"", None, {})])


class TestNetwork:
    def test_nobody_there(self):
        with pytest.raises(StoreUnavailable):
            read("cassandra://127.0.0.1:1/k/t?timeout=2")

    def test_one_contact_point_of_two_is_dead(self, cassandra_server, filled):
        at = f"127.0.0.9:{cassandra_server.port},127.0.0.1:{cassandra_server.port}"
        assert read(cassandra_server.url(filled, at=at)).label == 0

    def test_a_black_hole_ends_with_the_time_limit_and_is_retried(self, cassandra_server, filled, proxied):
        proxy = proxied(cassandra_server.address)
        tally = Tally()
        url = cassandra_server.url(filled, at=f"127.0.0.1:{proxy.port}", timeout=1)
        patient = Retrying(store.open_store(url), Retry(attempts=40, first=0.01, ceiling=0.1), tally)
        with reader(patient) as local:
            key = sample_records()[0].key
            local.get(key)
            proxy.toxic("timeout", timeout=0)
            cure = threading.Timer(2.5, proxy.cure)
            cure.start()
            assert local.get(key).label == 0
            cure.join()
        assert tally.retries >= 1

    def test_a_black_hole_that_stays_is_named(self, cassandra_server, filled, proxied):
        proxy = proxied(cassandra_server.address)
        url = cassandra_server.url(filled, at=f"127.0.0.1:{proxy.port}", timeout=1)
        with reader(store.open_store(url)) as local:
            key = sample_records()[0].key
            local.get(key)
            proxy.toxic("timeout", timeout=0)
            with pytest.raises(StoreUnavailable, match=key) as caught:
                local.get(key)
            assert f"127.0.0.1:{proxy.port}" in caught.value.server

    def test_a_reset_is_retried_on_another_connection(self, cassandra_server, filled, proxied):
        proxy = proxied(cassandra_server.address)
        url = cassandra_server.url(filled, at=f"127.0.0.1:{proxy.port}")
        patient = Retrying(store.open_store(url), Retry(attempts=40, first=0.05, ceiling=0.2))
        with reader(patient) as local:
            keys = [record.key for record in sample_records()]
            local.get(keys[0])
            proxy.enable(on=False)
            cure = threading.Timer(0.5, proxy.cure)
            cure.start()
            assert {fetched.key for fetched in local.get_many(keys) if isinstance(fetched, store.Row)} == set(keys)
            cure.join()


@pytest.mark.soak
@pytest.mark.timeout(900)
class TestCluster:
    @pytest.mark.leaks_ok("nodes of the cluster are started again, and stopped with it")
    def test_an_epoch_stays_exact_while_a_node_dies_and_returns(self, cassandra_cluster):
        url = cassandra_cluster.url("epochs", replication=2)
        made = store.open_writable(url)
        made.create(Schema())
        keys = [f"k{number:04}" for number in range(600)]
        with made.writer() as writer:
            writer.put([Record(key, key.encode() * 200, number, {}) for number, key in enumerate(keys)])
        patient = Retrying(store.open_store(url), Retry(first=0.05, ceiling=1.0))

        async def epoch(trouble):
            session = await patient.connect()
            seen = []
            try:
                async for row in arrivals(session, keys, Window(Prefetch(window=32, ramp=0), 1)):
                    seen.append(row)
                    if len(seen) == 150:
                        await asyncio.to_thread(trouble)
            finally:
                await session.close()
            return seen

        seen = asyncio.run(epoch(lambda: cassandra_cluster.kill(1)))
        assert sorted(row.key for row in seen) == keys
        assert all(row.label == int(row.key[1:]) and row.payload == row.key.encode() * 200 for row in seen)
        cassandra_cluster.start(1)
        seen = asyncio.run(epoch(lambda: cassandra_cluster.kill(2)))
        assert sorted(row.key for row in seen) == keys
        cassandra_cluster.start(2)

    @pytest.mark.leaks_ok("nodes of the cluster are started again, and stopped with it")
    def test_a_row_that_one_replica_missed_is_found_at_another(self, cassandra_cluster):
        url = cassandra_cluster.url("missed", replication=2, consistency="ONE")
        made = store.open_writable(url)
        made.create(Schema())
        cassandra_cluster.kill(1)
        keys = [f"k{number:04}" for number in range(60)]
        with made.writer() as writer:
            writer.put([Record(key, key.encode(), number, {}) for number, key in enumerate(keys)])
        cassandra_cluster.start(1)  # it has none of them
        with reader(Retrying(store.open_store(url), Retry(first=0.05, ceiling=1.0))) as local:
            for _ in range(3):  # whichever replica is asked
                assert [local.get(key).label for key in keys] == list(range(60))
            with pytest.raises(MissingKey, match="nowhere"):
                local.get("nowhere")


class TestUrls:
    @pytest.mark.parametrize(
        ("url", "told"),
        [
            ("cassandra://h", "write cassandra://"),
            ("cassandra://h/keyspace", "write cassandra://"),
            ("cassandra:///k/t", "write cassandra://"),
            ("cassandra://a:1,b:2/k/t", "one port"),
            ("cassandra://h/k/t?consistency=local_one", "takes one of"),
            ("cassandra://h/k/t?cert=x&key=y", "TLS needs ca="),
            ("cassandra://h/k/t?verify=name", "TLS needs ca="),
            ("cassandra://h/k/t?ca=x&cert=y", "come together"),
            ("cassandra://h/k/t?ca=x&verify=none", "takes one of address, name, certificate"),
            ("cassandra://h/k/t?id_type=int", "takes one of"),
            ("cassandra://h/k/t?connections=0", "whole number"),
            ("cassandra://h/k/t?conections=3", "no option 'conections'"),
        ],
    )
    def test_what_cannot_be_honoured_is_refused(self, url, told):
        with pytest.raises(BadStoreUrl, match=told):
            store.open_store(url)

    def test_nothing_shows_a_password(self):
        opened = store.open_store("cassandra://me:hunter2@h/k/t")
        for shown in (repr(opened), opened.name, repr(Blocking(opened)), repr(Retrying(opened))):
            assert "hunter2" not in shown
