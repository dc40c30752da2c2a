"""Every rule advises where it should and keeps quiet where it should not."""

from dataclasses import replace

import pytest

from headrace.trace.analysis import advice
from headrace.trace.analysis.figures import Figures, FormFigures, Lane, NodeFigures, RunFigures, Steady
from headrace.trace.analysis.operation_times import OperationFigures
from headrace.trace.analysis.spread import Spread
from headrace.trace.analysis.verdict import judge


def time(mean, count=100, std=0.0):
    return Spread(count, mean * count, mean, std, mean, mean, mean, mean, mean, mean, mean)


def run(number):
    return RunFigures(number, number, 10.0, 100, 800, 80.0, 0.1, time(0.01), time(0.001), time(0.4))


def short(**changes):
    """Input is short: 4 workers on 8 cores compute all the time; a batch takes 0.4 s of work, a step 0.05 s."""
    steady = Steady(
        batches=99,
        samples=792,
        seconds=9.9,
        rate=80.0,
        step=time(0.05),
        wait=time(0.05),
        wait_share=0.5,
        waited_for=1.0,
        lay_ready=0.0,
        wait_over_1ms=1.0,
        wait_over_500ms=0.0,
        delay=time(0.0),
        delay_over_1ms=0.0,
        delay_over_500ms=0.0,
        blocked_share=0.0,
    )
    operations = tuple(
        OperationFigures(name, "operation", time(0.4 * share), 0.0, 0.0, share, None)
        for name, share in (("decode", 0.7), ("flip", 0.3))
    )
    figures = Figures(
        name="train",
        process=1,
        facts={"workers": 4, "in_order": True, "prefetch": 2},
        cores=8,
        runs=(run(0),),
        seconds=10.0,
        batches=100,
        samples=800,
        startup=0.1,
        startup_idle=0.05,
        startup_store=0.0,
        startup_first=0.0,
        epoch_starts=0.0,
        steady=steady,
        work=time(0.4),
        span=time(0.1),
        out_of_order=0.0,
        lanes=tuple(Lane(number, 1.0, 200, 1.0) for number in range(4)),
        cpu=1.0,
        queued=None,
        operations=operations,
        slow=0,
        slowest=(),
        cache=(),
        elsewhere=(),
        bytes_in=0,
        bytes_out=0,
        copies=Spread(),
        copied_bytes=0,
        retries=0,
        failures=0,
        deaths=0,
        hand_offs=0,
        repeats=0,
        divisions=(),
    )
    steady_changes = {name: changes.pop(name) for name in list(changes) if hasattr(steady, name) and name != "seconds"}
    facts = figures.facts | changes.pop("facts", {})
    return replace(figures, steady=replace(steady, **steady_changes), facts=facts, **changes)


def idle(busy=0.1, **changes):
    """The trainer is short, the workers are not."""
    lanes = tuple(Lane(number, busy, 200, 1.0) for number in range(4))
    return short(**{"wait_share": 0.0, "waited_for": 0.0, "lay_ready": 1.0, "lanes": lanes} | changes)


def setting(rule, figures):
    found = rule(figures)
    return None if found is None else found.setting


COPIES = {"copies": Spread(count=100, total=6.0, mean=0.06), "copied_bytes": 600_000_000}


class TestTransfer:
    def test_copies_that_the_trainer_makes_are_told(self):
        figures = idle(**COPIES, facts={"torch": True})
        assert figures.transfer == 6.0 / figures.steady.seconds
        assert setting(advice.transfer, figures) == "pin_memory=True, non_blocking=True"
        assert setting(advice.transfer, idle(**COPIES, facts={"torch": True, "pin_memory": True})) == (
            "non_blocking=True"
        )
        assert judge(figures).bottleneck == "transfer"
        assert "600 MB at 100 MB/s" in " ".join(judge(figures).evidence)

    def test_those_of_a_loader_run_beside_it(self):
        figures = idle(**COPIES)
        assert setting(advice.transfer, figures) is None
        assert judge(figures).bottleneck == "trainer"

    def test_few_are_no_matter(self):
        assert setting(advice.transfer, idle(facts={"torch": True})) is None
        quick = idle(copies=Spread(count=100, total=0.1), copied_bytes=1, facts={"torch": True})
        assert setting(advice.transfer, quick) is None
        assert judge(quick).bottleneck == "trainer"


class TestWorkers:
    def test_as_many_as_the_trainer_needs(self):
        assert setting(advice.more_workers, short(cores=64)) == "num_workers=9"  # 0.4 s every 0.05 s and a tenth more

    def test_no_more_than_cores_where_samples_compute(self):
        assert setting(advice.more_workers, short(cores=6)) == "num_workers=6"
        assert setting(advice.more_workers, short(cores=4)) is None

    def test_more_than_cores_where_samples_wait(self):
        found = advice.more_workers(short(cores=4, cpu=0.2))
        assert found.setting == "num_workers=9"  # what the trainer needs, at once
        assert "compute for 20%" in found.text

    @pytest.mark.parametrize("figures", [idle(), short(facts={"automatic": True}), short(facts={"workers": 0})])
    def test_not_where_they_would_not_help(self, figures):
        assert advice.more_workers(figures) is None

    def test_some_where_there_are_none(self):
        lone = short(facts={"workers": 0}, lanes=(Lane(-1, 1.0, 800, 1.0),))
        assert setting(advice.no_workers, lone) == "num_workers=None"
        assert advice.no_workers(short()) is None

    def test_fewer_where_they_idle(self):
        assert setting(advice.fewer_workers, idle(busy=0.3)) == "num_workers=2"
        assert advice.fewer_workers(idle(busy=0.6)) is None
        assert advice.fewer_workers(short()) is None
        assert advice.fewer_workers(idle(facts={"automatic": True})) is None

    def test_deaths(self):
        assert setting(advice.dying_workers, short(deaths=2)) == "num_workers"
        assert advice.dying_workers(short()) is None


class TestWork:
    def test_the_dearest_operation_is_named_when_cores_are_full(self):
        assert setting(advice.cheaper_operation, short(cores=4)) == "operation 'decode'"

    @pytest.mark.parametrize("figures", [short(cores=8), short(cores=4, cpu=0.2), idle(cores=4)])
    def test_not_before(self, figures):
        assert advice.cheaper_operation(figures) is None

    def test_a_cache_from_the_second_epoch_on(self):
        assert setting(advice.cache, short(cores=4, runs=(run(0), run(1)))) == "cache"
        assert advice.cache(short(cores=4)) is None
        cached = (FormFigures("decoded", 10, 0.1, Spread()),)
        assert advice.cache(short(cores=4, runs=(run(0), run(1)), cache=cached)) is None

    def test_cores_of_other_hosts_where_those_here_are_too_few(self):
        found = advice.other_hosts(short(cores=4))
        assert found.setting == "remote=headrace.Ray(cpus=5)"  # 0.4 s of work every 0.05 s: eight cores, and a tenth
        assert "your GPU wants 5 cores more than the 4 of this host" in found.text

    def test_no_other_hosts_where_there_are_cores_or_other_hosts_already(self):
        node = (NodeFigures("10.0.0.2", 10, 0.1, Spread()),)
        assert advice.other_hosts(short(cores=8)) is None
        assert advice.other_hosts(short(cores=4, elsewhere=node)) is None

    def test_samples_instead_of_batches(self):
        uneven = {"work": time(0.4, std=0.2)}
        assert setting(advice.other_loader, short(facts={"torch": True}, **uneven)) == "headrace.DataLoader"
        assert advice.other_loader(short(**uneven)) is None
        assert advice.other_loader(short(facts={"torch": True})) is None
        assert advice.other_loader(short(facts={"torch": True, "workers": 1}, **uneven)) is None


class TestOrder:
    def test_free_where_it_blocks(self):
        assert setting(advice.free_order, short(blocked_share=0.2)) == "in_order=False"
        assert advice.free_order(short(blocked_share=0.01)) is None
        assert advice.free_order(short(blocked_share=0.2, facts={"in_order": False})) is None

    def test_further_ahead_where_workers_idle_and_the_trainer_waits(self):
        lanes = tuple(Lane(number, 0.5, 200, 1.0) for number in range(4))
        assert setting(advice.prefetch, short(lanes=lanes)) == "prefetch_factor=4"
        assert advice.prefetch(short()) is None
        assert advice.prefetch(idle()) is None


class TestStart:
    def test_workers_that_stay(self):
        figures = short(runs=(run(0), run(1)), epoch_starts=2.0)
        assert setting(advice.keep_workers, figures) == "persistent_workers=True"
        assert advice.keep_workers(short(epoch_starts=2.0)) is None
        assert advice.keep_workers(replace(figures, facts={"workers": 4, "persistent": True})) is None
        assert advice.keep_workers(short(runs=(run(0), run(1)), epoch_starts=0.1)) is None

    def test_before_and_within_the_first_batch(self):
        late = idle(startup=6.0, startup_idle=5.5)
        assert setting(advice.faster_start, late) == "multiprocessing_context='fork'"
        assert setting(advice.faster_start, replace(late, startup_idle=0.1)) == "batch_size"
        far = advice.faster_start(replace(late, startup_store=4.0))
        assert far.setting == "the store"
        assert "For 4.00 s of the first 6.00 s no row of the store was here" in far.text
        assert "workers' start" not in far.text
        opening = advice.faster_start(replace(late, startup_first=4.0))
        assert opening.setting == "persistent_workers=True"
        assert "For 4.00 s of the first 6.00 s a worker made its first sample" in opening.text
        assert advice.faster_start(short()) is None


def test_a_loader_that_does_well_gets_no_advice():
    assert advice.advise(idle(busy=0.7)) == ()


def test_every_rule_is_asked():
    found = advice.advise(short(cores=4, blocked_share=0.2, runs=(run(0), run(1)), deaths=1))
    there = "device='cuda', on_device=True"
    wanted = ["in_order=False", "operation 'decode'", there, "cache", "remote=headrace.Ray(cpus=5)", "num_workers"]
    assert [one.setting for one in found] == wanted


def test_a_device_is_advised_where_decoding_keeps_workers_busy():
    busy = short(cores=4)
    found = advice.on_device(busy)
    assert found.setting == "device='cuda', on_device=True"
    assert "'decode' are 70% of the work" in found.text
    assert "every 30.0 ms, and what reading headers and drawing takes, instead of 100 ms" in found.text
    assert "decodes 160 pictures a second (an H200: 7,000 to 15,000) it would not wait" in found.text
    assert "50% of the time" in found.text
    assert advice.on_device(short(cores=64)).text == found.text, "cores that are left are another advice"
    assert advice.on_device(short(cpu=0.1)) is None, "they wait for a disk or a network"
    assert advice.on_device(replace(busy, facts=busy.facts | {"on_device": True})) is None
    others = tuple(replace(each, name="mine") for each in busy.operations)
    assert advice.on_device(replace(busy, operations=others)) is None


def test_a_device_that_is_not_enough_is_not_promised_to_be():
    """Of 0.8 s of work a batch, 0.24 s are left to four workers: 60 ms, and a step takes 50."""
    found = advice.on_device(short(cores=4, work=time(0.8)))
    assert "every 60.0 ms" in found.text
    assert "would not wait" not in found.text
    assert "133 samples a second would come instead of 80" in found.text
