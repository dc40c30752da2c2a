"""How far ahead batches are made, where the user leaves it open."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.plan.lookahead import HELD_UP_SECONDS, MOST, USUAL, Lookahead

waits = st.tuples(st.floats(0, 10), st.integers(0, 16))


@given(st.lists(waits), st.integers(1, 16))
def test_it_never_shrinks_and_has_an_end(history: list[tuple[float, int]], lanes: int) -> None:
    lookahead, before = Lookahead(), USUAL
    for seconds, idle in history:
        lookahead.waited(seconds, min(idle, lanes), lanes)
        assert before <= lookahead.batches <= MOST
        before = lookahead.batches


@given(st.lists(waits), st.integers(1, 64))
def test_what_the_user_chose_stays(history: list[tuple[float, int]], chosen: int) -> None:
    lookahead = Lookahead(chosen, chosen)
    for seconds, idle in history:
        lookahead.waited(seconds, idle, 4)
    assert lookahead.batches == chosen


def test_it_grows_when_lanes_stood_idle_behind_a_slow_sample() -> None:
    lookahead = Lookahead()
    lookahead.waited(HELD_UP_SECONDS / 2, 4, 4)
    assert lookahead.batches == USUAL, "that was no slow sample"
    lookahead.waited(1.0, 1, 4)
    assert lookahead.batches == USUAL, "they were busy: more would not be made"
    lookahead.waited(1.0, 3, 4)
    assert lookahead.batches == 2 * USUAL


def test_who_waits_asks_again_as_long_as_it_can_grow() -> None:
    lookahead = Lookahead()
    while lookahead.batches < MOST:
        assert lookahead.patience == HELD_UP_SECONDS
        lookahead.waited(1.0, 4, 4)
    assert lookahead.patience is None
    assert Lookahead(3, 3).patience is None, "the user chose"
