"""Split of a cache between encoded, decoded and augmented samples: the model of Seneca, its Eqs. 1 to 9.

``DSI_A`` and so on are the rates at which samples arrive that are found in one form; the throughput of a split is their
mean, weighted by how many samples are found in each. Where the cache is smaller than the dataset this is linear in the
split, so the best one is pure: all of the cache for one form, or any mixture of forms whose rates are equal.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from headrace.plan.parameters import Parameters

FORMS = ("encoded", "decoded", "augmented")
"""In the order in which a split is written."""
PERCENT = 100
_TIE = 1e-9


class Split(NamedTuple):
    """Whole percentages of the cache, 100 in all."""

    encoded: int
    decoded: int
    augmented: int

    def __str__(self) -> str:
        return f"{self.encoded}-{self.decoded}-{self.augmented}"

    @classmethod
    def parse(cls, text: str) -> "Split":
        """``"40-59-1"``."""
        try:
            found = cls(*(int(part) for part in text.split("-")))
        except (TypeError, ValueError):
            raise ValueError(f"a split is three percentages such as 40-60-0, not {text!r}") from None
        return found.checked()

    def checked(self) -> "Split":
        """Itself, or ``ValueError``."""
        if min(self) < 0 or sum(self) != PERCENT:
            raise ValueError(f"a split has three percentages of 0 or more that add up to 100, not {self}")
        return self


class Rates(NamedTuple):
    """Samples per second when all are found augmented, decoded, encoded, or in storage only."""

    a: float
    d: float
    e: float
    s: float


class HeldShares(NamedTuple):
    """Samples found in each form, and in storage only (Eqs. 2, 4, 6, 8)."""

    a: float
    d: float
    e: float
    s: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """A model's prediction for a split."""

    split: Split
    throughput: float
    held: HeldShares


def limits(given: Parameters) -> dict[str, dict[str, float]]:
    """The samples per second that each resource allows, for each form: the arguments of the minima in Eqs. 1, 3, 5,
    7.

    The least of a form is its rate, and its resource the form's bottleneck.
    """
    large, n = given.m * given.s_data, given.n
    common = {"pcie": n * given.b_pcie / (large + given.c_pcie), "gpu": n * given.t_gpu}
    inflated = {"cache": given.b_cache / large, "network": n * given.b_nic / (large + given.c_nw)}
    encoded = {
        "cache": given.b_cache / given.s_data,
        "network": n * given.b_nic / (given.s_data + given.c_nw),
        "cpu": n * given.t_da,
    } | common
    return {
        "a": inflated | common,
        "d": inflated | {"cpu": n * given.t_a} | common,
        "e": encoded,
        "s": encoded | {"storage": given.b_storage / given.s_data},
    }


def rates(given: Parameters) -> Rates:
    """Eqs. 1, 3, 5 and 7."""
    return Rates(**{form: min(allowed.values()) for form, allowed in limits(given).items()})


def held(given: Parameters, split: Split) -> HeldShares:
    """Eqs. 2, 4, 6 and 8."""
    large = given.m * given.s_data
    augmented = min(given.n_total, split.augmented / PERCENT * given.s_cache / large)
    decoded = min(given.n_total - augmented, split.decoded / PERCENT * given.s_cache / large)
    encoded = min(given.n_total - (augmented + decoded), split.encoded / PERCENT * given.s_cache / given.s_data)
    return HeldShares(augmented, decoded, encoded, given.n_total - augmented - decoded - encoded)


def predict(given: Parameters, split: Split) -> Prediction:
    """Eq. 9."""
    found = held(given, split.checked())
    weighted = sum(count * rate for count, rate in zip(found, rates(given), strict=True))
    return Prediction(split, weighted / given.n_total, found)


def best(given: Parameters) -> Prediction:
    """The best of all splits in steps of one percent; of several, the one with the least encoded, then decoded."""
    return search(lambda split: predict(given, split), lambda found: found.throughput)


def search(model: Callable[[Split], Prediction], worth: Callable[[Prediction], float]) -> Prediction:
    """The first split, in order of ``splits``, that no other exceeds by more than rounding."""
    first, *others = (model(split) for split in splits())
    for each in others:
        if worth(each) > worth(first) * (1 + _TIE):
            first = each
    return first


def splits() -> Iterator[Split]:
    """All 5151 splits."""
    for encoded in range(PERCENT + 1):
        for decoded in range(PERCENT + 1 - encoded):
            yield Split(encoded, decoded, PERCENT - encoded - decoded)
