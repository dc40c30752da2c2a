"""From records to one row per delivered batch."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.trace.analysis.batches import delivered
from tests.trace.made import MS, Made, trainer_bound


def test_wait_delay_and_work(tmp_path):
    made = Made(tmp_path / "t")
    made.run()
    made.sample(0, 0, 4, 0, batch=0)
    made.sample(1, 1, 5, 1, batch=0, row=1)
    made.batch(0, asked=2, got=9)
    (row,) = delivered(made.read())
    times = {name: row[name] / MS for name in ("asked", "got", "wait", "begun", "ready", "work", "delay")}
    assert times == {"asked": 2, "got": 9, "wait": 7, "begun": 0, "ready": 6, "work": 9, "delay": 3}
    assert row["made"]


def test_collation_is_part_of_the_making(tmp_path):
    made = Made(tmp_path / "t")
    made.run()
    made.sample(0, 0, 4, 0, batch=0)
    made.stream(0).collate(0, 1, made.at(5), 2 * MS)
    made.batch(0, asked=0, got=8)
    (row,) = delivered(made.read())
    assert (row["ready"] / MS, row["work"] / MS, row["delay"] / MS) == (7, 6, 1)


def test_a_batch_nobody_recorded_the_making_of(tmp_path):
    made = Made(tmp_path / "t")
    made.run()
    made.sample(0, 0, 1, 0, batch=5)
    made.batch(0, 0, 3)
    (row,) = delivered(made.read())
    assert not row["made"]
    assert row["delay"] == row["work"] == 0


def test_a_maker_that_notes_its_end_late_makes_no_negative_delay(tmp_path):
    made = Made(tmp_path / "t")
    made.run()
    made.sample(0, 0, 5.001, 0, batch=0)
    made.batch(0, 0, 5)
    assert delivered(made.read())["delay"].tolist() == [0]


def test_batches_of_different_runs_are_told_apart(tmp_path):
    made = Made(tmp_path / "t")
    for epoch in range(2):
        made.run(epoch=epoch)
        made.sample(0, 10 * epoch, 1 + epoch, 0, batch=0)
        made.batch(0, 10 * epoch, 10 * epoch + 5)
    assert (delivered(made.read())["work"] / MS).tolist() == [1, 2]


def test_waiting_in_order_while_another_is_ready(tmp_path):
    made = Made(tmp_path / "t")
    made.run()
    made.sample(0, 0, 10, 0, batch=0)
    made.sample(1, 0, 4, 1, batch=1)
    made.batch(0, 0, 10)
    made.batch(1, 11, 11.5)
    rows = delivered(made.read())
    assert (rows["blocked"] / MS).tolist() == [6, 0]
    assert rows["early"].tolist() == [False, True]


def test_the_last_to_work_on_it_is_its_maker(tmp_path):
    made = Made(tmp_path / "t")
    made.run()
    made.sample(0, 0, 4, 0, batch=0)
    made.sample(1, 0, 9, 1, batch=0, row=1)
    made.sample(2, 0, 5, 2, batch=0, row=2)
    made.batch(0, 0, 9)
    trace = made.read()
    assert trace.streams[delivered(trace)["maker"][0]].lane == 1


times = st.integers(0, 50)


@given(st.lists(st.tuples(times, times, times, times), min_size=1, max_size=8))
def test_as_one_by_one(tmp_path_factory, specs):
    """Each batch of one sample: (start, length) of the sample, (step before asking, wait) of the trainer."""
    made = Made(tmp_path_factory.mktemp("t") / "t")
    made.run()
    clock, expected = 0, []
    for number, (start, length, step, wait) in enumerate(specs):
        made.sample(number, start, length, number, batch=number)
        asked, got = clock + step, clock + step + wait
        made.batch(number, asked, got)
        expected.append((asked, got, min(start + length, got)))
        clock = got
    rows = delivered(made.read())
    assert (rows["ready"] / MS).tolist() == [ready for *_, ready in expected]
    assert (rows["delay"] / MS).tolist() == [got - ready for _, got, ready in expected]
    blocked = [
        max(0, got - max([asked, min([later for *_, later in expected[i + 1 :]], default=got)]))
        for i, (asked, got, _) in enumerate(expected)
    ]
    assert (rows["blocked"] / MS).tolist() == blocked
    assert rows["early"].tolist() == [False, *(b[2] < a[2] for a, b in itertools.pairwise(expected))]


def test_order_is_that_of_delivery(tmp_path):
    rows = delivered(trainer_bound(tmp_path / "t").read())
    assert np.all(np.diff(rows["got"]) > 0)
    assert rows["batch"].tolist() == list(range(20))


def test_nothing_gives_nothing(tmp_path):
    made = Made(tmp_path / "t")
    made.run()
    assert len(delivered(made.read())) == 0
