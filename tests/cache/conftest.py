"""Caches that go away with their test."""

import pytest

from headrace.cache import shm
from headrace.cache.ledger_files import ledgers
from tests.names import new_name


@pytest.fixture
def name():
    """Of a cache that nobody else has."""
    chosen = new_name()
    yield chosen
    shm.remove(chosen)
    for path in ledgers(chosen):
        path.unlink()
