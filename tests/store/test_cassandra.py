import pytest

from headrace import store
from headrace.core.errors import StoreRefused, StoreUnavailable
from headrace.store import LabelKind
from headrace.store.cassandra import cassandra_driver
from headrace.testing.stores import StoreConformance, WritableConformance, fill, sample_records

pytestmark = pytest.mark.service


class TestReading(StoreConformance):
    options = "consistency=ONE"

    @pytest.fixture(scope="class")
    @classmethod
    def filled(cls, cassandra_server):
        records = sample_records(labels=cls.labels)
        with cassandra_server.keyspace() as keyspace:
            made = store.open_writable(f"{cassandra_server.url(keyspace)}&{cls.options}")
            fill(made, records, cls.labels)
            yield made, records

    @pytest.fixture(autouse=True)
    def given(self, filled):
        self.store, self.records = filled


class TestUuidsAndBlobs(TestReading):
    labels = LabelKind.BLOB
    options = "id_type=uuid"


class TestNoLabels(TestReading):
    labels = LabelKind.NONE


class TestWriting(WritableConformance):
    @pytest.fixture(autouse=True)
    def given(self, cassandra_server, keyspace):
        self.records = sample_records(6)
        self.store = store.open_writable(cassandra_server.url(keyspace))
        fill(self.store, self.records)


def test_tables_of_others_are_told_by_their_write_times(cassandra_server, keyspace):
    url = cassandra_server.url(keyspace)
    made = store.open_writable(url)
    fill(made, sample_records(6))
    own = made.provenance()
    cassandra_server.execute(f"DROP TABLE {keyspace}.samples_metadata_state")
    first = made.provenance()
    assert first.identity == own.identity
    assert first.revision.startswith("6 rows up to ")
    assert made.provenance() == first
    key = sample_records(6)[0].key
    cassandra_server.execute(f"INSERT INTO {keyspace}.samples (id, label, data) VALUES ('{key}', 2, 0x00)")
    assert made.provenance().revision != first.revision


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Provided username a and/or password are incorrect", StoreRefused),
        ("Unable to perform authentication: Cannot achieve consistency level QUORUM", StoreUnavailable),
    ],
)
def test_a_login_that_nodes_cannot_look_up_is_no_wrong_password(said, kind):
    assert type(cassandra_driver.told(cassandra_driver.Failure(said), "cassandra://a")) is kind
