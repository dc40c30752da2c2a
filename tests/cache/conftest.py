"""Caches that go away with their test."""

import secrets

import pytest

from headrace.cache import shm
from headrace.cache.local_book import ledgers


@pytest.fixture
def name():
    """Of a cache that nobody else has."""
    chosen = f"test-{secrets.token_hex(6)}"
    yield chosen
    shm.remove(chosen)
    for path in ledgers(chosen):
        path.unlink()
