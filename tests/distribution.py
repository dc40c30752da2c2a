"""How `make test` gives its tests to several processes: test by test, and by the file where its tests share something.

A test whose process crashes is not given to another one: it has failed.
"""

import functools
from typing import Any

import pytest

try:
    from xdist.scheduler import LoadScopeScheduling
except ImportError:  # one process
    LoadScopeScheduling = object


class Units(LoadScopeScheduling):
    """A unit of work is all cases of a test, or a file with fixtures that outlive a test: they are set up once."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if self._shares(file) else nodeid.partition("[")[0]

    @functools.cache  # noqa: B019  (there is one)
    def _shares(self, file: str) -> bool:
        return "@pytest.fixture(scope=" in (self.config.rootpath / file).read_text()

    def remove_node(self, node: Any) -> str | None:
        """What ran when it crashed; the rest of its work is for the others."""
        units = self.assigned_work.pop(node)
        waiting = [(unit, test) for unit in units.values() for test, is_done in unit.items() if not is_done]
        if not waiting:
            return None
        unit, crashed = waiting[0]
        unit[crashed] = True
        left = {scope: unit for scope, unit in units.items() if not all(unit.values())}
        self.workqueue.update(left)
        for scope in reversed(left):
            self.workqueue.move_to_end(scope, last=False)
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed

    def _assign_work_unit(self, node: Any) -> None:
        """One that has just crashed, which is not known here yet, does not get any."""
        scope = next(iter(self.workqueue))
        try:
            super()._assign_work_unit(node)
        except OSError:
            self.workqueue[scope] = self.assigned_work[node].pop(scope)
            self.workqueue.move_to_end(scope, last=False)

    def _reschedule(self, node: Any) -> None:
        """One that has taken a crashed one's place gets work once it has said what tests it knows."""
        if node in self.registered_collections:
            super()._reschedule(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Units:
    config.option.loadscopereorder = False
    return Units(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of the whole (documentation, wheel, benchmarks) take longest and come first, so that none is waited for."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.path.parent != config.rootpath / "tests")
