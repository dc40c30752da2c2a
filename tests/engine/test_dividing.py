"""What the planner of a cache is given: from sums over all jobs, what each stage takes of a lane and of the cores."""

from types import SimpleNamespace

import pytest

from headrace.cache.backends import redis_tables
from headrace.cache.division import DivisionFacts, DivisionRecord, Rank, Sums
from headrace.caching import dividing
from headrace.caching.dividing import Spare, Speed, measured, told
from headrace.core.stats import DeviceUse, Network
from headrace.engine.trainer.cores import machine

MS = 1_000_000
SUMS = Sums(
    fetch=100 * 20 * MS,
    fetched=100,
    decode=100 * 4 * MS,
    decoded=100,
    augment=200 * MS,
    augmented=200,
    read=100 * MS,
    reads=100,
    read_bytes=100 * 1000,
    encoded_bytes=100,
    encoded_sized=4,
    decoded_bytes=400,
    decoded_sized=4,
    augmented_bytes=800,
    augmented_sized=4,
    fetch_cpu=0,
    decode_cpu=100 * MS,
    augment_cpu=20 * MS,
    read_cpu=10 * MS,
    other_cpu=70 * MS,
    made=200,
    queued=600 * MS,
)
RANKS = [(1, Rank(4, 1000.0, 100.0, 0.0, 2.0, 7)), (2, Rank(4, 1000.0, 50.0, 0.0, 2.0, 7))]
ALONE = Speed(1e-4, 0.0)


def given(sums=SUMS, ranks=RANKS):
    return measured(DivisionFacts(1000, 5000, sums, ranks, DivisionRecord(0, (0, 100, 0), False, (0, 100, 0))), ALONE)


def test_what_a_lane_waits_for_a_core_is_not_its_own():
    """All of them used 0.2 s of CPU time and waited 0.6 s for it: three times as long as each ran."""
    found = given()
    assert found.fetch == pytest.approx(20e-3)
    assert found.decode == pytest.approx(1e-3)
    assert found.augment == pytest.approx(0.7e-3)
    assert found.read == pytest.approx(0.7e-3)
    assert (found.sizes, found.lanes, found.jobs) == ((25, 100, 200), 8, 1.5)


def test_cores_are_those_of_the_host_and_all_that_is_computed_is_counted():
    cpu = given().cpu
    assert cpu.cores == 2
    assert (cpu.fetch, cpu.decode, cpu.augment) == pytest.approx((0, 1e-3, 1e-4))
    assert (cpu.read, cpu.besides) == pytest.approx((1e-4, 0.35e-3))


def test_without_cores_there_is_no_such_limit():
    assert given(ranks=[(1, Rank(4, 1000.0, 100.0))]).cpu is None
    assert given(SUMS._replace(made=0)).cpu is None


def test_too_little_is_nothing():
    assert given(SUMS._replace(decoded=3)) is None
    assert given(ranks=[]) is None


def test_a_rank_that_waits_for_a_batch_is_not_called_slow(monkeypatch):
    """What it takes is told when it came, over all the time since the last one."""
    clock, told, counters = (
        [100.0],
        [],
        SimpleNamespace(samples=0, wait_seconds=0.0, lanes=2, network=Network(), device=DeviceUse()),
    )
    monkeypatch.setattr(dividing, "time", SimpleNamespace(monotonic=lambda: clock[0], process_time_ns=lambda: 0))
    backend = SimpleNamespace(rests=False, measured=lambda: SUMS, measure=lambda _: None)
    share = SimpleNamespace(backend=backend, peers=SimpleNamespace(ranks=[]))
    serving = SimpleNamespace(share=share, report=told.append)
    divider = dividing.Divider(serving, counters, plans=False)
    for taken in (60, 0, 0, 0, 60):
        clock[0] += 3.0
        counters.samples += taken
        assert divider.look()
    assert [rank.speed for rank in told] == [20.0, 5.0]


DEVICE = DeviceUse(batches=10, pictures=100, by_workers=20, decode_seconds=0.8, pixels_seconds=0.1)


@pytest.mark.parametrize(
    ("use", "wanted"),
    [
        (DeviceUse(), (0, 0)),  # no device
        (DeviceUse(pictures=5, by_workers=5, pixels_seconds=1.0), (0, 0)),  # it has decoded nothing yet
        (DEVICE, (1e-2, 1e-3)),
    ],
)
def test_a_rank_says_what_a_picture_takes_its_device(use, wanted):
    assert dividing.of_device(use) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("devices", "wanted"),
    [
        ([(0, 0), (0, 0)], None),  # no device
        ([(1e-2, 1e-3), (0, 0)], (1e-2 * 2 / 3, 1e-3 * 2 / 3)),  # the other job's pixels are its CPUs'
        ([(1e-2, 1e-3), (4e-2, 1e-3)], (4e-2 / 3, 1e-3 / 3)),  # the slower one is busier, though it has fewer
    ],
)
def test_the_busiest_device_is_a_limit_whoever_plans(devices, wanted):
    ranks = [(job, rank._replace(decoding=a, pixels=b)) for (job, rank), (a, b) in zip(RANKS, devices, strict=True)]
    heard = [(job, Rank.of(rank.words())) for job, rank in ranks]
    found = given(ranks=heard).device
    assert found is None if wanted is None else (found.decode, found.pixels) == pytest.approx(wanted)


class TestSpare:
    def test_what_others_use_is_not_there(self):
        """Of four cores three are busy, one of them with what the jobs of this cache do."""
        spare, sums = Spare(4.0), Sums()
        for second in range(0, 40, 2):
            sums = Sums(decode_cpu=second * 1000 * MS)
            spare.look(float(second), (3.0 * second, 4), sums)
        assert spare.cores == pytest.approx(2.0, abs=0.01)

    def test_a_process_has_no_more_than_its_own(self):
        spare = Spare(2.0)
        for second in range(0, 40, 2):
            spare.look(float(second), (1.0 * second, 16), Sums())
        assert spare.cores == pytest.approx(2.0)

    def test_what_happens_in_a_moment_says_nothing(self):
        spare = Spare(2.0)
        for moment in range(100):
            spare.look(moment / 100, (moment / 20, 2), Sums())
        assert spare.cores == 2.0

    def test_sums_that_were_halved_leave_something(self):
        spare = Spare(2.0)
        spare.look(0.0, (0.0, 2), Sums(decode_cpu=9000 * MS))
        spare.look(2.0, (4.0, 2), Sums(decode_cpu=4500 * MS))
        assert 0 < spare.cores < 2

    def test_a_machine_has_cores_and_was_busy(self):
        busy, cores = machine()
        assert busy > 0
        assert cores >= 1


def test_a_rank_among_thousands_is_heard_of_before_it_counts_as_gone():
    assert dividing.pause(1) < dividing.pause(100) <= redis_tables.ALIVE / 3
    assert dividing.pause(10_000) <= redis_tables.ALIVE / 3


def test_it_says_why():
    known = DivisionRecord(1, (70, 30, 0), fixed=False, before=(0, 100, 0), promised=2323, promised_before=1015)
    assert told(known) == "2,323 samples/s predicted, with lanes to set the pace, against 1,015 with 0-100-0"
    assert told(known._replace(promised=0)).startswith("to begin with")
    assert told(known._replace(fixed=True)) == "fixed by the user"
