"""What is owed comes first, what the order gives after it, and each index once."""

import pytest

from headrace.sched.groups import Groups
from headrace.testing.sources import SourceContract

OWED = [[100, 101, 102], [], [103]]
ITEMS = [[1, 2, 3], [4], [5, 6], [7, 8]]


class Listed:
    """An order of these."""

    def __init__(self, items):
        self._items, self._drawn = items, 0

    def draw(self):
        if self._drawn == len(self._items):
            raise StopIteration
        self._drawn += 1
        return self._items[self._drawn - 1]

    def state(self):
        return {"drawn": self._drawn}


def driven(groups):
    """All that come."""
    return [group.indices for group in iter(groups.next, None)]


class TestGroups(SourceContract):
    @pytest.fixture(params=[None, 2, 4])
    def source(self, request):
        return Groups(Listed(ITEMS), OWED, request.param, batched=True)

    @pytest.fixture
    def indices(self):
        return [100, 101, 102, 103, *range(1, 9)]

    def undrawn(self, state):
        return [index for item in ITEMS[state["order"]["drawn"] :] for index in item]


def test_what_is_owed_comes_first_and_in_its_own_groups():
    groups = Groups(Listed([4, 5]), OWED, None, batched=False)
    assert driven(groups) == [[100, 101, 102], [103], [4], [5]]


def test_what_is_owed_is_filled_up_from_the_order():
    assert driven(Groups(Listed(ITEMS), OWED, 3, batched=True))[:3] == [[100, 101, 102], [103, 1, 2], [3, 4, 5]]


def test_what_was_put_back_comes_first():
    groups = Groups(Listed(ITEMS), [], 2, batched=True)
    groups.next()
    groups.put_back([[1, 2, 3]])
    assert driven(groups) == [[1, 2], [3, 4], [5, 6], [7, 8]]
