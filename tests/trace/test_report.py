"""What a report says of traces whose content is known."""

import json

import pytest

from headrace.core.errors import TraceError
from headrace.trace import format as F
from headrace.trace.analysis.select import chosen
from headrace.trace.calibrate import Calibration, calibrate
from headrace.trace.reader import read
from headrace.trace.report import report
from tests.trace.made import MS, Made, input_bound, trainer_bound

FREE = Calibration(0, 0, 0, 0)


def loader_of(made):
    (found,) = report(made.read(), FREE).loaders
    return found


def operation(found, name):
    (row,) = [row for row in found.figures.operations if row.name == name]
    return row


class TestVerdict:
    def test_input(self, tmp_path):
        found = loader_of(input_bound(tmp_path / "t"))
        assert found.verdict.bottleneck == "input"
        assert found.figures.steady.wait_share == pytest.approx(0.8)
        assert found.figures.busy == pytest.approx(1.0)
        assert any("80.0% of the time" in line for line in found.verdict.evidence)

    def test_consumer(self, tmp_path):
        found = loader_of(trainer_bound(tmp_path / "t"))
        assert found.verdict.bottleneck == "trainer"
        assert found.figures.steady.wait_share == pytest.approx(0.01)
        assert found.figures.steady.delay.p50 > 0.05

    def test_start_up(self, tmp_path):
        made = Made(tmp_path / "t")
        made.run(workers=1)
        for number in range(10):
            made.sample(0, 500 + number, 1, number, batch=number)
            made.batch(number, 520 + 10 * number if number else 0, 521 + 10 * number)
        found = loader_of(made)
        assert found.verdict.bottleneck == "start-up"
        assert found.figures.startup == pytest.approx(0.521)
        assert found.figures.startup_idle == pytest.approx(0.5)
        assert found.figures.steady.wait_share == pytest.approx(0.1)

    def test_a_store_far_away(self, tmp_path):
        """Nothing can begin before a row is here: that is the store's time, and the rest the workers'."""
        made = Made(tmp_path / "t")
        made.run(workers=1)
        for number in range(10):
            made.stream(0).span(F.NETWORK, made.at(300), 150 * MS)
            made.sample(0, 500 + number, 1, number, batch=number)
            made.batch(number, 520 + 10 * number if number else 0, 521 + 10 * number)
        found = loader_of(made)
        assert found.figures.startup_idle == pytest.approx(0.5)
        assert found.figures.startup_store == pytest.approx(0.45)
        assert found.advice[-1].setting == "the store"

    def test_in_turn(self, tmp_path):
        """Bursts: four batches come at once, then none for a while; the worker rests when its room is full."""
        made = Made(tmp_path / "t")
        made.run(workers=1)
        clock = 0.0
        for burst in range(10):
            ready = clock + 20
            for k in range(4):
                made.sample(0, ready - 4 + k, 1, 4 * burst + k, batch=4 * burst + k)
            got = ready
            made.batch(4 * burst, clock, got)
            for k in range(1, 4):
                got += 8
                made.batch(4 * burst + k, got, got)
            clock = got + 8
        found = loader_of(made)
        assert found.verdict.bottleneck == "in turn"
        assert found.figures.steady.waited_for == pytest.approx(9 / 39)
        assert 0.3 < found.figures.steady.wait_share < 0.4

    def test_batches_that_come_in_pairs_from_busy_workers_are_short_input(self, tmp_path):
        """Each of two workers makes a whole batch: every second one is waited for, its neighbour lies ready."""
        made = Made(tmp_path / "t")
        made.run(workers=2)
        clock = 0.0
        for pair in range(10):
            for lane in (0, 1):
                made.sample(lane, clock, 40, 2 * pair + lane, batch=2 * pair + lane)
            made.batch(2 * pair, clock + 10 if pair else 0, clock + 40)
            made.batch(2 * pair + 1, clock + 45, clock + 45)
            clock += 40
        assert loader_of(made).verdict.bottleneck == "input"

    def test_too_little(self, tmp_path):
        made = Made(tmp_path / "t")
        made.run(workers=1)
        made.sample(0, 0, 1, 0, batch=0)
        for number in range(3):
            made.batch(number, 10 * number, 10 * number + 1)
        assert loader_of(made).verdict.bottleneck == "unknown"


class TestOperations:
    def test_figures(self, tmp_path):
        found = loader_of(input_bound(tmp_path / "t"))
        decode, flip = operation(found, "decode"), operation(found, "flip")
        assert decode.time.count == 40
        assert decode.time.mean == pytest.approx(0.006)
        assert decode.share == pytest.approx(0.6)
        assert (decode.under_10ms, decode.under_100us) == (1, 0)
        assert (flip.under_10ms, flip.under_100us) == (1, 1)
        assert [row.name for row in found.figures.operations][:3] == ["decode", "flip", "crop"]
        assert sum(row.share for row in found.figures.operations) == pytest.approx(1)

    def test_what_is_in_no_operation_is_the_dataset_s(self, tmp_path):
        other = operation(loader_of(input_bound(tmp_path / "t")), "other (dataset code)")
        assert other.time.mean == pytest.approx(0.00095)
        assert other.share == pytest.approx(0.095)

    def test_cpu_of_what_is_in_no_operation(self, tmp_path):
        made = Made(tmp_path / "t")
        made.run()
        made.sample(0, 0, 10, operations={"decode": 4.0}, cpu=5, operation_cpu=0.5)
        found = loader_of(made)
        assert operation(found, "decode").cpu == pytest.approx(0.5, abs=1e-3)
        assert operation(found, "other (dataset code)").cpu == pytest.approx(0.5, abs=1e-3)
        assert operation(loader_of(input_bound(tmp_path / "u")), "other (dataset code)").cpu is None

    def test_without_a_list_the_sample_is_the_operation(self, tmp_path):
        found = loader_of(trainer_bound(tmp_path / "t"))
        whole = operation(found, "sample")
        assert whole.time.total == pytest.approx(0.02)
        assert whole.cpu == pytest.approx(1, abs=1e-3)
        assert whole.share == 1

    def test_variability(self, tmp_path):
        made = Made(tmp_path / "t")
        made.run()
        for number, length in enumerate((1, 3)):
            made.sample(0, 10 * number, length, number, batch=number)
        time = operation(loader_of(made), "sample").time
        assert (time.mean, time.std, time.variability) == pytest.approx((0.002, 0.001, 0.5))

    def test_collation_is_a_row_of_its_own(self, tmp_path):
        made = Made(tmp_path / "t")
        made.run()
        made.sample(0, 0, 3, 0, batch=0)
        made.stream(0).collate(0, 1, made.at(4), 1_000_000)
        made.batch(0, 0, 6)
        row = operation(loader_of(made), "collate")
        assert (row.kind, row.share) == ("loader", pytest.approx(0.25))


class TestSlowSamples:
    def test_are_named_with_what_made_them_slow(self, tmp_path):
        made = Made(tmp_path / "t")
        for epoch in range(2):
            made.run(epoch=epoch)
            for number in range(20):
                slow = number == 13
                cost = {"decode": 2.0, "warp": 30.0 if slow else 1.0}
                start = 100 * epoch + 4 * number
                made.sample(number % 3, start, sum(cost.values()), 1000 + number, operations=cost)
        figures = loader_of(made).figures
        assert figures.slow == 2
        (slow,) = figures.slowest
        assert (slow.index, slow.times, slow.operation) == ("1013", 2, "warp")
        assert slow.operation_seconds == pytest.approx(0.03)

    def test_the_loader_s_own_flag_counts(self, tmp_path):
        made = Made(tmp_path / "t")
        made.run()
        for number in range(6):
            made.sample(0, 2 * number, 1.1 if number == 4 else 1, number, flags=F.SLOW if number == 4 else 0)
        assert [slow.index for slow in loader_of(made).figures.slowest] == ["4"]

    def test_keys_are_names_too(self, tmp_path):
        made = Made(tmp_path / "t")
        made.run()
        for number in range(6):
            made.sample(0, 50 * number, 40 if number == 4 else 1, ("dog", number))
        assert [slow.index for slow in loader_of(made).figures.slowest] == ["('dog', 4)"]


def test_wait_and_delay_distributions(tmp_path):
    made = Made(tmp_path / "t")
    made.run()
    waits = [1, 0.5, 2, 600, 0.1]
    clock = 0
    for number, wait in enumerate(waits):
        made.sample(0, clock, wait / 2, number, batch=number)
        made.batch(number, clock, clock + wait)
        clock += wait + 10
    steady = loader_of(made).figures.steady
    assert steady.wait.count == 4
    assert (steady.wait_over_1ms, steady.wait_over_500ms) == (0.5, 0.25)
    assert steady.delay.most == pytest.approx(0.3)
    assert steady.delay_over_1ms == 0.25


def test_epochs_and_loaders_are_told_apart(tmp_path):
    made = Made(tmp_path / "t")
    for epoch in range(2):
        for name, length in (("train", 2), ("val", 4)):
            made.run(name, epoch, workers=1)
            start = 100 * epoch + (50 if name == "val" else 0)
            for number in range(3):
                made.sample(0, start + 5 * number, length, number, batch=number)
                made.batch(number, start + 5 * number, start + 5 * number + length)
    trace = made.read()
    train, val = report(trace, FREE).loaders
    assert (train.figures.name, val.figures.name) == ("train", "val")
    assert [run.epoch for run in train.figures.runs] == [0, 1]
    assert (train.figures.work.p50, val.figures.work.p50) == pytest.approx((0.002, 0.004))
    assert train.figures.epoch_starts == pytest.approx(0.002)
    (only,) = report(chosen(trace, loader="val"), FREE).loaders
    assert only.figures == val.figures
    (one,) = report(chosen(trace, run=val.figures.runs[1].number), FREE).loaders
    assert [run.epoch for run in one.figures.runs] == [1]
    with pytest.raises(TraceError, match=r"no loader 'test' .*train, val"):
        chosen(trace, loader="test")
    with pytest.raises(TraceError, match="no run 17"):
        chosen(trace, run=17)


def test_counts(tmp_path):
    made = Made(tmp_path / "t")
    made.run(workers=1)
    for number in range(4):
        flags = (number << F.TIER_SHIFT) | (2 << F.RETRIES_SHIFT if number == 3 else 0)
        made.sample(0, number, 1, number, batch=0, row=number, flags=flags, sizes=(10, 100))
    made.sample(0, 4, 1, 9, flags=F.FAILED)
    for name in ("death", "hand-off", "hand-off", "repeat"):
        made.stream(-1).event(name, 1, made.at(3))
    made.stream(-1).copy(0, 400, made.at(6), 2_000_000)
    made.batch(0, 0, 10)
    figures = loader_of(made).figures
    assert (figures.failures, figures.retries) == (1, 2)
    assert (figures.deaths, figures.hand_offs, figures.repeats) == (1, 2, 1)
    assert (figures.bytes_in, figures.bytes_out, figures.copied_bytes) == (40, 400, 400)
    assert {tier.form: tier.samples for tier in figures.cache} == {
        "not cached": 2,
        "encoded": 1,
        "decoded": 1,
        "augmented": 1,
    }


def test_samples_made_on_other_hosts_are_told_by_node(tmp_path):
    made = Made(tmp_path / "t")
    made.run(workers=1)
    for number, node in enumerate(["10.0.0.2", None, "10.0.0.3", "10.0.0.2"]):
        if node is not None:
            made.stream(0).span(F.ELSEWHERE + node, made.at(number), 3 * MS)
        made.sample(0, number, 1, number, batch=0, row=number)
    made.batch(0, 0, 10)
    trace = read(made.path)
    nodes = [trace.names[name] if name >= 0 else None for name in trace.samples["node"].tolist()]
    assert nodes == ["made on 10.0.0.2", None, "made on 10.0.0.3", "made on 10.0.0.2"]
    figures = loader_of(made).figures
    assert [(each.node, each.samples, each.share) for each in figures.elsewhere] == [
        ("10.0.0.2", 2, 0.5),
        ("10.0.0.3", 1, 0.25),
    ]
    assert figures.elsewhere[0].time.mean == pytest.approx(0.003)


def test_workers_one_by_one(tmp_path):
    made = Made(tmp_path / "t")
    made.run(workers=2)
    made.sample(0, 0, 10, 0, batch=0, cpu=5)
    made.sample(1, 0, 4, 1, batch=0, row=1, cpu=4)
    made.batch(0, 0, 20, samples=2)
    figures = loader_of(made).figures
    assert [(lane.lane, lane.busy, lane.samples) for lane in figures.lanes] == [(0, 0.5, 1), (1, 0.2, 1)]
    assert figures.busy == pytest.approx(0.35)
    assert figures.cpu == pytest.approx(9 / 14, abs=1e-3)
    assert figures.rate == pytest.approx(100)


def test_without_workers_the_trainer_s_process_makes_samples(tmp_path):
    made = Made(tmp_path / "t")
    made.run(workers=0)
    for number in range(10):
        made.sample(-1, 10 * number, 5, number, batch=number)
        made.batch(number, 10 * number, 10 * number + 5.1)
    found = loader_of(made)
    assert found.verdict.bottleneck == "input"
    assert [lane.lane for lane in found.figures.lanes] == [-1]
    assert found.advice[0].setting == "num_workers=None"


def test_it_is_json(tmp_path):
    made = input_bound(tmp_path / "t")
    made.stream(-1).span("forward", made.at(3), 2_000_000)
    data = json.loads(json.dumps(report(made.read(), FREE).data()))
    assert data["spans"]["forward"]["mean"] == pytest.approx(0.002)
    assert data["loaders"][0]["verdict"]["bottleneck"] == "input"


def test_an_empty_trace_has_no_loaders(tmp_path):
    found = report(Made(tmp_path / "t").read(), FREE)
    assert found.loaders == ()
    assert found.cost.bytes_per_event == 0


def test_tracing_states_its_own_cost(tmp_path):
    trace = input_bound(tmp_path / "t").read()
    cost = report(trace, Calibration(sample=1000, cpu=500, operation=100, other=200)).cost
    others = cost.events - 40 - 120
    assert cost.events == trace.events
    assert cost.seconds * 1e9 == pytest.approx(40 * 1500 + 120 * 100 + others * 200)
    assert cost.share == pytest.approx(cost.seconds / 0.4)
    assert cost.bytes_per_event == pytest.approx(trace.size / trace.events)


def test_calibration_measures_something():
    found = calibrate()
    assert min(found.sample, found.operation, found.cpu, found.other) > 0
