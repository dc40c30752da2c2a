"""Answers are read into the places where they are to lie, or not at all, however they are cut on the way."""

import asyncio
import socket

import pytest

from headrace.remote import messages
from headrace.remote.lane_stream import GroupStream, opened
from headrace.remote.messages import EntryKind, Head, Subject


class Reader:
    """Has room for so many answers."""

    def __init__(self, room=100):
        self.left, self.events, self.places = room, [], []
        self.changed = asyncio.Event()

    def note(self, *event):
        self.events.append(event)
        self.changed.set()

    def ready(self, lane):
        self.note("ready", lane)

    def heard(self, lane):
        pass

    def room(self, lane, head, table):
        if not self.left:
            self.note("full", lane)
            return None
        self.left -= 1
        self.places = [bytearray(size) for _, size in table]
        return [memoryview(place) for place in self.places]

    def came(self, lane, head, table):
        self.note("came", head.number, [bytes(place) for place in self.places])

    def lost(self, lane, why):
        self.note("lost", why)

    def refused(self, lane, why):
        self.note("refused", why)

    async def until(self, count):
        while len(self.events) < count:
            self.changed.clear()
            await self.changed.wait()
        return self.events


def answer(number, *contents):
    return b"".join(messages.answer(number, 0, [(EntryKind.VALUE, content) for content in contents]))


def played(data, count, reader, act=None, piece=None):
    """What a reader is told of what a lane sends, in pieces."""

    async def play():
        ours, theirs = socket.socketpair()
        stream = GroupStream(3, ours, reader)
        theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        for at in range(0, len(data), piece or len(data)):
            await loop.sock_sendall(theirs, data[at : at + (piece or len(data))])
            await asyncio.sleep(0)
        events = await reader.until(count)
        if act is not None:
            await act(stream, reader)
        stream.close()
        stream.close()
        theirs.close()
        return events

    return asyncio.run(asyncio.wait_for(play(), 60))


@pytest.mark.parametrize("piece", [1, 7, 64, None])
def test_messages_are_told_apart_wherever_they_are_cut(piece):
    data = (
        messages.words(Subject.HELLO, "1") + Head(Subject.BEAT).packed() + answer(1, b"one", b"", b"three") + answer(2)
    )
    events = played(data, 3, Reader(), piece=piece)
    assert events == [("ready", 3), ("came", 1, [b"one", b"", b"three"]), ("came", 2, [])]


def test_more_entries_than_one_call_takes():
    contents = [bytes([number % 256]) * (number % 5) for number in range(200)]
    assert played(answer(1, *contents), 1, Reader()) == [("came", 1, contents)]


def test_what_finds_no_room_waits_on_the_way():
    async def make_room(stream, reader):
        assert stream.is_paused
        assert not stream.is_reading
        reader.left = 2
        stream.resume()
        assert stream.is_reading
        await reader.until(3)

    events = played(answer(1, b"first") + answer(2, b"second"), 1, Reader(room=0), make_room)
    assert events == [("full", 3), ("came", 1, [b"first"]), ("came", 2, [b"second"])]


def test_what_is_no_message_ends_the_stream():
    assert played(b"x" * 100, 1, Reader()) == [("lost", "what came over the stream is no message")]


def test_a_lane_that_refuses_says_why():
    assert played(messages.words(Subject.REFUSAL, "no disk"), 1, Reader()) == [("refused", "no disk")]


def test_an_address_where_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(OSError, match="Connect call failed"):
        asyncio.run(opened("127.0.0.1", port, b"token", 5))
