"""Fetching loop, wrappers and clients, over a store that does as it is told."""

import asyncio
import pickle
import threading

import pytest

import headrace
from headrace import store
from headrace.core.errors import MissingKey, StoreRefused, StoreUnavailable
from headrace.core.options import Prefetch, Retry
from headrace.store import Blocking, Client, Fetching, Limited, Lost, Observed, Record, Retrying, Tally, Threaded
from headrace.store.reading.in_flight import arrivals
from headrace.store.reading.window import Window
from headrace.testing import ScriptedStore, Step, StoreConformance
from headrace.testing.stores import fill, reader, sample_records

KEYS = [f"k{number:02}" for number in range(12)]
QUICK = Retry(attempts=4, first=0.001, ceiling=0.002)
DOWN = StoreUnavailable("down")


def scripted(**options):
    return ScriptedStore([Record(key, key.encode(), int(key[1:]), {}) for key in KEYS], **options)


async def fetched(remote, keys=KEYS, window=4, **options):
    session = await remote.connect()
    try:
        return [row async for row in arrivals(session, keys, Window(Prefetch(window=window, ramp=0), 1), **options)]
    finally:
        await session.close()


class TestScripted(StoreConformance):
    @pytest.fixture(autouse=True)
    def given(self):
        self.records = sample_records()
        self.store = ScriptedStore(self.records)


class TestWrapped(TestScripted):
    @pytest.fixture(autouse=True)
    def given(self):
        self.records = sample_records()
        self.store = Retrying(Limited(Observed(ScriptedStore(self.records), Tally()), 3), QUICK)


class TestThreaded(StoreConformance):
    @pytest.fixture(autouse=True)
    def given(self, tmp_path):
        self.records = sample_records()
        made = store.open_writable(f"sqlite:///{tmp_path}/a.db")
        fill(made, self.records)
        self.store = Threaded(made)
        yield
        self.store.close()


class TestArrivals:
    def test_what_comes_first_comes_out_first(self):
        slow = {KEYS[0]: [Step(after=0.2)]}
        rows = asyncio.run(fetched(scripted(script=slow)))
        assert sorted(row.key for row in rows) == KEYS
        assert rows[-1].key == KEYS[0]

    def test_the_order_of_the_keys_can_be_kept(self):
        rows = asyncio.run(fetched(scripted(script={KEYS[0]: [Step(after=0.1)]}), in_order=True))
        assert [row.key for row in rows] == KEYS

    @pytest.mark.parametrize("in_order", [True, False])
    def test_the_window_bounds_what_is_in_flight(self, in_order):
        remote = scripted(delay=0.001)
        asyncio.run(fetched(remote, window=3, in_order=in_order))
        assert remote.peak == 3

    def test_a_consumer_that_takes_nothing_stops_new_requests(self):
        remote = scripted()

        async def take_one():
            session = await remote.connect()
            coming = arrivals(session, KEYS, Window(Prefetch(window=5, ramp=0), 1))
            await anext(coming)
            for _ in range(50):
                await asyncio.sleep(0)
            await coming.aclose()

        asyncio.run(take_one())
        assert sum(remote.requests.values()) == 5

    def test_a_key_without_a_row_is_lost_and_the_others_are_not(self):
        rows = asyncio.run(fetched(scripted(), ["k00", "nope", "k01"]))
        lost = [row for row in rows if isinstance(row, Lost)]
        assert len(rows) == 3
        assert [(one.key, type(one.error)) for one in lost] == [("nope", MissingKey)]

    def test_an_error_that_is_nobody_s_comes_out(self):
        class Broken:
            async def get(self, key):
                raise ZeroDivisionError

            def connections(self):
                return 0

        async def run():
            return [row async for row in arrivals(Broken(), KEYS, Window(Prefetch(), 4))]

        with pytest.raises(ZeroDivisionError):
            asyncio.run(run())

    def test_closing_cancels_what_is_in_flight(self):
        remote = scripted(script={key: [Step(hang=True)] for key in KEYS[1:]})

        async def run():
            session = await remote.connect()
            coming = arrivals(session, KEYS, Window(Prefetch(window=6, ramp=0), 1))
            await anext(coming)
            await coming.aclose()

        asyncio.run(run())
        assert remote.in_flight == 0

    def test_no_keys_no_rows(self):
        assert asyncio.run(fetched(scripted(), [])) == []


class TestRetrying:
    def run(self, remote, key="k00", retry=QUICK):
        tally = Tally()

        async def get():
            session = await Retrying(Observed(remote, tally), retry, tally).connect()
            return await session.get(key)

        return asyncio.run(get()), tally

    def test_what_may_pass_is_tried_again(self):
        row, tally = self.run(scripted(script={"k00": [Step(error=DOWN), Step(error=DOWN)]}))
        assert row.label == 0
        assert (tally.retries, tally.failures, tally.rows, tally.bytes, tally.sessions) == (2, 2, 1, 3, 1)

    @pytest.mark.parametrize("error", [StoreRefused("no"), MissingKey("none")])
    def test_what_stays_is_not(self, error):
        remote = scripted(script={"k00": [Step(error=error)]})
        with pytest.raises(type(error)):
            self.run(remote)
        assert remote.requests["k00"] == 1

    def test_it_ends(self):
        remote = scripted(script={"k00": [Step(error=DOWN)] * 9})
        with pytest.raises(StoreUnavailable, match=r"down \(tried 4 times") as caught:
            self.run(remote)
        assert caught.value.key == "k00"
        assert remote.requests["k00"] == 4

    def test_a_budget_ends_it_sooner(self):
        remote = scripted(script={"k00": [Step(error=DOWN)] * 9})
        with pytest.raises(StoreUnavailable, match="tried 1 time "):
            self.run(remote, retry=Retry(first=1.0, ceiling=1.0, budget=0.1))

    def test_an_attempt_that_never_ends_has_failed(self):
        retry = Retry(attempts=3, first=0.001, patience=0.05)
        row, tally = self.run(scripted(script={"k00": [Step(hang=True)]}), retry=retry)
        assert row.label == 0
        assert tally.retries == 1

    def test_connecting_is_tried_again(self):
        _, tally = self.run(scripted(connecting=[Step(error=DOWN), Step()]))
        assert (tally.retries, tally.sessions) == (1, 1)

    @pytest.mark.parametrize("bad", [{"attempts": 0}, {"budget": 0}, {"patience": -1}, {"first": 0}, {"ceiling": 0}])
    def test_what_cannot_be_honoured_is_refused_by_name(self, bad):
        with pytest.raises(ValueError, match=next(iter(bad))):
            Retry(**bad)


class TestLimited:
    def test_the_others_wait_their_turn(self):
        remote = scripted(delay=0.001)
        asyncio.run(fetched(Limited(remote, 2), window=12))
        assert remote.peak == 2

    def test_nothing_at_once_is_refused(self):
        with pytest.raises(ValueError, match="in_flight"):
            Limited(scripted(), 0)


class TestBlocking:
    def test_a_copy_is_not_open(self):
        with reader(scripted()) as local:
            local.get("k00")
            copy = pickle.loads(pickle.dumps(local))
            assert isinstance(copy, Blocking)
            assert copy.get("k01").label == 1
            copy.close()

    def test_what_is_not_taken_is_cancelled(self):
        remote = scripted(delay=0.001)
        with reader(remote) as local:
            coming = local.get_many(KEYS)
            next(coming)
            coming.close()
            assert remote.in_flight == 0


class TestClient:
    def test_in_blocking_code(self):
        with Client(scripted()) as client:
            assert sorted(client.fetch(KEYS)) == [(key, key.encode(), int(key[1:])) for key in KEYS]
            assert [sample.label for sample in client.fetch(["k03"])] == [3]

    def test_in_asynchronous_code_and_in_several_loops(self):
        client = Client(scripted())

        async def run():
            async with client:
                return sorted([sample.key async for sample in client.fetch(KEYS)])

        assert asyncio.run(run()) == asyncio.run(run()) == KEYS

    def test_one_connection_serves_many_requests(self):
        remote = scripted(delay=0.002)
        with Client(remote) as client:
            threads = [threading.Thread(target=lambda: list(client.fetch(KEYS))) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert remote.sessions == 1
        assert set(remote.requests.values()) == {4}

    def test_decodes_in_threads(self):
        names = set()

        def decode(payload):
            names.add(threading.current_thread().name)
            return payload.decode()

        with Client(scripted(), decode=decode, fetching=Fetching(in_order=True)) as client:
            assert [sample.data for sample in client.fetch(KEYS)] == KEYS
        assert names
        assert all(name.startswith("headrace-decode") for name in names)

    def test_an_error_of_decode_keeps_its_type_and_names_the_sample(self):
        with Client(scripted(), decode=lambda payload: 1 / 0) as client, pytest.raises(ZeroDivisionError) as caught:
            list(client.fetch(["k07"]))
        assert "k07" in caught.value.__notes__[0]

    def test_a_missing_key_raises_or_comes_as_lost(self):
        with Client(scripted()) as client, pytest.raises(MissingKey, match="nope"):
            list(client.fetch(["k00", "nope"]))
        with Client(scripted(), fetching=Fetching(lost=True, in_order=True)) as client:
            good, bad = client.fetch(["k00", "nope"])
            assert good.label == 0
            assert isinstance(bad, Lost)

    def test_the_rest_can_be_given_up(self):
        remote = scripted(script={key: [Step(hang=True)] for key in KEYS[1:]})
        with Client(remote) as client:
            coming = client.fetch(KEYS)
            assert next(coming).key == "k00"
            coming.close()
            assert remote.in_flight == 0

    def test_local_stores_are_read_in_threads(self, tmp_path):
        fill(store.open_writable(f"sqlite:///{tmp_path}/a.db"), sample_records())
        keys = [record.key for record in sample_records()]
        with Client(f"sqlite:///{tmp_path}/a.db") as client:
            assert sorted(sample.key for sample in client.fetch(keys)) == keys

    @pytest.mark.parametrize("bad", ["in_flight", "decoders"])
    def test_what_cannot_be_honoured_is_refused_by_name(self, bad):
        with pytest.raises(ValueError, match=bad):
            Fetching(**{bad: 0})


class TestFetch:
    def test_with_for_and_with_async_for(self):
        async def run():
            return [sample.key async for sample in headrace.fetch(scripted(), KEYS)]

        assert sorted(asyncio.run(run())) == sorted(sample.key for sample in headrace.fetch(scripted(), KEYS)) == KEYS

    def test_leaving_early_leaves_nothing(self):
        remote = scripted(delay=0.001)
        for sample in headrace.fetch(remote, KEYS, fetching=Fetching(in_flight=2)):
            assert sample.label is not None
            break
        assert sum(remote.requests.values()) < len(KEYS)

    def test_a_url_will_do(self, tmp_path):
        fill(store.open_writable(f"sqlite:///{tmp_path}/a.db"), sample_records())
        key = sample_records()[1].key
        assert list(headrace.fetch(f"sqlite:///{tmp_path}/a.db", [key], decode=bytes.hex)) == [(key, "01" * 10, 1)]
