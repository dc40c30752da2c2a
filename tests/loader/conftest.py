"""Who works for a test."""

from collections.abc import Callable

import psutil
import pytest

from tests.loader.support import forked


@pytest.fixture
def workers() -> Callable[[], list[psutil.Process]]:
    """The living processes that were forked from this one since the test began."""
    before = {process.pid for process in forked()}
    return lambda: [process for process in forked() if process.pid not in before]
