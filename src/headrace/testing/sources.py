"""A conformance suite for sources of groups, and one that is scripted."""

from collections.abc import Sequence
from typing import Any

from headrace.sched.hand import NOT_YET, NotYet
from headrace.sched.source import Group, Source


class ScriptedSource:
    """Gives these groups, one after the other; where one is ``NOT_YET``, it says so once."""

    def __init__(self, groups: Sequence[list[Any] | NotYet]) -> None:
        self._groups = list(groups)
        self.closed = False

    def next(self) -> Group | NotYet | None:
        """See ``Source``."""
        if not self._groups:
            return None
        group = self._groups.pop(0)
        return group if isinstance(group, NotYet) else Group(group)

    def put_back(self, groups: list[list[Any]]) -> None:
        """See ``Source``."""
        self._groups[:0] = groups

    def state(self, owed: list[list[Any]]) -> dict[str, Any]:
        """See ``Source``: the order is drawn when it is made."""
        return {"pending": owed + [list(group) for group in self._groups if isinstance(group, list)], "order": {}}

    def wakes(self) -> tuple[int, int]:
        """No wake-ups: nothing announces itself."""
        return -1, 0

    def close(self) -> None:
        """See ``Source``."""
        self.closed = True


class SourceContract:
    """The tests that every ``Source`` must pass.

    Subclass it, with two fixtures: ``source``, one of which nothing was asked yet, and ``indices``, what it gives.
    """

    def undrawn(self, state: dict[str, Any]) -> list[Any]:
        """The samples that its order still has, by a state."""
        return []

    def arrive(self) -> None:
        """Called where groups are under way: have some come."""

    def _next(self, source: Source) -> Group | None:
        while (group := source.next()) is NOT_YET:
            self.arrive()
        assert not isinstance(group, NotYet)
        return group

    def _rest(self, source: Source) -> list[Group]:
        groups = []
        while (group := self._next(source)) is not None:
            groups.append(group)
        return groups

    def _flat(self, groups: list[list[Any]]) -> list[Any]:
        return [index for group in groups for index in group]

    def test_each_index_comes_once(self, source: Source, indices: list[Any]) -> None:
        found = self._flat([group.indices for group in self._rest(source)])
        assert sorted(found) == sorted(indices)
        assert self._next(source) is None, "the end is not for once"

    def test_a_state_is_what_is_owed_and_what_did_not_come(self, source: Source, indices: list[Any]) -> None:
        delivered, owed = self._next(source), self._next(source)
        assert delivered is not None
        assert owed is not None
        state = source.state([owed.indices])
        left = self._flat(state["pending"]) + self.undrawn(state)
        assert sorted(left + delivered.indices) == sorted(indices)

    def test_what_is_put_back_comes_again(self, source: Source, indices: list[Any]) -> None:
        delivered, owed = self._next(source), self._next(source)
        assert delivered is not None
        assert owed is not None
        source.put_back([owed.indices])
        found = self._flat([group.indices for group in self._rest(source)])
        assert sorted(found + delivered.indices) == sorted(indices)

    def test_releasing_twice_is_releasing_once(self, source: Source, indices: list[Any]) -> None:
        for group in self._rest(source):
            for _ in range(2):
                if group.release is not None:
                    group.release(range(len(group.indices)))
            assert len(group.made_of) in (0, len(group.indices))
        source.close()
        source.close()
