"""``loader.story(index)`` says what happened to a sample, who did it, and why."""

from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.engine.trainer.cores import CoreUse, Use
from headrace.trace.reader import read
from tests.loader.data import Numbers, Pairs, fixed
from tests.loader.test_scheduling import WARM_UP, Gate, KilledInside
from tests.loader.test_scheduling import loader as new
from tests.parity.datasets import Deadly, Failing, Squares

KEPT = headrace.Scheduling(story=True)


def whats(loader: headrace.DataLoader[Any], index: int) -> list[str]:
    return [event.what for event in loader.story(index)]


def untouched(loader: headrace.DataLoader[Any], index: int) -> list[str]:
    """As ``whats``; what a worker took and gave back before it began (it had to wait for a core) is left out."""
    found: list[str] = []
    for what in whats(loader, index):
        if what == "taken back":
            assert found.pop() == "took"
        else:
            found.append(what)
    return found


@pytest.mark.parametrize("in_order", [True, False])
def test_the_way_of_an_ordinary_sample(in_order):
    loader = headrace.DataLoader(Squares(40), batch_size=4, num_workers=2, in_order=in_order, scheduling=KEPT)
    assert len(list(loader)) == 10
    for index in range(40):
        assert untouched(loader, index) == ["drawn", "took", "made", "wrote", "handed out"]
    drawn, *_, took, made, wrote, out = loader.story(17)
    assert (drawn.who, out.who) == ("loader", "loader")
    assert took.who == made.who == wrote.who
    assert wrote.why.endswith(out.why.removeprefix("in ")) or "others" in wrote.why
    assert [event.seconds for event in loader.story()] == sorted(event.seconds for event in loader.story())
    assert "loader: handed out [" in str(out)


def test_it_spans_epochs():
    loader = headrace.DataLoader(Squares(4), batch_size=2, num_workers=1, scheduling=KEPT)
    for _ in range(3):
        list(loader)
    assert whats(loader, 3).count("handed out") == 3
    assert [event.why for event in loader.story(3) if event.what == "drawn"][2].startswith("in epoch 2")


def test_a_worker_that_is_killed(tmp_path: Path):
    hook = KilledInside(tmp_path, 2)
    hook.open()
    loader = headrace.DataLoader(Pairs(8, fixed, hook), batch_size=4, num_workers=1, scheduling=KEPT, in_order=True)
    assert len(list(loader)) == 2
    story = loader.story(2)
    died = next(event for event in story if event.what == "died")
    assert died.who == "worker 0"
    assert "SIGKILL" in died.why
    assert died.why.endswith("while it made sample 2")
    expected = ["drawn", "took", "died", "queued again", "took", "made", "wrote", "handed out"]
    assert [event.what for event in story] == expected


def test_a_sample_that_kills_two_workers():
    skip = headrace.Skip(max_fraction=1.0)
    loader = headrace.DataLoader(Deadly("signal"), batch_size=4, num_workers=1, scheduling=KEPT, on_error=skip)
    list(loader)
    assert whats(loader, 1).count("died") == 2
    assert "failed" in whats(loader, 1)
    (failed,) = [event for event in loader.story(1) if event.what == "failed"]
    assert failed.why == "2 workers died while they made it"


def test_a_slow_sample_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(CoreUse, "ask", lambda self, pids: Use(1.0, 0.0, 0.0))
    hook, slow = Gate(tmp_path, WARM_UP), WARM_UP
    loader = new(400, hook, scheduling=headrace.Scheduling(max_displacement=None, story=True))
    batches = iter(loader)
    while "put aside" not in whats(loader, slow):
        next(batches)
    hook.open()
    list(batches)
    (aside,) = [event for event in loader.story(slow) if event.what == "put aside"]
    assert "another works in its place" in aside.why
    assert whats(loader, slow)[-3:] == ["made", "wrote", "handed out"]


def test_a_sample_that_fails():
    dataset = Failing(8, {5}, lambda: ValueError("a torn page"))
    skip = headrace.Skip(max_fraction=1.0)
    loader = headrace.DataLoader(dataset, batch_size=4, num_workers=1, scheduling=KEPT, on_error=skip)
    list(loader)
    assert whats(loader, 5) == ["drawn", "took", "failed", "reported", "handed out"] or whats(loader, 5) == [
        *["drawn", "took", "failed", "handed out", "reported"]
    ]
    (reported,) = [event for event in loader.story(5) if event.what == "reported"]
    assert reported.why == "ValueError: a torn page"


@pytest.mark.parametrize("in_order", [True, False])
def test_a_resumed_epoch(in_order):
    def another() -> headrace.DataLoader[Any]:
        return headrace.DataLoader(Squares(40), batch_size=4, num_workers=2, in_order=in_order, scheduling=KEPT)

    first = another()
    batches = iter(first)
    had = {int(index) for _ in range(3) for index in next(batches).sqrt().round().int()}
    state = first.state_dict()
    first.close()
    second = another()
    second.load_state_dict(state)
    list(second)
    owed = [event for event in second.story() if event.what == "resumed"]
    assert [event.why.partition(";")[0] for event in owed] == ["epoch 0 goes on after 3 batches"]
    assert all(not second.story(index) for index in had)
    for index in owed[0].indices:
        assert whats(second, index)[:2] == ["resumed", "drawn"]


def test_a_hang_says_how_it_came_to_it(tmp_path: Path):
    dataset = Pairs(4, fixed, Gate(tmp_path, 1))
    loader = headrace.DataLoader(dataset, batch_size=2, num_workers=1, timeout=1, scheduling=KEPT)
    with pytest.raises(RuntimeError, match=r"timed out after 1 seconds(?s:.*)worker 0: took"):
        list(loader)


def test_it_is_in_the_trace(tmp_path: Path):
    hook = KilledInside(tmp_path, 2)
    hook.open()
    path = tmp_path / "a.trace"
    loader = headrace.DataLoader(
        Pairs(8, fixed, hook), batch_size=4, num_workers=1, scheduling=KEPT, in_order=True, trace=path
    )
    list(loader)
    trace = read(path)
    marks = {(trace.names[mark["name"]], int(mark["value"])) for mark in trace.marks}
    assert {("worker 0: died", 2), ("loader: queued again", 2)} <= marks


def test_streams_tell_of_batches():
    loader = headrace.DataLoader(Numbers(8), batch_size=2, num_workers=2, scheduling=KEPT)
    list(loader)
    told = [(event.who, event.what) for event in loader.story()]
    for worker in ("worker 0", "worker 1"):
        assert [what for who, what in told if who == worker] == ["made", "made", "ended"]


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch):
    """A lane's ring is written over, and what was torn by that is left out; the log forgets its oldest."""
    monkeypatch.setattr("headrace.engine.settings.RECORDS", 8)
    loader = headrace.DataLoader(Squares(64), batch_size=64, num_workers=1, scheduling=KEPT, collate_fn=list)
    assert len(list(loader)) == 1
    assert whats(loader, 63)[0] == "drawn"
    assert len(loader.story()) <= 16


def test_it_is_not_kept_unless_asked_for():
    loader = headrace.DataLoader(Squares(4), num_workers=1)
    list(loader)
    with pytest.raises(ValueError, match=r"Scheduling\(story=True\)"):
        loader.story(1)
