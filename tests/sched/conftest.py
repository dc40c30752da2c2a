"""Every test of the ledger runs on both twins."""

import pytest

from headrace.sched import native_ledger

NATIVE = pytest.param(
    True,
    id="native",
    marks=pytest.mark.skipif(native_ledger.module is None, reason="needs the native module: make native"),
)


@pytest.fixture(params=[pytest.param(False, id="python"), NATIVE])
def native(request: pytest.FixtureRequest) -> bool:
    """Whether the ledger's hot operations are those in C."""
    return request.param
