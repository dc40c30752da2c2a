"""Second requests: when they are made, what they may cost, and which answer counts."""

import asyncio

import hypothesis.strategies as st
import pytest
from hypothesis import given

from headrace.core.errors import StoreUnavailable
from headrace.store.reading.hedge import FACTOR, FIRST_S, KNOWN, SHARE, Hedge, Hedging

MIB = 1 << 20


def quick(answers=1000, took=0.1, size=MIB):
    policy = Hedge()
    for _ in range(answers):
        policy.answered(took, size)
    return policy


def test_late_is_what_takes_longer_than_nearly_all_others():
    policy = Hedge()
    for _ in range(KNOWN - 1):
        policy.answered(0.1, MIB)
    assert policy.deadline == FIRST_S
    for number in range(500):
        policy.answered(2.0 if number % 50 == 0 else 0.1, MIB)
    assert policy.deadline == pytest.approx(FACTOR * 0.1)
    for _ in range(500):
        policy.answered(0.3, MIB)
    assert policy.deadline == pytest.approx(FACTOR * 0.3)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4 * MIB)), max_size=300))
def test_second_requests_are_a_small_part_of_the_bytes(events):
    policy, answered, again = Hedge(), 0, 0
    for is_late, size in events:
        if is_late and policy.may(size):
            again += size
        elif not is_late:
            policy.answered(0.1, size)
            answered += size
        assert again <= SHARE * answered


def test_a_server_that_stalls_is_not_asked_for_everything_twice():
    policy = quick(100_000)
    assert sum(policy.may(MIB) for _ in range(1000)) < 20


def test_nothing_is_made_again_before_anything_was_answered():
    assert not Hedge().may(1)


class Server:
    """Answers the requests that it is told to, when it is told to; each is numbered."""

    def __init__(self):
        self.asked, self.given_up, self.answers = 0, [], {}

    async def get(self):
        number, self.asked = self.asked, self.asked + 1
        answer = self.answers.setdefault(number, asyncio.get_running_loop().create_future())
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            self.given_up.append(number)
            raise

    async def until(self, asked):
        while self.asked < asked:  # noqa: ASYNC110  (a turn of the loop is what is waited for)
            await asyncio.sleep(0)

    def answer(self, number, value):
        if isinstance(value, Exception):
            self.answers[number].set_exception(value)
        else:
            self.answers[number].set_result(value)


def late():
    """By the first look at the clock."""
    policy = quick(took=0.0)
    policy.deadline = 0.0
    return Hedging(policy)


def run(scenario):
    async def bounded():
        await asyncio.wait_for(scenario(), 60)

    asyncio.run(bounded())


def test_the_first_answer_wins_and_the_other_is_given_up():
    async def scenario():
        server, hedging = Server(), late()
        reading = asyncio.create_task(hedging.read(MIB, server.get))
        await server.until(2)
        server.answer(1, "second")
        assert await reading == "second"
        await asyncio.sleep(0)
        assert server.given_up == [0]
        assert hedging.policy.second == 1

    run(scenario)


def test_the_late_one_may_still_be_first():
    async def scenario():
        server, hedging = Server(), late()
        reading = asyncio.create_task(hedging.read(MIB, server.get))
        await server.until(2)
        server.answer(0, "first")
        assert await reading == "first"
        await asyncio.sleep(0)
        assert server.given_up == [1]

    run(scenario)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_one_failure_of_two_is_none(order):
    async def scenario():
        server, hedging = Server(), late()
        reading = asyncio.create_task(hedging.read(MIB, server.get))
        await server.until(2)
        server.answer(order[0], StoreUnavailable("reset"))
        await asyncio.sleep(0)
        server.answer(order[1], "there")
        assert await reading == "there"

    run(scenario)


def test_both_failing_is_a_failure():
    async def scenario():
        server, hedging = Server(), late()
        reading = asyncio.create_task(hedging.read(MIB, server.get))
        await server.until(2)
        server.answer(0, StoreUnavailable("one"))
        server.answer(1, StoreUnavailable("other"))
        with pytest.raises(StoreUnavailable):
            await reading

    run(scenario)


def test_what_is_answered_in_time_is_asked_for_once():
    async def scenario():
        server, hedging = Server(), Hedging()
        reading = asyncio.create_task(hedging.read(MIB, server.get))
        await server.until(1)
        server.answer(0, "there")
        assert await reading == "there"
        assert server.asked == 1

    run(scenario)


def test_without_credit_one_waits():
    async def scenario():
        server, hedging = Server(), late()
        hedging.policy._credit = 0
        reading = asyncio.create_task(hedging.read(MIB, server.get))
        await server.until(1)
        while hedging._flying:  # noqa: ASYNC110  (it is looked at, and late, after a turn of the loop)
            await asyncio.sleep(0)
        server.answer(0, "there")
        assert await reading == "there"
        assert server.asked == 1

    run(scenario)


def test_whoever_is_cancelled_gives_up_both():
    async def scenario():
        server, hedging = Server(), late()
        reading = asyncio.create_task(hedging.read(MIB, server.get))
        await server.until(2)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await asyncio.sleep(0)
        assert sorted(server.given_up) == [0, 1]

    run(scenario)
