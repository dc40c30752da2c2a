import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import store
from headrace.core.errors import BadStoreUrl, StoreRefused
from headrace.store.cassandra.cql import bound_id
from headrace.store.url import StoreUrl

words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)


class TestParsing:
    def test_takes_a_url_apart(self):
        url = StoreUrl.parse("cassandra://me:s%3Acret@one:9042,[::1]:9043,two/keyspace/table?ca=%2Ftls%2Fca.pem&dc=dc1")
        assert url.scheme == "cassandra"
        assert url.hosts == (("one", 9042), ("::1", 9043), ("two", None))
        assert (url.user, url.password) == ("me", "s:cret")
        assert url.path == "/keyspace/table"
        assert url.options == {"ca": "/tls/ca.pem", "dc": "dc1"}

    @given(words, words, st.dictionaries(words, words, max_size=3), st.lists(words, max_size=3))
    def test_the_full_form_means_the_same(self, user, password, options, parts):
        url = StoreUrl("x", "/" + "/".join(parts), (("host", 1),), user, password, options)
        assert StoreUrl.parse(url.full) == url
        assert pickle.loads(pickle.dumps(url)) == url

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("nonsense", "begins like"),
            ("://x", "begins like"),
            ("cassandra://host:notaport/k/t", "no host"),
            ("cassandra://host:70000/k/t", "no host"),
            ("cassandra://[::1/k/t", "cassandra://"),
            ("s3://bucket/a#b", "%23"),
            ("s3://bucket/a?b", "name=value"),
            ("s3://bucket/a?b=1&b=2", "twice"),
        ],
    )
    def test_refuses_what_is_none(self, text, told):
        with pytest.raises(BadStoreUrl, match=told):
            StoreUrl.parse(text)

    @pytest.mark.parametrize(
        "text", ["me:hunter2@host", "x://me:hunter2@host:port/", "x://me:hunter2@h/a#b", "x://me:hunter2@h?q"]
    )
    def test_an_error_repeats_no_password(self, text):
        with pytest.raises(BadStoreUrl) as caught:
            StoreUrl.parse(text)
        assert "hunter2" not in str(caught.value)


class TestSecrets:
    @given(st.text(st.characters(codec="utf-8", exclude_characters="*\0"), min_size=5, max_size=20))
    def test_a_password_is_never_shown(self, password):
        url = StoreUrl("cassandra", "/k/t", (("h", 1),), "u", "Q" + password)
        for shown in (str(url), repr(url), url.redacted, f"{url}"):
            assert "Q" not in shown
            assert "u:***@h:1" in shown

    def test_a_password_can_come_from_a_file(self, tmp_path):
        file = tmp_path / "password"
        file.write_text("hunter2 \r\nrest")
        url = StoreUrl.parse(f"cassandra://me@h/k/t?password_file={file}")
        assert url.secret() == "hunter2 "
        assert "hunter2" not in repr(url)
        file.unlink()
        with pytest.raises(StoreRefused, match="password file"):
            url.secret()

    def test_without_a_file_it_is_the_url_s(self):
        assert StoreUrl.parse("x://me:p@h/").secret() == "p"
        assert StoreUrl.parse("x://me@h/").secret() is None


class TestOptions:
    def test_an_unknown_one_is_refused_with_those_that_are_known(self):
        with pytest.raises(BadStoreUrl, match=r"'consistancy'.*it takes ca, consistency"):
            StoreUrl.parse("x://h/?consistancy=ONE").only(["ca", "consistency"])

    @pytest.mark.parametrize("text", ["-1", "0", "x", "", "1.5"])
    def test_numbers_are_checked(self, text):
        with pytest.raises(BadStoreUrl, match="port= takes a whole number from 1"):
            StoreUrl.parse(f"x://h/?port={text}").number("port", 1)


class TestOpening:
    def test_an_unknown_scheme_is_refused_with_those_that_are_known(self):
        with pytest.raises(BadStoreUrl, match="there are sqlite://"):
            store.open_store("mongo://me:hunter2@host/db")

    def test_what_can_only_be_read_is_not_written(self, tmp_path):
        with pytest.raises(BadStoreUrl, match="can only be read"):
            store.open_writable(f"file://{tmp_path}")

    @pytest.mark.parametrize(
        "text", ["sqlite:///", "sqlite://host/x", "sqlite:///x?mode=ro", "file://host/x", "file:///x?labels=yes"]
    )
    def test_each_store_refuses_what_it_does_not_take(self, text):
        with pytest.raises(BadStoreUrl):
            store.open_store(text)


@pytest.mark.parametrize(
    ("key", "declared", "bound"),
    [
        ("7", "int", 7), ("-7", "bigint", -7), ("0", "int", 0), (str(2**63 - 1), "bigint", 2**63 - 1),
        *((key, "int", None) for key in ("-0", "07", "+7", "1_0", " 7", "\u0667", "", "x", "9" * 25, str(2**31))),
        (str(2**63), "bigint", None), ("128", "tinyint", None), ("-128", "tinyint", -128),
        ("00000000-0000-4000-8000-00000000000a", "uuid", "00000000-0000-4000-8000-00000000000a"),
        ("00000000-0000-4000-8000-00000000000A", "uuid", None), ("x", "uuid", None), ("x", "text", "x"),
    ],
)  # fmt: skip
def test_a_row_of_cassandra_has_one_key(key, declared, bound):
    assert bound_id(key, declared) == bound
