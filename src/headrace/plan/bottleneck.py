"""The same question asked of resources: each is busy for so long per sample, and the busiest sets the pace.

The paper's Eq. 9 averages rates, as if samples of one form waited while those of another are read. Here all resources
work at once, so a split that loads the CPU with some samples and the network with others gains from both. A sample
that is found in no cache also takes its share of storage, whatever the others do.
"""

from headrace.plan.parameters import Parameters
from headrace.plan.partition import HeldShares, Prediction, Split, held, search

NUDGE = 1e-6
"""Among splits of equal throughput, the one that loads resources least: worth less than this share of it."""


def seconds(given: Parameters, found: HeldShares) -> dict[str, float]:
    """Average busy time of each resource per sample."""
    a, d, e, s = (count / given.n_total for count in found)
    large, n = given.m * given.s_data, given.n
    return {
        "cache": ((a + d) * large + e * given.s_data) / given.b_cache,
        "network": ((a + d) * large + (e + s) * given.s_data + given.c_nw) / (n * given.b_nic),
        "storage": s * given.s_data / given.b_storage,
        "cpu": (d / given.t_a + (e + s) / given.t_da) / n,
        "pcie": (large + given.c_pcie) / (n * given.b_pcie),
        "gpu": 1 / (n * given.t_gpu),
    }


def predict(given: Parameters, split: Split) -> Prediction:
    """The rate that the busiest resource allows."""
    found = held(given, split.checked())
    return Prediction(split, 1 / max(seconds(given, found).values()), found)


def bottleneck(given: Parameters, found: HeldShares) -> str:
    """The busiest resource."""
    busy = seconds(given, found)
    return max(busy, key=lambda name: busy[name])


def forms(given: Parameters) -> dict[str, tuple[float, str]]:
    """Samples per second if all were found in one form, and the resource that then sets the pace."""
    found = {}
    for place, form in enumerate("ades"):
        whole = HeldShares(*(given.n_total if at == place else 0.0 for at in range(4)))
        found[form] = (1 / max(seconds(given, whole).values()), bottleneck(given, whole))
    return found


def best(given: Parameters) -> Prediction:
    """The best of all splits in steps of one percent; of several, the one that leaves most to spare."""

    def worth(found: Prediction) -> float:
        load = sum(seconds(given, found.held).values())
        return found.throughput * (1 + NUDGE / (1 + load * found.throughput))

    return search(lambda split: predict(given, split), worth)
