"""A loader's course: what it keeps from one iteration to the next."""

from typing import Any

from headrace.cache import identity
from headrace.engine.consumer.automatic import Automatic
from headrace.engine.consumer.stragglers import Stragglers
from headrace.engine.consumer.supply.fetchers import Fetchers
from headrace.engine.consumer.supply.membership import Memberships
from headrace.plan.lookahead import Lookahead


class Course:
    """A loader's epochs, over all its iterations, and a state that the next one shall go on from."""

    def __init__(self) -> None:
        """At the start."""
        self.epoch = 0
        self.saved: dict[str, Any] | None = None
        self.stragglers = Stragglers()
        self.automatic: Automatic | None = None
        self.lookahead: Lookahead | None = None
        self.memberships = Memberships()
        self.fetchers = Fetchers()

    def begin(self) -> tuple[int, dict[str, Any] | None]:
        """The number of the epoch that begins now, and the state it goes on from, if any."""
        saved = self.saved
        if saved is not None and "job" in saved:
            identity.resume(saved["job"])
        begun = saved["epoch"] + int(saved["finished"]) if saved else self.epoch
        self.epoch = begun + 1
        return begun, saved

    def use_up(self, saved: dict[str, Any]) -> None:
        """The epoch that goes on from ``saved`` has really begun; unless another state was loaded meanwhile."""
        if self.saved is saved:
            self.saved = None
