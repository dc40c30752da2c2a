"""The relay of the benchmarks: everything arrives, unchanged, and never earlier than the link allows."""

import socket
import threading
import time
from contextlib import contextmanager

import pytest

from benchmarks.proxy import Link, Proxy


@contextmanager
def source(payload):
    """A server that answers any byte with the payload, on each connection, until the client hangs up."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads = []

    def answer(end):
        with end:
            while end.recv(1):
                end.sendall(payload)

    def accept():
        while True:
            try:
                end, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=answer, args=(end,)))
            threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield listener.getsockname()
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join()
        for thread in threads:
            thread.join()


def ask(end, size):
    """Seconds until all of the answer is here, and the answer."""
    began, found = time.monotonic(), bytearray()
    end.sendall(b"?")
    while len(found) < size:
        data = end.recv(1 << 20)
        assert data
        found += data
    return time.monotonic() - began, bytes(found)


PAYLOAD = bytes(range(256)) * 4096


@pytest.mark.parametrize(
    ("link", "least"),
    [
        (Link(), 0.0),
        (Link(0.1), 0.1),
        (Link(0.05, window=len(PAYLOAD) // 4), 0.2),  # three more round trips for what the window keeps back
        (Link(0.02, rate=4 * len(PAYLOAD)), 0.27),
        (Link(0.02, window=1 << 16, rate=8 * len(PAYLOAD)), 0.14),
        (Link(0.02, late=1.0, late_s=0.2), 0.22),
    ],
)
def test_all_arrives_and_not_too_early(link, least):
    with source(PAYLOAD) as upstream, Proxy(upstream, link) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port)) as end:
            for _ in range(2):
                took, found = ask(end, len(PAYLOAD))
                assert found == PAYLOAD
                assert took >= 0.9 * least
        assert proxy.connections == 1


def test_a_new_connection_is_slow_until_it_was_used():
    """A handshake, then windows of 14.6 KB, twice as much each: seven of them carry a megabyte, and later one does."""
    with (
        source(PAYLOAD) as upstream,
        Proxy(upstream, Link(0.04, fresh=True)) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port)) as end,
    ):
        first, found = ask(end, len(PAYLOAD))
        assert found == PAYLOAD
        ask(end, len(PAYLOAD))
        later, found = ask(end, len(PAYLOAD))
        assert found == PAYLOAD
    assert first >= 0.9 * 8 * 0.04
    assert later < first


def test_one_connection_may_be_slower_than_the_others():
    slow = Link(rate=2 * len(PAYLOAD))
    with source(PAYLOAD) as upstream, Proxy(upstream, Link(), {1: slow}) as proxy:
        ends = []
        for number in range(3):
            ends.append(socket.create_connection(("127.0.0.1", proxy.port)))
            while proxy.connections <= number:
                time.sleep(0.001)
        times = [ask(end, len(PAYLOAD))[0] for end in ends]
        for end in ends:
            end.close()
    assert times[1] >= 0.45
    assert min(times) < times[1]


def test_all_connections_share_one_line():
    with source(PAYLOAD) as upstream, Proxy(upstream, Link(), line=4 * len(PAYLOAD)) as proxy:
        ends = [socket.create_connection(("127.0.0.1", proxy.port)) for _ in range(3)]
        began = time.monotonic()
        for end in ends:
            end.sendall(b"?")
        for end in ends:
            left = len(PAYLOAD)
            while left:
                left -= len(end.recv(1 << 20))
            end.close()
        assert time.monotonic() - began >= 0.9 * 3 / 4


def test_what_the_server_sent_is_counted_by_time():
    began = time.monotonic()
    with source(PAYLOAD) as upstream, Proxy(upstream, Link(0.01)) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port)) as end:
            ask(end, len(PAYLOAD))
        counted = sum(proxy.rates(began, time.monotonic() + 0.2)) * 0.1
    assert counted == pytest.approx(len(PAYLOAD))
