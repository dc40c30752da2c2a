"""What travels between a lane and the fetcher."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.remote import messages
from headrace.remote.messages import EntryKind, GroupKey, Head, Request, Subject

entries = st.lists(st.tuples(st.sampled_from(EntryKind), st.binary(max_size=200)), max_size=8)


@given(st.integers(0, 2**63), entries)
def test_an_answer_says_where_its_entries_end(number, given_entries):
    data = b"".join(messages.answer(number, 5, given_entries))
    head = Head.read(data[: messages.HEAD.size])
    assert (head.number, head.samples, head.took) == (number, len(given_entries), 5)
    begin = messages.HEAD.size + messages.table_size(head.samples)
    table = messages.read_table(data[messages.HEAD.size : begin], head)
    assert table == [(kind, len(entry)) for kind, entry in given_entries]
    assert data[begin:] == b"".join(entry for _, entry in given_entries)


@given(st.binary(min_size=messages.HEAD.size, max_size=messages.HEAD.size))
def test_noise_is_no_message_or_a_small_one(noise):
    try:
        head = Head.read(noise)
    except ValueError:
        return
    assert head.size <= messages.LARGEST
    assert head.kind in list(Subject)


def test_table_that_promises_more_than_the_message_is_refused():
    data = b"".join(messages.answer(1, 0, [(EntryKind.VALUE, b"12345678")]))
    head = Head.read(data[: messages.HEAD.size])._replace(size=9)
    with pytest.raises(ValueError, match="no answer"):
        messages.read_table(data[messages.HEAD.size :][: messages.table_size(1)], head)


samples = st.tuples(st.integers() | st.text(), st.integers(0, 3))


@given(st.integers(0, 2**63), st.integers(0, 1000), st.lists(samples, min_size=1))
def test_requests_and_keys_come_back_as_they_were(seed, epoch, wanted):
    keys = [GroupKey(seed, epoch, sample, form) for sample, form in wanted]
    assert [GroupKey.of(key.text()) for key in keys] == keys
    found = messages.read_request(messages.request(3, Request.of(keys))[messages.HEAD.size :])
    assert found == Request.of(keys)
    assert (found.seed, found.epoch, found.indices) == (seed, epoch, [key.sample for key in keys])
    assert found.forms == ([key.form for key in keys] if any(key.form for key in keys) else [])


def test_tokens_are_secrets():
    one, other = messages.new_token(), messages.new_token()
    assert len(one) == messages.TOKEN
    assert messages.same_token(one, bytes(one))
    assert not messages.same_token(one, other)
