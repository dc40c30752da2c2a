"""The ``headrace`` command: one module per subcommand, each with `configure` and `run`."""

from __future__ import annotations


class UsageError(Exception):
    """The user can mend it: printed as one line, exit code 2."""
