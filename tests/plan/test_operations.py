"""Costs counted by powers of two: means are exact, quantiles lie in the right bin."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.plan import operation_costs as costs

values = st.lists(st.integers(0, 2**50), min_size=1, max_size=200)


def counted(numbers, operation=1):
    account = [0] * 3 * (costs.BINS + 1)
    for number in numbers:
        costs.count(account, operation, number)
    return account


@given(values)
def test_the_mean_is_exact(numbers):
    assert costs.mean(costs.of(counted(numbers), 1)) == pytest.approx(sum(numbers) / len(numbers))


@given(values, st.floats(0.01, 1))
def test_a_quantile_is_within_a_factor_of_two(numbers, share):
    found = costs.quantile(costs.of(counted(numbers), 1), share)
    position = max(0, -(-share * len(numbers) // 1) - 1)
    exact = sorted(numbers)[int(position)]
    assert exact / 2 <= found <= max(1, 2 * exact)


@given(st.lists(values, min_size=1, max_size=4))
def test_accounts_add_up(several):
    together = costs.added([counted(numbers) for numbers in several])
    assert together == counted([number for numbers in several for number in numbers])


def test_operations_do_not_touch_each_other():
    account = counted([5, 6], operation=2)
    assert costs.mean(costs.of(account, 1)) == 0.0
    assert costs.quantile(costs.of(account, 1), 0.5) == 0.0
    assert sum(costs.of(account, 2)[: costs.BINS]) == 2
