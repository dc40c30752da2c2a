"""The window opens gradually to what the network needs, and no further. Time is simulated."""

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.plan.window import Window

MS = 1_000_000


class Network:
    """Rows come ``delay`` after they were asked for, at most one every ``interval``; whoever takes them is faster."""

    def __init__(self, delay, interval, step=0):
        self.delay, self.interval, self.step = delay, interval, step

    def run(self, window, rows):
        """Ask for, bring and take ``rows``; (when each was asked for, when each came)."""
        now = free = 0
        asked, came, flying = [], [], []
        while len(came) < rows:
            while len(asked) < rows and len(flying) < window.limit:
                free = max(free + self.interval, now + self.delay)
                heapq.heappush(flying, (free, now))
                asked.append(now)
            now, began = heapq.heappop(flying)
            window.arrived(now - began, now)
            came.append(now)
            window.taken(1)
        return asked, came


@pytest.mark.parametrize(("delay", "interval"), [(150 * MS, MS // 5), (20 * MS, MS // 10), (MS // 10, MS // 20)])
def test_it_opens_until_the_network_is_full(delay, interval):
    window = Window(64, 4, 1 << 15, 0)
    _, came = Network(delay, interval).run(window, 40_000)
    last = came[-10_000:]
    assert (last[-1] - last[0]) / 9_999 <= 1.05 * interval
    assert window.limit <= 2.5 * delay / interval + 3 * 64


def test_it_closes_again_when_the_delay_is_gone():
    window = Window(8, 4, 1 << 15, 0)
    Network(150 * MS, MS).run(window, 5_000)
    opened = window.limit
    now = 10_000 * MS
    for _ in range(20_000):
        now += MS
        window.arrived(MS, now)
        window.taken(1)
    assert window.limit < opened / 4


@pytest.mark.parametrize("ramp", [1, 4, 10])
def test_for_every_so_many_taken_one_more_is_asked_for(ramp):
    window = Window(16, ramp, 1 << 15, 0)
    before = window.limit
    for taken in range(1, 2000):
        window.arrived(100 * MS, taken * MS // 10)
        window.taken(1)
        assert window.limit <= before + taken / ramp + 1


def test_a_fixed_window_opens_to_just_that():
    window = Window(10, 4, 80, 0, fixed=True)
    assert window.limit == 20
    Network(20 * MS, MS // 10).run(window, 1_000)
    assert window.limit == 80


def test_without_a_ramp_it_is_open_at_once():
    assert Window(10, 0, 80, 0, fixed=True).limit == 80


@given(st.integers(0, 200), st.integers(0, 8), st.integers(1, 500), st.lists(st.integers(1, 10**9), max_size=50))
def test_it_is_never_closed_and_never_beyond_the_most(batch, ramp, most, delays):
    window, now = Window(batch, ramp, most, 0), 0
    for delay in delays:
        now += delay // 2
        window.arrived(delay, now)
        window.taken(3)
        assert 1 <= window.limit <= most
