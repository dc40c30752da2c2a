"""Every test of the ledger runs on both twins."""

import pytest

from headrace.sched import twin

NATIVE = pytest.param(
    True, id="native", marks=pytest.mark.skipif(twin.module is None, reason="needs the native module: make native")
)


@pytest.fixture(params=[pytest.param(False, id="python"), NATIVE])
def native(request: pytest.FixtureRequest) -> bool:
    """Whether the ledger's hot operations are those in C."""
    return request.param
