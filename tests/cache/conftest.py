"""Caches that go away with their test."""

import pytest

from headrace.cache.backends import shm
from tests.names import new_name


@pytest.fixture
def name():
    """Of a cache that nobody else has."""
    chosen = new_name()
    yield chosen
    shm.remove(chosen)
