"""Single answers of an epoch's machine; `test_exactly_once.py` drives it through whole epochs."""

from collections import deque

from headrace.plan.lookahead import Lookahead
from headrace.sched import ledger_layout as W
from headrace.sched.epochs.epoch import Epoch
from headrace.sched.epochs.epochmachine import EpochMachine
from headrace.sched.epochs.publication import Batch
from headrace.sched.epochs.trainer_commands import Arrangement, Draw, Terms
from headrace.sched.ledger_layout import Dims
from headrace.sched.source import Group
from tests.sched.epochs import Order
from tests.sched.memory import Words

DIMS = Dims(lanes=1, groups=8, slots=8, rows=4)


class Staff:
    lanes = 1


def test_only_what_is_outstanding_holds_it_back() -> None:
    """A source that has nothing yet, say rows that are still on their way, is no reason to look further ahead."""
    terms = Terms(Arrangement.STRICT, Lookahead(2, 2))
    machine = EpochMachine(Epoch(Words(DIMS.words).trainer(DIMS), terms, Order(deque(), 0), Staff(), ()))
    machine.epoch.begin(0, 1)
    assert machine.next() == Draw(must=True)
    machine.stuck()
    assert not machine.epoch.is_held_back
    for slot in range(2):
        machine.start()
        assert machine.next() == Draw(must=slot == 0)
        group = Group([slot])
        machine.epoch.book.enter(group)
        machine.drew(Batch(slot, 1, False, group.number, 1, W.INTEGERS, 64, free_order=False), group, ())
        machine.next()
    assert machine.epoch.is_held_back
    machine.dry()
    assert not machine.epoch.is_held_back


def test_lanes_that_make_nothing_are_replaced_a_few_times() -> None:
    """Once each and twice more; from a batch that was delivered on, as often again."""
    terms = Terms(Arrangement.STRICT, Lookahead(2, 2))
    epoch = Epoch(Words(DIMS.words).trainer(DIMS), terms, Order(deque(), 0), Staff(), ())
    epoch.begin(0, 1)
    for _ in range(Staff.lanes + 2):
        assert not epoch.is_hopeless
        epoch.repair(0)
    assert epoch.is_hopeless
    group = Group([0])
    epoch.book.enter(group)
    epoch.open[0] = group
    epoch.taken(0)
    assert not epoch.is_hopeless
