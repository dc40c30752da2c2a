"""The window, against links that are simulated: events in, numbers out, no clock."""

import heapq
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.options import Prefetch
from headrace.store.reading.window import GAIN, Window


class Link:
    """A path with a delay and a rate: requests queue for the rate, then travel. The trainer takes what is there."""

    def __init__(self, window, *, delay, rate, consume=0.0, size=1000, jitter=0.0):
        self.window, self.delay, self.rate, self.consume, self.size = window, delay, rate, consume, size
        self.random = random.Random(1)
        self.jitter = jitter
        self.now = self.free = 0.0
        self.flying, self.ready, self.taken, self.requested = [], 0, 0, 0
        self.taking = 0.0
        self.peak = 0

    def run(self, samples):
        """Until so many were consumed; the time that took."""
        began, until = self.now, self.taken + samples
        while self.taken < until:
            while self.window.room:
                self.window.requested()
                self.requested += 1
                self.free = max(self.free, self.now) + 1 / self.rate
                spread = self.random.lognormvariate(0, self.jitter) if self.jitter else 1.0
                heapq.heappush(self.flying, (self.free + self.delay * spread, self.now))
            self.peak = max(self.peak, self.window.outstanding)
            if self.ready and self.now >= self.taking:
                self.ready -= 1
                self.taken += 1
                self.taking = self.now + self.consume
                self.window.consumed()
                continue
            if not self.ready:
                self.window.waited()
            following = self.flying[0][0] if self.flying else float("inf")
            self.now = min(following, self.taking) if self.ready else following
            while self.flying and self.flying[0][0] <= self.now:
                _, asked = heapq.heappop(self.flying)
                self.window.arrived(self.now, self.now - asked, self.size)
                self.ready += 1
        return self.now - began


@pytest.mark.parametrize("delay", [0.0005, 0.02, 0.15])
@pytest.mark.parametrize("rate", [500, 5000])
def test_it_follows_bandwidth_and_delay(delay, rate):
    link = Link(Window(Prefetch(), 64), delay=delay, rate=rate)
    link.run(int(40 * rate * delay) + 4000)
    share = 10_000 / (link.run(10_000) * rate)
    assert share >= 0.95
    assert link.window.outstanding <= 2 * GAIN * rate * delay + 6 * 64


def test_it_stays_small_where_the_trainer_is_slow():
    link = Link(Window(Prefetch(), 16), delay=0.02, rate=10_000, consume=0.005)
    link.run(3000)
    assert link.run(1000) == pytest.approx(5.0, rel=0.05)
    assert link.window.outstanding <= 64


@pytest.mark.parametrize("rate", [500, 4000])
def test_a_long_path_is_full_within_a_second(rate):
    link = Link(Window(Prefetch(), 32), delay=0.15, rate=rate)
    seconds = link.run(4 * rate)
    assert seconds <= 4 + 0.9
    assert link.peak <= 4 * GAIN * rate * 0.15 + 6 * 32


def test_a_trainer_that_never_waits_long_keeps_to_the_ramp():
    """Twenty batches a second: once those are had, what is asked for exceeds them by a quarter at most."""
    link = Link(Window(Prefetch(window=None), 32), delay=0.02, rate=10_000, consume=0.05 / 32)
    link.run(8 * 32)
    before = link.requested
    link.run(10 * 32)
    assert link.requested - before <= 1.3 * 10 * 32


@pytest.mark.parametrize("jitter", [0.5, 1.2])
def test_delays_that_vary_do_not_close_it(jitter):
    link = Link(Window(Prefetch(), 32), delay=0.05, rate=2000, jitter=jitter)
    link.run(10_000)
    assert 10_000 / (link.run(10_000) * 2000) >= 0.9


def test_it_follows_a_path_that_becomes_longer_and_shorter():
    link = Link(Window(Prefetch(), 32), delay=0.01, rate=2000)
    link.run(5000)
    link.delay = 0.1
    link.run(80_000)
    assert 10_000 / (link.run(10_000) * 2000) >= 0.9
    link.delay = 0.01
    link.run(80_000)
    assert link.window.outstanding <= 400


@pytest.mark.parametrize("rate", [500, 4000])
def test_measuring_the_path_again_costs_next_to_nothing(rate):
    link = Link(Window(Prefetch(), 32), delay=0.15, rate=rate)
    link.run(8000)
    shares = [rate / (link.run(rate) * rate) for _ in range(40)]
    assert min(shares) >= 0.7
    assert sum(shares) / len(shares) >= 0.97
    assert link.window.outstanding <= 2 * GAIN * rate * 0.15 + 64


def test_a_path_that_becomes_longer_is_seen_though_requests_queue():
    link = Link(Window(Prefetch(), 32), delay=0.02, rate=4000)
    link.run(60_000)
    short = link.window.size
    link.delay = 0.15
    link.run(160_000)
    assert link.window.size >= 4 * short
    assert 20_000 / (link.run(20_000) * 4000) >= 0.95


@given(st.integers(1, 8), st.integers(1, 40), st.integers(1, 50), st.integers(0, 400))
def test_requests_never_run_ahead_of_use_by_more_than_the_ramp_allows(ramp, batch, batches, steps):
    window = Window(Prefetch(window=batches, ramp=ramp), batch)
    requested = consumed = 0
    for _ in range(steps):
        room = window.room
        window.requested(room)
        requested += room
        assert requested <= batch + consumed + consumed // ramp
        assert requested - consumed == window.outstanding <= batch * batches
        if window.outstanding:
            window.consumed()
            consumed += 1


@given(st.integers(1, 8), st.integers(1, 40), st.lists(st.integers(1, 60), max_size=40))
def test_what_is_worked_on_opens_no_window(ramp, batch, steps):
    """Rows that workers hold ready are not consumed: only what is delivered lets more be asked for."""
    window = Window(Prefetch(ramp=ramp), batch)
    requested = working = consumed = 0
    for step in steps:
        room = window.room
        window.requested(room)
        requested += room
        assert requested <= batch + consumed + consumed // ramp
        window.taken(taking := min(step, window.outstanding - working))
        working += taking
        window.consumed(leaving := working // 2)
        working, consumed = working - leaving, consumed + leaving


def test_what_is_worked_on_comes_on_top_of_the_path():
    window = Window(Prefetch(ramp=0), 10)
    before = window.size
    window.requested(before)
    window.taken(before)
    assert window.room == before
    window.consumed(before)
    assert window.size == 2 * before  # as much may be worked on again


@given(st.integers(1, 40), st.integers(1, 50))
def test_without_a_ramp_it_is_open_at_once(batch, batches):
    assert Window(Prefetch(window=batches, ramp=0), batch).room == batch * batches


@given(st.integers(1, 10**7), st.integers(1, 10**6))
def test_memory_is_a_limit_whatever_the_window(memory, size):
    window = Window(Prefetch(window=1000, ramp=0, memory=memory), 10)
    window.requested()
    window.arrived(1.0, 0.1, size)
    window.consumed()
    assert window.size <= max(1, memory // size)


def test_there_is_always_room_for_one():
    window = Window(Prefetch(memory=1), 8)
    window.requested()
    window.arrived(1.0, 0.1, 10**9)
    window.consumed()
    assert window.room == 1


@pytest.mark.parametrize("bad", [{"window": 0}, {"ramp": -1}, {"memory": 0}])
def test_what_cannot_be_honoured_is_refused_by_name(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        Prefetch(**bad)
