"""The same workers as in the tests of the loader."""

from tests.loader.conftest import workers

__all__ = ["workers"]
