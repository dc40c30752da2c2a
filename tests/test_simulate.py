"""Hit rates and reads of every policy: the published readings, the bounds, and what no policy can do."""

import numpy as np
import pytest

from benchmarks.requests import Request, RequestTrace, drawn
from benchmarks.rules import Need, Opportunistic, Soonest, Static, Substitution
from benchmarks.simulate import Simulation, simulate

TOGETHER, UNEQUAL = (1.0, 1.0, 1.0), (1.0, 0.6, 0.8)
SHARES = (0.2, 0.4, 0.6, 0.8)


def rates(policy, speeds, *, apart=0.0, samples=900, **options):
    """In percent, over a whole period of the speeds (five epochs of the fastest)."""
    trace = drawn(samples, speeds, batch=9, epochs=7 if speeds == UNEQUAL else 4, apart=apart)
    found = [simulate(trace, policy, share, warm_up=2, **options) for share in SHARES]
    return [100 * each.hit_rate for each in found], [each.reads_per_sample for each in found]


def near(expected, tolerance=2.5):
    return pytest.approx(expected, abs=tolerance)


class TestNeed:
    def test_jobs_side_by_side_read_each_sample_once_for_all(self):
        hits, reads = rates(Need(), TOGETHER)
        assert hits == near([73.3, 80.0, 86.7, 93.3], 0.2)
        assert reads == pytest.approx([1 - each / 100 for each in hits])

    def test_so_they_do_a_third_of_an_epoch_apart(self):
        assert rates(Need(), TOGETHER, apart=1 / 3)[0] == near([73.3, 80.0, 86.7, 93.3], 0.5)

    @pytest.mark.parametrize("speeds", [UNEQUAL, (1.0, 0.3, 0.7)])
    def test_at_unequal_speeds_only_the_fastest_reads(self, speeds):
        """What it needs beyond the cache, once per epoch; the others live on that. No policy can do better."""
        trace = drawn(900, speeds, batch=9, epochs=7 if speeds == UNEQUAL else 20)
        for share in (0.2, 0.6):
            found = simulate(trace, Need(), share, warm_up=2 if speeds == UNEQUAL else 10)
            assert found.hit_rate == pytest.approx(1 - (1 - share) / sum(speeds), abs=0.003)

    def test_one_job_has_a_static_cache(self):
        assert rates(Need(), (1.0,))[0] == near([20, 40, 60, 80], 0.2)


class TestOpportunistic:
    """Within a few points of an independent simulation of the published steps."""

    def test_as_published_side_by_side(self):
        hits, reads = rates(Opportunistic(), TOGETHER)
        assert hits == near([63.9, 85.5, 96.4, 99.9], 4)
        assert reads[:2] == near([0.57, 0.43], 0.05)

    def test_as_published_at_unequal_speeds(self):
        hits, reads = rates(Opportunistic(), UNEQUAL)
        assert hits == near([51.3, 76.3, 90.2, 97.6])
        assert reads[:2] == near([0.66, 0.49], 0.02)

    def test_as_published_apart(self):
        assert rates(Opportunistic(), TOGETHER, apart=1 / 3)[0] == near([49.3, 75.7, 90.1, 97.6])

    def test_filled_by_the_next_misses_it_cannot_pass_two_thirds(self):
        hits, reads = rates(Opportunistic(refills=False), TOGETHER)
        assert hits == near([66.7] * 4, 0.2)
        assert reads == near([1 / 3] * 4, 0.01)

    def test_that_and_drift_give_the_published_figures(self):
        """54 % at 20 % cached and 66 % at 40 %."""
        hits, _ = rates(Opportunistic(refills=False), UNEQUAL)
        assert hits == near([54.9, 63.5, 65.8, 65.2], 3.5)

    def test_with_a_part_that_is_never_evicted(self):
        hits, _ = rates(Opportunistic(refills=False), UNEQUAL, evictable=0.52)
        assert hits == near([51.6, 65.8, 75.1, 79.5], 3.0)

    def test_a_threshold_above_the_number_of_jobs_loses(self):
        assert rates(Opportunistic(threshold=5), UNEQUAL)[0] == near([30.5, 56.5, 78.3, 93.3], 4)


class TestNoGain:
    def test_static(self):
        assert rates(Static(), UNEQUAL)[0] == near([20, 40, 60, 80], 0.2)

    def test_exchange_alone(self):
        """Each job needs each sample once per epoch, whatever comes first: the gain is in the turnover."""
        assert rates(Substitution(), UNEQUAL)[0] == near([20, 40, 60, 80], 0.2)

    def test_knowing_the_order_of_permutations(self):
        """A hit was kept since the epoch before, so an epoch has at most as many as there were entries."""
        assert rates(Soonest(), (1.0,))[0] == near([20, 40, 60, 80], 0.5)


def test_knowing_an_order_that_repeats_samples():
    rng = np.random.default_rng(1)
    weights = 1 / np.arange(1, 401)
    order = rng.choice(400, 8000, p=weights / weights.sum())
    trace = RequestTrace(400, 1, [Request(0, 0, order[at : at + 1], at / 400) for at in range(8000)])
    known, static = (simulate(trace, policy, 0.2, warm_up=2).hit_rate for policy in (Soonest(), Static()))
    assert known > static + 0.1


@pytest.mark.parametrize("policy", [Need(), Opportunistic(), Opportunistic(refills=False), Substitution()])
def test_every_job_is_served_every_sample_once_per_epoch(policy):
    trace = drawn(300, (1.0, 0.5, 0.7), batch=7, epochs=4)
    simulation = Simulation(trace, policy, 90)
    served = {}
    for job, epoch, samples in simulation.run().order:
        served.setdefault((job, epoch), []).extend(samples.tolist())
    assert len(served) > 6
    for samples in served.values():
        assert len(samples) == len(set(samples))
    assert sum(sorted(samples) == list(range(300)) for samples in served.values()) >= 7
    assert simulation.cached.sum() <= 90
