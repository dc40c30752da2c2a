"""What workers know of the cost of operations and the size of samples, put together for ``stats()``."""

from collections.abc import Sequence

from headrace.core.stats import Operation
from headrace.engine.memory.reservation import Reservation
from headrace.plan import operations as costs
from headrace.sched.gauges import Gauges


def summary(memory: Reservation, names: Sequence[str]) -> tuple[float, tuple[Operation, ...]]:
    """(mean bytes of a sample, operations) since the memory was reserved."""
    gauges = Gauges(memory.words, memory.dims)
    accounts = gauges.accounts(len(names))
    if not accounts:
        return 0.0, ()
    account = costs.added(accounts)
    found = []
    for number, name in enumerate(names, 1):
        counts = costs.of(account, number)
        found.append(
            Operation(
                name=name,
                count=sum(counts[: costs.BINS]),
                mean_seconds=costs.mean(counts) / 1e9,
                p50_seconds=costs.quantile(counts, 0.5) / 1e9,
                p90_seconds=costs.quantile(counts, 0.9) / 1e9,
                hand_offs=gauges.put_aside_at(number),
            )
        )
    return costs.mean(costs.of(account, 0)), tuple(found)
