"""Whatever interrupts it, a group of indices is with its order, waits to be handed out, or was: and that once."""

from concurrent.futures import ThreadPoolExecutor
from itertools import chain, count

import pytest

from headrace.sched.groups import Answers, Groups
from tests.loader.steps import at_step

OWED = [[100, 101, 102], [], [103]]
ITEMS = [[1, 2, 3], [4], [5, 6], [7, 8]]
EVERY = sorted(chain(*OWED, *ITEMS))


class Interrupted(BaseException):
    pass


def interrupt():
    raise Interrupted


class Listed:
    """An order of these."""

    first = 1

    def __init__(self, items):
        self._items = items

    def item(self, number):
        if number > len(self._items):
            raise StopIteration
        return self._items[number - 1]

    def state(self, number):
        return number


class Exchanged:
    """Each group answered with its indices the other way round."""

    def __init__(self, groups):
        self.answers = Answers(groups)

    def head(self):
        if self.answers.at.head is None:
            drawn = self.answers.following()
            if drawn is None:
                return None
            self.answers.answer(drawn, drawn[::-1], len(drawn))
        return self.answers.at.head

    def taken(self):
        self.answers.taken()

    def progress(self, held, besides):
        at = self.answers.at
        waits = at.head is not None and not any(at.head is each for each in besides)
        return self.answers.progress(at, held + ([at.head] if waits else []))


def check(groups, taken):
    """All that was to come did, waits, or is still to be drawn."""
    state = groups.progress([list(group) for group in taken], taken)
    assert sorted(chain(*state["pending"], *ITEMS[state["order"] :])) == EVERY


def driven(groups):
    """All groups, taken as a run takes them: it goes on after an interrupt."""
    taken = []
    while True:
        try:
            head = groups.head()
            if head is None:
                return taken
            if not any(head is each for each in taken):
                taken.append(head)
            groups.taken()
        except Interrupted:
            check(groups, taken)


def everywhere(made):
    """The groups that ``made`` makes, with an interrupt before each line in turn."""
    usual = driven(made())
    assert sorted(chain(*usual)) == EVERY
    for number in count(1):
        groups = made()
        with at_step(number, interrupt, "line") as steps:
            found = driven(groups)
        assert found == usual, number
        check(groups, found)
        if steps[0] < number:
            return


@pytest.mark.parametrize("size", [None, 2, 4])
@pytest.mark.parametrize("exchanged", [False, True])
def test_an_interrupt_before_any_line(size, exchanged):
    def made():
        groups = Groups(Listed(ITEMS), OWED, size, batched=True)
        return Exchanged(groups) if exchanged else groups

    # In a thread: Python takes what a trace raises in an except clause for being handled for ever.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(everywhere, made).result()


def test_what_was_served_is_noted_with_its_answer():
    exchanged = Exchanged(Groups(Listed(ITEMS), OWED, 2, batched=True))
    driven(exchanged)
    assert exchanged.answers.at.served == len(EVERY)


def test_what_is_owed_comes_first_and_in_its_own_groups():
    groups = Groups(Listed([4, 5]), OWED, None, batched=False)
    assert driven(groups) == [[100, 101, 102], [103], [4], [5]]


def test_what_is_owed_is_filled_up_from_the_order():
    assert driven(Groups(Listed(ITEMS), OWED, 3, batched=True))[:3] == [[100, 101, 102], [103, 1, 2], [3, 4, 5]]


def test_begun_again_what_was_not_delivered_comes_first():
    groups = Groups(Listed(ITEMS), [], 2, batched=True)
    groups.head()
    groups.taken()
    assert driven(groups.again([[1, 2, 3]])) == [[1, 2], [3, 4], [5, 6], [7, 8]]
