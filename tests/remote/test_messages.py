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


@given(st.integers(0, 2**63), st.integers(0, 1000), st.lists(st.integers() | st.text(), min_size=1))
def test_requests_and_keys_come_back_as_they_were(seed, epoch, indices):
    data = messages.request(3, Request(seed, epoch, indices))
    assert messages.read_request(data[messages.HEAD.size :]) == Request(seed, epoch, indices)
    assert GroupKey.of(GroupKey(seed, epoch, indices[0]).text()) == GroupKey(seed, epoch, indices[0])


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_an_entry_is_layout_and_body(layout, body):
    entry = bytearray(messages.entry_size(layout, len(body)))
    messages.write_layout(memoryview(entry), layout)[:] = body
    found, rest = messages.read_entry(memoryview(entry))
    assert (found, bytes(rest)) == (layout, body)


@given(st.binary(max_size=70))
def test_what_is_no_entry_is_refused(noise):
    try:
        layout, body = messages.read_entry(memoryview(noise))
    except ValueError:
        return
    assert len(layout) + len(body) <= len(noise)


def test_tokens_are_secrets():
    one, other = messages.new_token(), messages.new_token()
    assert len(one) == messages.TOKEN
    assert messages.same_token(one, bytes(one))
    assert not messages.same_token(one, other)
