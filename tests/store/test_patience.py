"""Time limits of many attempts at once."""

import asyncio

import pytest

from headrace.core.errors import StoreUnavailable
from headrace.core.options import Retry
from headrace.store.reading.perseverance import Perseverance

ONCE = Retry(attempts=1, patience=0.05)


async def never():
    await asyncio.Event().wait()


def test_each_attempt_has_a_limit_of_its_own():
    async def attempts():
        policy = Perseverance("store", ONCE, None)
        hanging = [asyncio.create_task(policy.run(f"k{number}", never)) for number in range(3)]
        assert await policy.run("quick", lambda: asyncio.sleep(0, "row")) == "row"
        await asyncio.sleep(0.02)
        hanging.append(asyncio.create_task(policy.run("later", never)))
        return await asyncio.gather(*hanging, return_exceptions=True)

    for error in asyncio.run(attempts()):
        assert isinstance(error, StoreUnavailable), error
        assert "no answer within 0.05 s" in str(error)


def test_a_limit_is_set_again_in_the_next_event_loop():
    policy = Perseverance("store", ONCE, None)

    async def one():
        first = asyncio.create_task(policy.run(None, never))
        await asyncio.sleep(0)
        first.cancel()  # its timer goes with the loop

    asyncio.run(one())
    with pytest.raises(StoreUnavailable, match="no answer"):
        asyncio.run(policy.run(None, never))


def test_a_cancellation_by_somebody_else_passes():
    async def cancelled():
        task = asyncio.create_task(Perseverance("store", Retry(), None).run(None, never))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())


def test_a_limit_that_was_reached_leaves_the_task_uncancelled():
    async def afterwards():
        with pytest.raises(StoreUnavailable):
            await Perseverance("store", ONCE, None).run(None, never)
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    assert asyncio.run(afterwards()) == 0
