import pytest

from headrace import store
from headrace.core.errors import StoreRefused, StoreUnavailable
from headrace.store import LabelKind
from headrace.store.cassandra import driver
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


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Provided username a and/or password are incorrect", StoreRefused),
        ("Unable to perform authentication: Cannot achieve consistency level QUORUM", StoreUnavailable),
    ],
)
def test_a_login_that_nodes_cannot_look_up_is_no_wrong_password(said, kind):
    assert type(driver.told(driver.Failure(said), "cassandra://a")) is kind
